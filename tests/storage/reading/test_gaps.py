"""A reader that asks for an offset in a gap gets the next that exists, whatever has become of the segments' indexes: it
passes over no live offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.storage.small_node import QUEUE, SmallNode, new_batch, simulated

from mainstem.kernel import NEXT_OFFSET
from mainstem.model import Outcome
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.segments.segment_files import index_path, segment_path

BEFORE = 3
GAP = 100
BEHIND = 60
"""Batches behind the gap: some segments full, the first of them in the segment of those before."""

ASKED = BEFORE + GAP // 2
NEXT = BEFORE + GAP


async def with_a_gap(node: SmallNode) -> None:
    """Batches of one record, with a gap in their offsets, in segments that have their indexes."""
    await node.fill(BEFORE)
    table = node.storage.state.table
    table.set(table.find(QUEUE), NEXT_OFFSET, NEXT)
    for number in range(BEHIND):
        await node.append(new_batch(QUEUE, timestamp=2000 + number))
    await node.rounds()
    indexed = [segment for segment in node.storage.journal.segments() if segment.index_ready]
    assert len(indexed) > 2
    await node.storage.close()


async def first_read(node: SmallNode) -> int:
    found = await node.read(ASKED)
    assert found.outcome is Outcome.OK
    return int.from_bytes(found.batches[0][:8], "big")


def test_an_older_segment_that_has_lost_its_index_is_not_passed_over(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        node.disk1.forget(index_path(1))
        await node.start()
        ready = [segment.index_ready for segment in node.storage.journal.segments()]
        assert ready[:2] == [False, True], "a newer segment has its index, the one behind the gap has none"
        assert await first_read(node) == NEXT
        assert await node.read_offsets() == [*range(BEFORE), *range(NEXT, NEXT + BEHIND)]
        found = await node.storage.messages.offset_for_timestamp(QUEUE, 2000)
        assert found is not None
        assert found.offset == NEXT
        await node.rounds()
        assert all(segment.index_ready for segment in node.storage.journal.segments() if segment.sealed)
        assert await first_read(node) == NEXT

    simulated(tmp_path, story)


def test_a_reader_that_comes_to_the_gap_goes_on_behind_it(tmp_path: Path) -> None:
    """It is remembered where it was, in a segment that has lost its index."""

    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        node.disk1.forget(index_path(1))
        await node.start()
        last = await node.read(BEFORE - 1, bytes_max=1)
        assert (len(last.batches), last.next_offset) == (1, BEFORE)
        found = await node.read(BEFORE)
        assert int.from_bytes(found.batches[0][:8], "big") == NEXT

    simulated(tmp_path, story)


@pytest.mark.parametrize("sequence", [1, 2, 3])
def test_an_index_that_is_damaged_is_made_anew_before_anything_behind_it_answers(tmp_path: Path, sequence: int) -> None:
    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        node.disk1.flip(index_path(sequence), 8 * 200)
        await node.start()
        assert await first_read(node) == NEXT
        assert await node.read_offsets() == [*range(BEFORE), *range(NEXT, NEXT + BEHIND)]

    simulated(tmp_path, story)


def test_what_cannot_be_told_is_an_error_to_try_again_and_no_later_offset(tmp_path: Path) -> None:
    """Neither the index of the segment behind the gap can be read, nor can it be made from the segment."""

    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        await node.start()
        node.disk1.flip(index_path(1), 8 * 200)
        node.disk1.flip(segment_path(1), 8 * 4200)
        for _ in range(3):
            found = await node.read(ASKED)
            assert (found.outcome, found.batches) == (Outcome.STORAGE_FAILED, [])
        node.disk1.flip(segment_path(1), 8 * 4200)
        assert await first_read(node) == NEXT

    simulated(tmp_path, story)


def test_a_reader_in_the_gap_while_segments_are_indexed_split_and_recycled(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        node.disk1.forget(index_path(1))
        await node.start()
        split = asyncio.ensure_future(node.split())
        done = asyncio.ensure_future(node.rounds(20))
        while not done.done():
            assert await first_read(node) == NEXT
            await asyncio.sleep(0.05)
        assert await split == ["committed"]
        assert await first_read(node) == NEXT

    simulated(tmp_path, story)


def test_another_replica_that_has_lost_offsets_is_given_none_but_these(tmp_path: Path) -> None:
    """It asks for what was committed: what comes behind a gap is no answer."""

    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        await node.start()
        path = node.storage.read_path
        batches, next_offset = await path.committed(QUEUE, NEXT, 1)
        assert (len(batches), next_offset) == (1, NEXT + 1)
        with pytest.raises(StorageError, match=f"offset {ASKED} is neither in the journal nor in the queue store"):
            await path.committed(QUEUE, ASKED, 1)
        with pytest.raises(StorageError, match=f"offset {ASKED} is neither"):
            await path.committed(QUEUE, ASKED, 1, gaps=True)  # not split yet, and so not compacted
        split = asyncio.ensure_future(node.split())
        await node.rounds(20)
        assert await split == ["committed"]
        await node.rounds(20)
        with pytest.raises(StorageError, match=f"offset {ASKED} is neither"):
            await path.committed(QUEUE, ASKED, 1)
        batches, next_offset = await path.committed(QUEUE, ASKED, 1, gaps=True)
        assert (bytes(batches[0][:8]), next_offset) == (NEXT.to_bytes(8, "big"), NEXT + 1)

    simulated(tmp_path, story)


def test_a_look_up_by_time_goes_over_a_gap_in_one_step(tmp_path: Path) -> None:
    """However wide it is: queues whose lost ends nobody knows go on some 10^10 higher."""

    async def story(node: SmallNode) -> None:
        await with_a_gap(node)
        await node.start()
        history = node.storage.queue_store.history
        extents, searches = history.extents, []

        def counted(queue_id: int, group: int, offset: int) -> AsyncGenerator[tuple[int, int, int], None]:
            searches.append(offset)
            return extents(queue_id, group, offset)

        history.extents = counted  # type: ignore[method-assign]
        found = await node.storage.messages.offset_for_timestamp(QUEUE, 2000)
        assert found is not None
        assert found.offset == NEXT
        assert len(searches) < GAP // 10, "every tier is searched for every offset"

    simulated(tmp_path, story)
