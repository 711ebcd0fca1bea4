"""Queues of many topics are created and deleted together: few blocks, durable when it returns, gone for good."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.storage.small_node import SmallNode, simulated

from mainstem.kernel import QueueTable
from mainstem.model import QueueRange, queue_id_of
from mainstem.raft.messages import Heartbeat
from mainstem.storage.errors import ChangesFailed, WriteGroupEnded
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queues.queue_admin import COMMANDS_MAX, LocalQueueAdmin

TOPICS = range(1000, 1000 + 2 * COMMANDS_MAX + 10)


def three_groups(node: SmallNode) -> None:
    node.groups = 3
    node.journal_config = JournalConfig(segment_bytes=1 << 20, pool_segments=0, segment_age_seconds=1e6)


def exists(node: SmallNode, topic: int, partition: int) -> bool:
    return node.storage.messages.offsets([queue_id_of(topic, partition)]).result() != [None]


def test_many_ranges_are_a_few_blocks_and_survive_the_power(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        before = [group.applied_index for group in node.storage.groups]
        await node.storage.queues.create([QueueRange(topic, 0, 30) for topic in TOPICS])
        blocks = [group.applied_index - index for group, index in zip(node.storage.groups, before, strict=True)]
        assert max(blocks) == 3, "as many as their commands fill"
        await node.crash()
        await node.start()
        assert all(exists(node, topic, 29) and not exists(node, topic, 30) for topic in TOPICS)

        before = [group.applied_index for group in node.storage.groups]
        await node.storage.queues.create([QueueRange(topic, 0, 30) for topic in TOPICS])
        assert [group.applied_index for group in node.storage.groups] == before, "they exist"
        await node.storage.queues.create([QueueRange(TOPICS[0], 30, 5), QueueRange(TOPICS[1], 0, 30)])
        assert exists(node, TOPICS[0], 34)
        assert not exists(node, TOPICS[1], 30)

    simulated(tmp_path, story, three_groups)


def test_a_write_group_that_has_ended_here_fails_by_itself(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.storage.queues.create([QueueRange(7, 0, 30)])
        queues = {node.storage.group_of(queue): queue for queue in map(partial(queue_id_of, 7), range(30))}
        for queue in queues.values():
            await node.fill(2, queue)
        consensus = node.storage.groups[0].consensus
        assert consensus.core is not None
        consensus.received([Heartbeat(2, 1, consensus.core.term, 0)])
        answers = await node.storage.queues.truncate(dict.fromkeys(queues.values(), 1))
        ended = answers.pop(queues[0])
        assert isinstance(ended, WriteGroupEnded)
        assert "nodes 1 and 2 both lead term" in str(ended)
        assert set(answers.values()) == {1}
        assert [node.offsets(queues[group]).log_start for group in (1, 2)] == [1, 1]
        with pytest.raises(ChangesFailed, match=r"write group 0: .* no part in it any more") as failure:
            await node.storage.queues.create([QueueRange(8, 0, 30)])
        assert failure.value.groups == {0}
        assert exists(node, 8, 29), "the others made it"

    simulated(tmp_path, story, three_groups)


def test_many_topics_are_deleted_together(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.storage.queues.create([QueueRange(topic, 0, 2) for topic in TOPICS])
        before = [group.applied_index for group in node.storage.groups]
        await node.storage.queues.delete([*TOPICS[1:], 999_999])
        assert [group.applied_index for group in node.storage.groups] == [index + 3 for index in before]
        await node.crash()
        await node.start()
        assert [topic for topic in TOPICS if exists(node, topic, 0)] == [TOPICS[0]]
        await node.storage.queues.delete([])

    simulated(tmp_path, story, three_groups)


def test_deleted_topics_go_at_once_from_a_node_that_has_no_write_group_any_more() -> None:
    """No log tells it of their deletion: asked for again and again, that would stand in the logs of all others."""
    table, deleted = QueueTable(), {3, 7}
    for topic in range(10):
        table.create(topic, 0, 2)
    moved_away = SimpleNamespace(last_index=0, consensus=SimpleNamespace(core=None))
    still_here = SimpleNamespace(last_index=0, consensus=SimpleNamespace(core=object()))
    not_read_yet = SimpleNamespace(last_index=5, consensus=SimpleNamespace(core=None))

    def left_over(*groups: SimpleNamespace) -> set[int]:
        unused: Any = None
        queues = LocalQueueAdmin(groups, group_of, table, unused, unused, unused)  # type: ignore[arg-type]
        return set(asyncio.run(queues.left_over(deleted.__contains__)))

    assert left_over(moved_away, still_here) == left_over(not_read_yet, moved_away) == deleted
    assert len(table.topics()) == 10
    assert left_over(moved_away, moved_away) == set()
    assert set(table.topics()) == set(range(10)) - deleted


def group_of(queue_id: int) -> int:
    return queue_id % 2


def test_queues_that_came_back_with_the_log_are_left_over_once_their_deletion_is_known(tmp_path: Path) -> None:
    """A node that is started applies that topics were created by metadata that may not know yet that they are gone; one
    that knows makes nothing of it, and so has nothing left over."""

    async def story(node: SmallNode) -> None:
        deleted = {TOPICS[3], TOPICS[7]}
        await node.storage.queues.create([QueueRange(topic, 0, 2) for topic in TOPICS])
        assert await node.storage.queues.left_over(lambda number: False) == []
        assert set(await node.storage.queues.left_over(deleted.__contains__)) == deleted
        await node.storage.queues.delete_in(range(3), sorted(deleted))
        assert await node.storage.queues.left_over(deleted.__contains__) == []
        await node.crash()
        await node.start()
        assert await node.storage.queues.left_over(deleted.__contains__) == [], "the log says so behind their creation"

    simulated(tmp_path, story, three_groups)


def test_queues_lack_where_a_write_group_of_theirs_has_a_replica() -> None:
    """Their leader has them, perhaps, from the log of a write group that this node has not."""
    groups: list[Any] = [
        SimpleNamespace(consensus=SimpleNamespace(core=None), last_index=0),
        SimpleNamespace(consensus=SimpleNamespace(core=object()), last_index=9),
    ]
    table = QueueTable()
    table.create(8, 0, 2)
    nothing: Any = None
    queues = LocalQueueAdmin(groups, lambda queue_id: queue_id % 2, table, nothing, nothing, nothing)
    topics: list[Any] = [SimpleNamespace(number=number, partitions=count) for number, count in ((7, 2), (8, 2), (9, 1))]
    assert asyncio.run(queues.lacking(topics)) == [QueueRange(7, 0, 2)], "8 is here, and 9 in the other write group"
