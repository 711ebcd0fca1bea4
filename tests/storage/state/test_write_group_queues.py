"""The queues of a write group are replaced by those of a snapshot."""

from __future__ import annotations

import asyncio

import numpy

from mainstem.kernel import COMMITTED_END, ENTRIES, LOG_START, NEXT_OFFSET, QUEUE_ID, TAIL_LINK, WATCHED, QueueTable
from mainstem.kernel.layout import ONE_ENTRY
from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.storage.placement import Placement
from mainstem.storage.state import write_group_queues

HERE, ELSEWHERE = queue_id_of(1, 0), queue_id_of(1, 1)


def test_a_snapshot_replaces_what_is_known_of_a_queue_and_those_who_wait_for_it_go_on_waiting() -> None:
    table = QueueTable()
    table.create(1, 0, 2)
    for queue_id in (HERE, ELSEWHERE):
        slot = table.find(queue_id)
        table.set(slot, COMMITTED_END, 9)
        table.set(slot, TAIL_LINK, 77)
        table.set(slot, ENTRIES, 5 * ONE_ENTRY | WATCHED)
        table.set_first_unstable(slot, 3)
    row = numpy.array([HERE, 20, 11], numpy.int64).tobytes()
    asyncio.run(write_group_queues.replace(table, lambda queue_ids: queue_ids == HERE, row))

    cells = (QUEUE_ID, COMMITTED_END, LOG_START, TAIL_LINK, ENTRIES)
    replaced, left = table.find(HERE), table.find(ELSEWHERE)
    assert [table.get(replaced, cell) for cell in cells] == [HERE, 20, 11, 0, WATCHED]
    assert table.last_stable(replaced) == 20, "the row of a snapshot names no open transaction"
    assert [table.get(left, cell) for cell in cells] == [ELSEWHERE, 9, 0, 77, 5 * ONE_ENTRY | WATCHED]
    assert table.last_stable(left) == 3


def test_the_row_of_a_queue_that_has_gone_on_takes_nothing_back() -> None:
    """It is led here in another write group, where batches are appended that nobody has committed."""
    table = QueueTable()
    table.create(1, 0, 1)
    slot = table.find(HERE)
    for cell, value in ((COMMITTED_END, 30), (NEXT_OFFSET, 34), (LOG_START, 5)):
        table.set(slot, cell, value)
    row = numpy.array([HERE, 20, 3], numpy.int64).tobytes()
    asyncio.run(write_group_queues.replace(table, lambda queue_ids: queue_ids < 0, row))
    assert [table.get(slot, cell) for cell in (COMMITTED_END, NEXT_OFFSET, LOG_START)] == [30, 34, 5]


def test_log_starts_are_told_of_queues_that_left_with_nothing_behind() -> None:
    """HERE has left the first write group, and nothing is there of it any more; ELSEWHERE has never been there."""
    table, first, second = QueueTable(), 0, 1
    table.create(1, 0, 3)
    back = queue_id_of(1, 2)
    placement = Placement([second if slot in map(slot_of, (HERE, ELSEWHERE)) else first for slot in range(SLOTS)])
    for queue_id in (HERE, ELSEWHERE, back):
        table.set(table.find(queue_id), COMMITTED_END, 20)
        table.set(table.find(queue_id), LOG_START, 11)
    left = {slot_of(HERE), slot_of(back)}
    assert len(left | {slot_of(ELSEWHERE)}) == 3

    async def told(later: set[int]) -> list[list[int]]:
        rows = write_group_queues.log_starts_left(table, placement, first, left, lambda: later)
        pieces = [piece async for piece in rows]
        return numpy.frombuffer(b"".join(pieces), numpy.int64).reshape(-1, 3).tolist()

    assert asyncio.run(told(set())) == [[HERE, 11, 11]], "the other one is told with its end"
    assert asyncio.run(told({slot_of(back)})) == [[HERE, 11, 11], [back, 11, 11]], "it has returned behind that block"
    left.clear()
    assert asyncio.run(told(set())) == []


def test_of_several_rows_of_a_queue_the_largest_counts() -> None:
    table = QueueTable()
    table.create(1, 0, 1)
    rows = numpy.array([[HERE, 20, 3], [HERE, 5, 5]], numpy.int64).tobytes()
    asyncio.run(write_group_queues.replace(table, lambda queue_ids: queue_ids == HERE, rows))
    assert [table.get(table.find(HERE), cell) for cell in (COMMITTED_END, NEXT_OFFSET, LOG_START)] == [20, 20, 5]
