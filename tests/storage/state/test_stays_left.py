"""A node leaves a write group that queues had come to: it goes on having what they had before, where that is here."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import numpy
import pytest

from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, SKIP_EVERY, QueueTable, RecentIndex
from mainstem.model import SLOTS, queue_id_of
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW, KIND_DATA, BlockHeader
from mainstem.storage.placement import Placement, Stay
from mainstem.storage.state.stays_left import StayLeft, give_back, stays_left

FIRST, SECOND, THIRD = 0, 1, 2
QUEUE, OTHER = queue_id_of(1, 0), queue_id_of(1, 1)
RECORDS = 10
"""Offsets of a batch."""


def _placement(*stays: Stay) -> Placement:
    return Placement([THIRD] * SLOTS, {QUEUE: stays})


def _left(placement: Placement, group: int, here: Collection[int]) -> list[StayLeft]:
    return list(stays_left(placement, group, lambda number: number in here))


@pytest.mark.parametrize(
    ("group", "here", "end"),
    [
        (SECOND, {FIRST}, 100),
        (SECOND, {THIRD}, None),  # the newest stay here remains
        (SECOND, {FIRST, THIRD}, None),
        (SECOND, set(), 0),
        (THIRD, {FIRST, SECOND}, 300),
        (THIRD, {FIRST}, 100),
        (FIRST, {SECOND}, None),
        (FIRST, set(), 0),
    ],
)
def test_a_queue_ends_where_the_last_stay_ends_that_is_still_here(
    group: int, here: Collection[int], end: int | None
) -> None:
    placement = _placement(Stay(FIRST, 0), Stay(SECOND, 100), Stay(THIRD, 300))
    assert _left(placement, group, here) == ([] if end is None else [StayLeft(QUEUE, end)])


def test_a_queue_that_had_returned_to_the_write_group_ends_before_its_last_time_there() -> None:
    placement = _placement(Stay(SECOND, 0), Stay(FIRST, 100), Stay(SECOND, 300))
    assert _left(placement, SECOND, {FIRST}) == [StayLeft(QUEUE, 300)]
    assert _left(placement, FIRST, {SECOND}) == []


class _Indexed:
    """A table with two queues, and an index with batches of both in each block."""

    def __init__(self, batches: int) -> None:
        self.table = QueueTable()
        self.table.create(1, 0, 2)
        self.index = RecentIndex(self.table, 1 << 20)
        self._position = 4096
        self.slot = self.table.find(QUEUE)
        for number in range(batches):
            self.add(number * RECORDS)

    def add(self, base_offset: int) -> None:
        rows = numpy.zeros(2, DIRECTORY_ROW)
        rows["queue_id"], rows["base_offset"] = (OTHER, QUEUE), base_offset
        rows["last_offset_delta"], rows["record_count"], rows["length"] = RECORDS - 1, RECORDS, 8
        rows["position"] = 0, 8
        header = BlockHeader(KIND_DATA, 0, 1, 1, 256, 2, 16, 0, self._position, 0, 0, 1)
        self._position += 256
        self.index.add(header, rows.tobytes(), memoryview(bytes(16)))
        for queue_id in (QUEUE, OTHER):
            for cell in (COMMITTED_END, NEXT_OFFSET):
                self.table.set(self.table.find(queue_id), cell, base_offset + RECORDS)

    def found(self, offset: int) -> list[int]:
        """The offsets at which the batches begin that the index has from one on."""
        return [entry.base_offset for entry in self.index.window(self.slot, offset)]

    def cells(self) -> list[int]:
        return [self.table.get(self.slot, cell) for cell in (COMMITTED_END, NEXT_OFFSET, LOG_START)]

    def give_back(self, end: int, *, goes_on: bool = False) -> None:
        asyncio.run(give_back(self.table, self.index, iter([StayLeft(QUEUE, end)]), lambda queue_id: goes_on))


def test_what_was_before_is_found_and_what_came_later_is_not() -> None:
    world = _Indexed(6)
    world.table.set(world.slot, LOG_START, 7)
    world.give_back(40)
    assert world.cells() == [40, 40, 7]
    assert world.found(20) == [20, 30], "both are in the index, and nothing behind"
    assert world.found(40) == []
    other = world.table.find(OTHER)
    assert world.table.get(other, COMMITTED_END) == 60
    assert [entry.base_offset for entry in world.index.window(other, 40)] == [40, 50]
    world.add(40)  # it is a guest again, and gets the log from its beginning
    assert world.found(20) == [20, 30, 40]


def test_long_queues_are_found_from_their_new_end_on() -> None:
    world = _Indexed(4 * SKIP_EVERY)
    end = 2 * SKIP_EVERY * RECORDS
    world.give_back(end)
    for number in range(2 * SKIP_EVERY, 5 * SKIP_EVERY):
        world.add(number * RECORDS)
    for first in (0, SKIP_EVERY, 2 * SKIP_EVERY - 1, 2 * SKIP_EVERY, 4 * SKIP_EVERY + 1):
        assert world.found(first * RECORDS)[0] == first * RECORDS


def test_nothing_remains_of_a_queue_without_a_stay_here() -> None:
    world = _Indexed(3)
    world.table.set(world.slot, LOG_START, 7)
    world.give_back(0)
    assert (world.cells(), world.found(0)) == ([0, 0, 0], [])


def test_a_log_start_behind_what_remains_leaves_nothing_of_it() -> None:
    world = _Indexed(6)
    world.table.set(world.slot, LOG_START, 55)
    world.give_back(40)
    assert world.cells() == [40, 40, 40]


def test_nothing_is_found_where_the_index_does_not_come_to_the_end_of_what_remains() -> None:
    """The batches right before are in files: what a snapshot stands for is never indexed."""
    world = _Indexed(0)
    world.add(50)
    world.give_back(40)
    assert (world.cells(), world.found(0)) == ([40, 40, 0], [])


def test_a_queue_that_goes_on_elsewhere_keeps_its_end_and_its_log_start() -> None:
    world = _Indexed(6)
    world.table.set(world.slot, LOG_START, 7)
    world.give_back(40, goes_on=True)
    assert (world.cells(), world.found(20)) == ([60, 60, 7], [20, 30])
