"""How far extents lie behind their queues' log starts, of few and of many."""

from __future__ import annotations

import asyncio

import numpy
import pytest

from mainstem.kernel import LOG_START, QueueTable
from mainstem.model import SLOTS, queue_id_of, slot_of
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import GONE, ROWS_PER_TURN, QueueLiveness


@pytest.mark.parametrize("count", [0, 1, ROWS_PER_TURN, 2 * ROWS_PER_TURN + 5])
def test_margins_are_those_of_each_extent_and_leave_the_loop_its_turns(count: int) -> None:
    table = QueueTable()
    table.create(1, 0, 7)
    for partition in range(7):
        table.set(table.find(queue_id_of(1, partition)), LOG_START, 10 * partition)
    rows = numpy.zeros(count, EXTENT_ROW)
    places = numpy.arange(count)
    rows["queue_id"] = (places % 9 + queue_id_of(1, 0)).astype(numpy.uint64)  # two of nine are unknown here
    rows["last_offset"] = places % 71
    rows["queue_id"][places % 100 == 99] = queue_id_of(2, 0)  # deleted
    turns = 0

    async def beside() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def story() -> list[int]:
        other = asyncio.create_task(beside())
        found = await QueueLiveness(table, lambda number: number == 2).margins(rows)
        other.cancel()
        result: list[int] = found.tolist()
        return result

    expected = []
    for place in range(count):
        start = 10 * (place % 9) if place % 9 < 7 else 0
        expected.append(-1 if place % 100 == 99 or place % 71 < start else place % 71 - start)
    assert asyncio.run(story()) == expected
    assert turns >= count // ROWS_PER_TURN - (count % ROWS_PER_TURN == 0)


def test_queues_that_went_to_other_nodes_are_gone_once_nothing_of_them_is_anywhere_else() -> None:
    here, away, queue, still = 0, 1, queue_id_of(1, 0), queue_id_of(1, 1)
    table = QueueTable()
    table.create(1, 0, 2)
    slots = [here] * SLOTS
    slots[slot_of(queue)] = away
    placement = Placement(slots)
    parts = {here}
    liveness = QueueLiveness(table, lambda number: False, placement, is_here=lambda group: group in parts)

    def starts() -> list[int]:
        found: list[int] = liveness.log_starts(numpy.array([queue, still], numpy.uint64)).tolist()
        return found

    placement.grow(slots, 2, {slot_of(queue): 1}, {slot_of(queue): [here]})
    assert starts() == [0, 0], "the nodes that it went to may need what is here"
    placement.grow(slots, 2, {slot_of(queue): 1})
    assert starts() == [GONE, 0]
    placement.place(slot_of(queue), here, 2)
    assert starts() == [0, 0], "a log says that it is back, of which the metadata has yet to tell"
    placement.grow(slots, 2, {slot_of(queue): 3})
    assert starts() == [GONE, 0]
    parts.add(away)
    assert starts() == [0, 0]


def test_a_queue_in_a_write_group_that_left_is_not_gone_while_another_here_has_an_earlier_part_of_it() -> None:
    here, left, queue, never_here = 0, 1, queue_id_of(1, 0), queue_id_of(1, 1)
    table = QueueTable()
    table.create(1, 0, 2)
    slots = [here] * SLOTS
    slots[slot_of(queue)] = slots[slot_of(never_here)] = left
    placement = Placement(slots)
    placement.grow(slots, 2, {slot_of(queue): 1}, {slot_of(queue): [here]})
    liveness = QueueLiveness(
        table,
        lambda number: False,
        placement,
        has_left=lambda group: group == left,
        is_here=lambda group: group == here,
    )
    placement.arrive(queue, here, left, 10)
    assert liveness.log_starts(numpy.array([queue, never_here], numpy.uint64)).tolist() == [0, GONE]
    placement.grow(slots, 2, {slot_of(queue): 1})
    assert liveness.log_starts(numpy.array([queue, never_here], numpy.uint64)).tolist() == [GONE, GONE]
