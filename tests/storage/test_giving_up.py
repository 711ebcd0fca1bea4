"""An operator gives up exactly what is lost: the write group goes on with the rest of its log, no offset is given out
twice, and readers go on behind the gap."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.files import PowerLoss
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated
from tests.storage.test_start_over_damage import (
    BLOCKS,
    PARTS,
    filled,
    killed,
    never,
    only_the_other_is_served,
    queue_of,
    spoiled,
    two_groups,
)

from mainstem.model import Outcome
from mainstem.storage.errors import CorruptJournal, StorageError
from mainstem.storage.journal.encoding.blocks import block_at
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_NO_OP,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.mending.block_repair import Twin
from mainstem.storage.journal.mending.stand_ins import is_stand_in, stand_ins, tiled
from mainstem.storage.repair.lost_blocks import Loss, LostBlocks, LostPart, missing_segment
from mainstem.storage.upkeep.maintenance import DAMAGE_SECONDS


async def give_up(node: SmallNode, *names: str) -> list[Loss]:
    """The work of the command, on a node that is stopped. Returns what was lost."""
    lost = await LostBlocks.open(node.disk1)
    await lost.give_up(names)
    return lost.losses


async def lost(node: SmallNode) -> list[Loss]:
    return (await LostBlocks.open(node.disk1)).losses


def names(losses: Sequence[Loss]) -> list[str]:
    return [part.name for loss in losses for part in loss.parts]


async def goes_on(node: SmallNode, queue_id: int, missing: Sequence[int], count: int = BLOCKS) -> None:
    """The queue has all batches but these, and takes new ones behind all that were ever there."""
    assert not node.storage.waiting.reasons()
    offsets = [offset for offset in range(count) if offset not in missing]
    assert await node.read_offsets(queue_id) == offsets
    (taken,) = await node.append(new_batch(queue_id))
    assert (taken.outcome, taken.base_offset) == (Outcome.OK, count)
    assert await node.read_offsets(queue_id) == [*offsets, count]
    for offset in missing:
        found = await node.read(offset, queue_id)
        assert int.from_bytes(found.batches[0][:8], "big") == max(missing) + 1, "readers go on behind the gap"


@pytest.mark.parametrize("part", PARTS)
def test_a_hole_behind_the_checkpoint_is_given_up_and_the_rest_of_the_log_is_served(tmp_path: Path, part: str) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = await filled(node)
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index() - BLOCKS + 11

        async def harm() -> None:
            spoiled(node, blocks.position_of(index) + PARTS[part])

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good)
        (loss,) = await lost(node)
        assert names([loss]) == [f"0:{index}-{index}"]
        (offsets,) = loss.parts[0].offsets
        assert (offsets.first, offsets.last) == (10, 10)
        assert offsets.queue == f"topic-1-{bad & 0xFF}"
        await node.restart()
        assert list(node.storage.waiting.reasons()) == [0], "nothing is given up without being told to"
        await node.storage.close()
        await give_up(node, f"0:{index}-{index}")
        await node.start()
        await goes_on(node, bad, [10])
        assert await node.read_offsets(good) == list(range(BLOCKS + 1))
        await node.crash()
        await node.start()
        assert await node.read_offsets(bad) == [*range(10), *range(11, BLOCKS + 1)]
        assert set(await node.split()) == {"committed"}
        await asyncio.sleep(10.0)
        assert await node.read_offsets(bad) == [*range(10), *range(11, BLOCKS + 1)]
        await asyncio.sleep(3 * DAMAGE_SECONDS)
        assert await lost(node) == []

    simulated(tmp_path, story, two_groups)


def test_queues_without_a_later_batch_go_on_higher_than_whatever_was_lost(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        idle = next(queue for queue in range(bad + 1, bad + 8) if node.storage.group_of(queue) == 0)
        await node.fill(5, bad)
        await node.fill(5, good)
        await node.fill(5, idle)
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index()

        async def harm() -> None:
            spoiled(node, blocks.position_of(index), blocks.length_of(index))

        await node.fill(3, bad)
        await node.fill(3, good)
        await killed(node, harm)
        (loss,) = await lost(node)
        (part,) = loss.parts
        assert not part.offsets
        assert part.open_queues == sum(node.storage.group_of(queue) == 0 for queue in range(QUEUE, QUEUE + 8)) - 1
        await node.crash()
        await give_up(node, part.name)
        await node.start()
        assert (await node.append(new_batch(bad)))[0].base_offset == 8, "later batches tell how far this one went"
        (taken,) = await node.append(new_batch(idle))
        assert taken.base_offset >= 5 + part.raised_by > 1 << 31, "offset 4, at least, was given out"
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        assert await lost(node) == []
        await node.restart()
        assert node.offsets(idle).high_watermark == taken.base_offset + 1, "raised once"
        found = await node.read_offsets(idle)
        assert (found[:4], found[-1]) == ([0, 1, 2, 3], taken.base_offset)

    simulated(tmp_path, story, two_groups)


def test_a_log_that_ends_in_a_hole_is_given_up_from_there_on(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        await node.fill(5, good)
        await node.fill(5, bad)
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index()
        await node.fill(5, good)

        async def harm() -> None:
            spoiled(node, blocks.position_of(index), blocks.length_of(index))

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good, 10)
        assert names(await lost(node)) == [f"0:{index}-"]
        await node.crash()
        await give_up(node, f"0:{index}-")
        await node.start()
        (taken,) = await node.append(new_batch(bad))
        assert taken.outcome is Outcome.OK
        assert taken.base_offset > 5, "offset 4 was given out"
        found = await node.read_offsets(bad)
        assert (found[:4], found[-1]) == ([0, 1, 2, 3], taken.base_offset)

    simulated(tmp_path, story, two_groups)


def test_applied_blocks_that_cannot_be_read_are_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = await filled(node)
        node.storage.journal.seal_index = never  # type: ignore[method-assign, assignment]
        await node.storage.checkpointer.checkpoint()
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index() - BLOCKS + 11
        position = blocks.position_of(index)

        async def harm() -> None:
            for path in node.disk1.paths():
                if path.endswith(".idx"):
                    await node.disk1.remove(path)
            spoiled(node, position, 40)

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good)
        (loss,) = await lost(node)
        assert [(part.name, part.open_queues) for part in loss.parts] == [(f"0:{index}-{index}", 0)]
        assert [(it.first, it.last) for it in loss.parts[0].offsets] == [(10, 10)]
        await node.storage.close()
        await give_up(node, f"0:{index}-{index}")
        await node.start()
        await goes_on(node, bad, [10])
        assert await lost(node) == [], "nothing is left to be done"
        assert set(await node.split()) == {"committed"}
        await asyncio.sleep(10.0)
        assert await node.read_offsets(bad) == [*range(10), *range(11, BLOCKS + 1)]

    simulated(tmp_path, story, two_groups)


def test_of_a_block_that_rots_before_it_is_split_only_the_batches_that_rotted_are_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        await node.fill(3, bad)
        await node.append(*[new_batch(bad) for _ in range(3)])
        await node.fill(BLOCKS, bad)
        await node.fill(BLOCKS, good)
        blocks = node.storage.groups[0].blocks
        index = blocks.last_index() - BLOCKS
        at = blocks.position_of(index) + BLOCK_HEADER_BYTES + 3 * DIRECTORY_ROW_BYTES
        second = (blocks.length_of(index) - (at - blocks.position_of(index))) // 3
        spoiled(node, at + second + 100)
        assert not await node.storage.split_log.damaged(at)
        await asyncio.sleep(2 * DAMAGE_SECONDS)
        (loss,) = await lost(node)
        assert names([loss]) == [f"0:{index}-{index}"]
        assert [(it.first, it.last) for it in loss.parts[0].offsets] == [(4, 4)]
        assert (await node.read(4, bad)).outcome is Outcome.STORAGE_FAILED
        await node.storage.close()
        await give_up(node, f"0:{index}-{index}")
        await node.start()
        count = 6 + BLOCKS
        await goes_on(node, bad, [4], count)
        assert set(await node.split()) == {"committed"}
        await asyncio.sleep(10.0)
        assert await node.read_offsets(bad) == [*range(4), *range(5, count + 1)]
        assert not node.storage.damage.waiting()

    simulated(tmp_path, story, two_groups)


def test_a_segment_that_is_missing_is_given_up_where_nothing_before_it_is_left_to_split(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        bad, good = queue_of(node, 0), queue_of(node, 1)
        await node.fill(BLOCKS, good)
        await node.split()
        await node.fill(BLOCKS, bad)
        await node.storage.maintenance.index_sealed()
        await node.storage.checkpointer.checkpoint()
        blocks = node.storage.groups[0].blocks
        of_bad = sorted({sequence_of(blocks.position_of(index)) for index in range(5, blocks.last_index())})
        left = [
            index for index in range(1, blocks.last_index() + 1) if sequence_of(blocks.position_of(index)) > of_bad[0]
        ]
        count = len(left)

        async def harm() -> None:
            for number in range(node.segments()[0], of_bad[0] + 1):
                await node.disk1.remove(f"journal/{segment_name(number)}")

        await killed(node, harm)
        await only_the_other_is_served(node, bad, good)
        (loss,) = await lost(node)
        assert loss.missing
        await node.storage.close()
        await give_up(node, *names([loss]))
        await node.start()
        assert not node.storage.waiting.reasons()
        found = [int.from_bytes((await node.read(offset, bad)).batches[0][:8], "big") for offset in range(BLOCKS)]
        assert sorted(set(found)) == list(range(BLOCKS - count, BLOCKS))
        (taken,) = await node.append(new_batch(bad))
        assert taken.base_offset == BLOCKS
        await node.restart()
        assert await lost(node) == []
        assert not node.storage.waiting.reasons()

    simulated(tmp_path, story, two_groups)


async def refused_over_damage(node: SmallNode) -> tuple[int, str, bytes]:
    """A node alone does not start over a block that is damaged: the block's index, the segment's path, and what it
    held."""
    await node.fill(BLOCKS)
    blocks = node.storage.groups[0].blocks
    index = blocks.last_index() - BLOCKS + 11
    await node.crash()
    path, whole = spoiled(node, blocks.position_of(index))
    with pytest.raises(CorruptJournal, match=r"recover --lost"):
        await node.start()
    return index, path, whole


def test_a_node_of_which_nothing_is_left_starts_once_that_is_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        index, *_ = await refused_over_damage(node)
        await give_up(node, f"0:{index}-{index}")
        await node.start()
        assert await node.read_offsets() == [*range(10), *range(11, BLOCKS)]

    simulated(tmp_path, story)


def test_what_has_changed_since_is_not_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        index, path, whole = await refused_over_damage(node)
        await give_up(node, f"0:{index}-{index}")
        node.disk1.put(path, whole)
        await node.start()
        assert await node.read_offsets() == list(range(BLOCKS)), "the file was restored: nothing is lost"

    simulated(tmp_path, story)


def test_what_is_not_lost_cannot_be_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await node.fill(3)
        with pytest.raises(StorageError, match=r"0:2-3: not known to be lost; what is: nothing"):
            await give_up(node, "0:2-3")

    simulated(tmp_path, story)


def test_a_crash_while_what_is_lost_is_replaced_changes_nothing_of_the_outcome(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        index, *_ = await refused_over_damage(node)
        for after in range(1, 12):
            before = {path: node.disk1.content(path) for path in node.disk1.paths()}
            await give_up(node, f"0:{index}-{index}")
            node.disk1.cut_power(after=after)
            cut = True
            try:
                await (await LostBlocks.open(node.disk1)).replace(0)
                cut = False
            except PowerLoss:
                pass
            node.disk1.crash(keep_bytes=0)
            await (await LostBlocks.open(node.disk1)).replace(0)
            await node.start()
            assert await node.read_offsets() == [*range(10), *range(11, BLOCKS)]
            if not cut:
                return
            await node.crash()
            for path in node.disk1.paths():
                await node.disk1.remove(path)
            for path, content in before.items():
                node.disk1.put(path, content)
        raise AssertionError("the power was cut each time")

    simulated(tmp_path, story)


def test_each_of_several_stand_ins_can_be_told_from_other_blocks() -> None:
    lost = tiled(4096, 4096 + 400, [(0, 1, 7), (0, 1, 8), (1, 3, 2)])
    content = stand_ins(bytes(400), lost, 5, 77, 1000)
    blocks = [block_at(content, block.position - 4096, block.position) for block in lost]
    assert [(block.group, block.term, block.index) for block in blocks if block is not None] == [
        (0, 1, 7), (0, 1, 8), (1, 3, 2),
    ]  # fmt: skip
    assert all(is_stand_in(content[block.position - 4096 :][:BLOCK_HEADER_BYTES]) for block in lost)
    assert blocks[-1] is not None
    assert blocks[-1].crc == 77, "the block behind goes on from it"
    assert [block.previous_crc for block in blocks if block is not None][1:] == [
        block.crc for block in blocks[:-1] if block is not None
    ]


def test_what_another_replica_has_is_copied_where_it_fits_and_refused_where_it_does_not() -> None:
    (lost,) = tiled(4096, 4096 + 200, [(0, 1, 7)])
    twin = Twin(KIND_NO_OP, 9, 0, b"", b"what is there" + bytes(50))
    content = stand_ins(bytes(200), [lost], 5, 77, 1000, {4096: twin})
    block = block_at(content, 0, 4096)
    assert block is not None
    assert (block.kind, block.created_ms, content[BLOCK_HEADER_BYTES:][:13]) == (KIND_NO_OP, 9, b"what is there")
    with pytest.raises(StorageError, match="does not fit where it lay here"):
        stand_ins(bytes(200), [lost], 5, 77, 1000, {4096: twin._replace(payload=b"x" * 121)})


def test_a_segment_that_other_nodes_can_make_up_for_cannot_be_given_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        lost = await LostBlocks.open(node.disk1)
        await lost.note([missing_segment(3, [LostPart(0, 4, 9, members=[2, 3])])])
        with pytest.raises(StorageError, match=r"nodes 2, 3 have the write group, and .* is made anew from them"):
            await lost.give_up(["0:4-9"])

    simulated(tmp_path, story)


def test_other_bytes_at_the_same_place_are_another_loss_and_what_queues_go_on_higher_by_adds_up(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        lost = await LostBlocks.open(node.disk1)
        first = Loss(4096, 8192, 1, "it cannot be read", [LostPart(0, 4, 4, raised_by=5)], replaced=True)
        later = Loss(9000, 9800, 1, "it cannot be read", [LostPart(0, 7, 7, raised_by=7)], replaced=True)
        await lost.note([first, later])
        assert lost.raises() == {0: (9800, 12)}
        present = Loss(4096, 8192, 1, "it cannot be read", [LostPart(0, 4, 4)])
        changed = Loss(4096, 8192, 2, "it cannot be read", [LostPart(0, 4, 4)])
        await lost.note([present])
        await lost.note([present])
        await lost.note([changed])
        assert (await LostBlocks.open(node.disk1)).losses == [first, later, present, changed]

    simulated(tmp_path, story)
