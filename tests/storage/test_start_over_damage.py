"""A start over a damaged journal costs the write groups whose blocks are damaged, and only those, until they are put
right; what the journal lacks is noticed, never passed over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated, topic

from mainstem.model import Outcome
from mainstem.storage.errors import CorruptJournal, StorageError
from mainstem.storage.journal.encoding.format import BLOCK_HEADER_BYTES, offset_of, segment_name, sequence_of
from mainstem.storage.upkeep.maintenance import DAMAGE_SECONDS

CRC_AT = 4
"""Byte of a block that its checksum begins at: all else of its header stays as it was."""

BLOCKS = 30
"""Of each write group: some segments."""

PARTS = {"magic": 0, "length": 17, "group": 24, "index": 56, "directory": BLOCK_HEADER_BYTES + 3}
"""Byte of a block that goes bad."""


def two_groups(node: SmallNode) -> None:
    """No checkpoint but the one at the end."""
    node.groups = 2
    node.topics = [topic(partitions=8)]
    node.config = msgspec.structs.replace(node.config, checkpoint_bytes=1 << 30, checkpoint_seconds=3600.0)


def queue_of(node: SmallNode, group: int) -> int:
    return next(queue for queue in range(QUEUE, QUEUE + 8) if node.storage.group_of(queue) == group)


async def filled(node: SmallNode) -> tuple[int, int]:
    """A queue of group 0, whose block is to be damaged, and one of group 1, both with `BLOCKS` batches."""
    bad, good = queue_of(node, 0), queue_of(node, 1)
    for _ in range(BLOCKS):
        await node.fill(1, bad)
        await node.fill(1, good)
    return bad, good


async def killed(node: SmallNode, harm: Callable[[], Awaitable[None]]) -> None:
    """The process is killed, its disks are harmed, and it is started."""
    await node.crash()
    await harm()
    await node.start()


def spoiled(node: SmallNode, position: int, size: int = 1) -> tuple[str, bytes]:
    """Spoil the bytes at a journal position: the segment's path, and what it held."""
    path, at = f"journal/{segment_name(sequence_of(position))}", offset_of(position)
    whole = node.disk1.content(path)
    node.disk1.put(path, whole[:at] + bytes(byte ^ 1 for byte in whole[at : at + size]) + whole[at + size :])
    return path, whole


async def only_the_other_is_served(node: SmallNode, bad: int, good: int, count: int = BLOCKS) -> None:
    assert list(node.storage.waiting.reasons()) == [0]
    waits = {sample.labels: sample.value for sample in node.storage.waiting.samples()}
    assert waits == {(("group", "0"),): 1, (("group", "1"),): 0}
    assert await node.read_offsets(good) == list(range(count))
    (taken,) = await node.append(new_batch(good))
    assert taken.outcome is Outcome.OK
    (refused,) = await node.append(new_batch(bad))
    assert refused.outcome is Outcome.NOT_LEADER, "nothing is acknowledged on top of a hole"


async def all_is_served(node: SmallNode, bad: int, good: int) -> None:
    assert not node.storage.waiting.reasons()
    assert await node.read_offsets(bad) == list(range(BLOCKS))
    assert await node.read_offsets(good) == list(range(node.offsets(good).high_watermark))
    (taken,) = await node.append(new_batch(bad))
    assert (taken.outcome, taken.base_offset) == (Outcome.OK, BLOCKS), "offsets go on where they were"


@pytest.mark.parametrize("part", PARTS)
def test_a_hole_behind_the_checkpoint_costs_its_write_group_until_the_file_is_restored(
    tmp_path: Path, part: str
) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = await filled(node)
        blocks = node.storage.groups[0].blocks
        left: list[tuple[str, bytes]] = []

        async def harm() -> None:
            left.append(spoiled(node, blocks.position_of(10) + PARTS[part]))

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good)
        await asyncio.sleep(10.0)
        await node.restart()  # a clean stop gives nothing up
        assert list(node.storage.waiting.reasons()) == [0]
        taken = node.offsets(good).high_watermark
        assert taken == BLOCKS + 1
        ((path, whole),) = left
        at = offset_of(blocks.position_of(10))
        content = node.disk1.content(path)  # an operator's copy of the bytes that were lost
        await node.storage.close()
        node.disk1.put(path, content[:at] + whole[at : at + 200] + content[at + 200 :])
        await node.start()
        await all_is_served(node, bad, good)

    simulated(tmp_path, story, two_groups)


def test_a_hole_of_two_blocks_is_not_taken_for_the_one_whose_header_says_whose_it_was(tmp_path: Path) -> None:
    """The second was the last of its write group: no block behind the hole tells that it was there."""

    def three_groups(node: SmallNode) -> None:
        two_groups(node)
        node.groups = 3

    async def story(node: SmallNode) -> None:
        first, second, third = (queue_of(node, group) for group in range(3))
        for queue_id, count in ((first, 5), (second, 6), (third, 5)):
            await node.fill(count, queue_id)
        indexes = [node.storage.groups[group].blocks.last_index() + 1 for group in range(2)]
        await node.fill(1, first)
        await node.fill(1, second)
        await node.fill(2, third)
        await node.fill(2, first)
        places = [node.storage.groups[group].blocks.position_of(indexes[group]) for group in range(2)]
        assert places[0] + node.storage.groups[0].blocks.length_of(indexes[0]) == places[1]

        async def harm() -> None:
            for place in places:
                spoiled(node, place + CRC_AT)

        await killed(node, harm)
        assert list(node.storage.waiting.reasons()) == [0, 1]
        assert await node.read_offsets(third) == list(range(7))
        (refused,) = await node.append(new_batch(second))
        assert refused.outcome is Outcome.NOT_LEADER, "offset 6 was given out"

    simulated(tmp_path, story, three_groups)


def test_a_hole_that_the_checkpoint_knows_is_mended_while_the_node_runs(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good, path, whole = await killed_over_a_known_hole(node)
        await only_the_other_is_served(node, bad, good)
        await asyncio.sleep(10.0)
        node.disk1.put(path, whole)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        await all_is_served(node, bad, good)
        await node.restart()
        assert await node.read_offsets(bad) == list(range(BLOCKS + 1))

    simulated(tmp_path, story, two_groups)


def test_a_write_group_whose_blocks_are_whole_waits_until_their_segments_are_indexed(tmp_path: Path) -> None:
    """Nothing else finds blocks of before the checkpoint: its readers would be told of holes."""

    async def story(node: SmallNode) -> None:
        bad, good, path, whole = await killed_over_a_known_hole(node)
        journal = node.storage.journal
        indexed, journal.seal_index = journal.seal_index, never  # type: ignore[method-assign, assignment]
        node.disk1.put(path, whole)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        await only_the_other_is_served(node, bad, good)
        journal.seal_index = indexed  # type: ignore[method-assign]
        await asyncio.sleep(10.0)
        await all_is_served(node, bad, good)

    simulated(tmp_path, story, two_groups)


@pytest.mark.parametrize("which", ["oldest", "middle"])
def test_a_missing_sealed_segment_is_noticed_and_costs_the_write_groups_that_had_unsplit_blocks_in_it(
    tmp_path: Path, which: str
) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        await node.fill(BLOCKS, good)
        await node.split()
        await node.fill(BLOCKS, bad)
        await node.storage.maintenance.index_sealed()
        await node.storage.checkpointer.checkpoint()
        blocks, segments = node.storage.groups[0].blocks, node.segments()
        of_bad = sorted({sequence_of(blocks.position_of(index)) for index in range(5, blocks.last_index())})
        assert len(of_bad) > 2
        lost = of_bad[0] if which == "oldest" else of_bad[1]
        gone = [number for number in segments if number <= lost] if which == "oldest" else [lost]
        left = {}

        async def harm() -> None:
            for number in gone:
                path = f"journal/{segment_name(number)}"
                left[path] = node.disk1.content(path)
                await node.disk1.remove(path)

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good)
        assert any(segment_name(number) in node.storage.waiting.reasons()[0] for number in gone)
        await asyncio.sleep(10.0)
        await node.restart()
        assert list(node.storage.waiting.reasons()) == [0], "a checkpoint does not make it forgotten"
        await node.storage.close()
        for path, content in left.items():
            node.disk1.put(path, content)
        await node.start()
        await all_is_served(node, bad, good)

    simulated(tmp_path, story, two_groups)


def test_segments_that_were_recycled_are_not_missed(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await filled(node)
        await node.split()
        await node.storage.maintenance.index_sealed()
        await node.storage.checkpointer.checkpoint()
        before = node.segments()
        await node.storage.pruning.prune()
        assert node.segments()[0] > before[0]
        await node.crash()
        await node.start()
        assert not node.storage.waiting.reasons()

    simulated(tmp_path, story, two_groups)


def test_a_node_is_refused_where_no_write_group_is_left(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(BLOCKS)
        blocks = node.storage.groups[0].blocks
        await node.crash()
        path, whole = spoiled(node, blocks.position_of(10))
        with pytest.raises(CorruptJournal, match=r"block 10 .*restore the file"):
            await node.start()
        node.disk1.put(path, whole)
        await node.start()
        assert await node.read_offsets() == list(range(BLOCKS))

    simulated(tmp_path, story)


def test_a_hole_that_says_nothing_costs_every_group_that_no_later_block_shows_to_be_whole(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        await node.fill(5, bad)
        await node.fill(5, good)
        lost = node.storage.groups[0].last_index + 1
        await node.fill(1, bad)
        await node.fill(5, good)
        blocks = node.storage.groups[0].blocks
        position, length = blocks.position_of(lost), blocks.length_of(lost)
        await node.crash()
        spoiled(node, position, length)
        await node.start()
        await only_the_other_is_served(node, bad, good, 10)

    simulated(tmp_path, story, two_groups)


async def killed_over_a_known_hole(node: SmallNode) -> tuple[int, int, str, bytes]:
    """The node runs again over a damaged block of the first queue's write group that a checkpoint knows and no index
    has: both queues, the segment's path, and what it held."""
    bad, good = await filled(node)
    node.storage.journal.seal_index = never  # type: ignore[method-assign, assignment]
    await node.storage.checkpointer.checkpoint()
    position = node.storage.groups[0].blocks.position_of(10)
    left: list[tuple[str, bytes]] = []

    async def harm() -> None:
        for path in node.disk1.paths():
            if path.endswith(".idx"):
                await node.disk1.remove(path)
        left.append(spoiled(node, position))

    await killed(node, harm)
    ((path, whole),) = left
    return bad, good, path, whole


async def never(*_arguments: object) -> None:
    raise StorageError("no index is written")
