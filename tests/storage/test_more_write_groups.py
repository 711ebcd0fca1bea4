"""A storage role comes to more write groups while it runs: they take batches at once, and whatever the next start knows
of them, nothing is lost of what they took."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.model import SLOTS, Outcome, QueueRange, slot_of

NEW = topic(2).queue_id(0)
"""A queue of a topic that is made once there are two write groups; its slot is the new one's."""


def grown_slots() -> list[int]:
    assert slot_of(QUEUE) != slot_of(NEW)
    return [int(slot == slot_of(NEW)) for slot in range(SLOTS)]


def grow(node: SmallNode) -> None:
    """The metadata has a second write group, and the storage role is told."""
    node.founders[1] = (1,)
    node.storage.grow(grown_slots(), 2)


async def served(node: SmallNode) -> None:
    while not node.storage.groups[1].serving:  # noqa: ASYNC110 - simulated time
        await asyncio.sleep(0.05)


async def filled(node: SmallNode) -> None:
    """A write group that was added has batches of a new topic."""
    await node.fill(3)
    grow(node)
    (refused,) = await node.append(new_batch(NEW))
    assert refused.outcome is Outcome.NOT_LEADER, "nobody leads it yet"
    await served(node)
    node.topics.append(topic(2))
    await node.storage.queues.create([QueueRange(2, 0, 2)])
    await node.fill(5, NEW)
    await node.fill(2)


async def check(node: SmallNode) -> None:
    """Both queues are whole, and go on; the new one in its write group."""
    await served(node)
    assert await node.read_offsets() == list(range(node.offsets().high_watermark))
    assert await node.read_offsets(NEW) == list(range(node.offsets(NEW).high_watermark))
    (more,) = await node.append(new_batch(NEW))
    assert more.base_offset == 5
    assert node.storage.groups[1].last_index > 0
    assert node.offsets().high_watermark == 5


def test_a_new_write_group_takes_batches_and_is_split_and_pruned_as_all_are(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await filled(node)
        assert await node.split() == ["committed"] * 2
        assert node.storage.manifest.written(1) > 0
        await check(node)
        await node.fill(40, NEW)
        assert set(await node.split()) == {"committed"}
        await node.rounds()
        assert node.segments()[0] > 1, "segments with blocks of both write groups are recycled"
        assert await node.read_offsets(NEW) == list(range(46))

    simulated(tmp_path, story)


@pytest.mark.parametrize("ends", ["in order", "by a crash"])
@pytest.mark.parametrize("knows", ["as before", "less", "less and a checkpoint", "first of all"])
def test_a_start_may_know_less_of_write_groups_than_the_disk_has(ends: str, knows: str, tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await filled(node)
        if "checkpoint" in knows:
            await node.storage.checkpointer.checkpoint()
        if knows in ("as before", "first of all"):
            node.slots = grown_slots()
        if ends == "in order":
            await node.storage.close()
        else:
            await node.crash()
        if "less" in knows:
            del node.founders[1]
        if knows == "first of all":
            node.groups = 2
        await node.start()
        assert len(node.storage.groups) == 2
        if "less" in knows:
            grow(node)  # it hears of it again
        await check(node)

    simulated(tmp_path, story)


def test_a_write_group_that_was_added_while_the_node_was_down_begins_with_its_start(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(5)
        await node.storage.close()
        node.slots = grown_slots()
        node.founders[1] = (1,)
        node.topics.append(topic(2))
        await node.start()
        assert node.storage.groups[1].serving
        assert node.storage.hard_states.founders(1) == {1}
        await node.fill(5, NEW)
        await check(node)

    simulated(tmp_path, story)


def test_a_founder_begins_a_write_group_once_whoever_asks(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        grow(node)
        replication = node.storage.replication
        assert replication.founds(1)
        await asyncio.gather(replication.take_part(1, {1}), replication.take_part(1, {1}))
        assert not replication.founds(1)
        await served(node)
        assert node.storage.hard_states.founders(1) == {1}

    simulated(tmp_path, story)
