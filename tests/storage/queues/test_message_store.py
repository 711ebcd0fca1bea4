"""The answers of the local store where it cannot take a batch: the leader goes before the state of this node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernel.fetch.fetch_world import asking, at, number_of
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem import kernel
from mainstem.kernel import scan_fetch
from mainstem.model import Outcome, slot_of
from mainstem.protocol import codec

PARTITIONS = 8


def two_groups(node: SmallNode) -> None:
    node.topics = [topic(partitions=PARTITIONS)]
    node.groups = 2


def split_by_group() -> tuple[list[int], list[int]]:
    """The queues of write group 0, and those of write group 1."""
    queues = [QUEUE + partition for partition in range(PARTITIONS)]
    return [it for it in queues if slot_of(it) % 2 == 0], [it for it in queues if slot_of(it) % 2 == 1]


@pytest.mark.parametrize("why", ["nearly full", "out of space"])
def test_a_node_that_takes_nothing_says_of_groups_led_elsewhere_that_they_are(tmp_path: Path, why: str) -> None:
    async def story(node: SmallNode) -> None:
        messages, (here, elsewhere) = node.storage.messages, split_by_group()
        messages.serve(1, serving=False)
        messages.refusing = why == "nearly full"
        node.storage.write_loop.out_of_space = why == "out of space"
        queues = [here[0], elsewhere[0], elsewhere[1], here[1]]
        answers = await node.append(*(new_batch(queue_id) for queue_id in queues))
        assert [answer.outcome for answer in answers] == [
            Outcome.STORAGE_BUSY,
            Outcome.NOT_LEADER,
            Outcome.NOT_LEADER,
            Outcome.STORAGE_BUSY,
        ]
        assert messages.refused_batches == 2, "of those that are this node's to refuse"
        node.storage.write_loop.out_of_space = False

    simulated(tmp_path, story, two_groups)


def test_a_replica_that_lacks_a_queue_says_who_leads_and_not_that_there_is_none(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        node.storage.messages.serve(1, serving=False)
        elsewhere = split_by_group()[1]
        await node.storage.queues.delete([1])
        reads = [at(queue_id - QUEUE, 0, 1000) for queue_id in elsewhere]
        request = asking(12, (1, reads))
        plan = scan_fetch(memoryview(codec.write(request, 12)), 0, 12).plan
        plan.begin(lambda key: kernel.PlannedTopic(number_of(key), PARTITIONS), 1 << 20)
        node.storage.messages.read_at_once(plan)
        assert {row.verdict for row in plan.partitions()} == {kernel.Verdict.NOT_LEADER}

    simulated(tmp_path, story, two_groups)
