"""Reads the queues of one write group from the node's queue table for a snapshot, and replaces them by a snapshot's.

Both work piece by piece, a turn of the event loop each, so that a million queues hold the loop for less than a
millisecond at a time. The pieces are then of different ages; `queue_image` explains why that does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from itertools import pairwise

import numpy
import numpy.typing

from mainstem.kernel import (
    CHUNK_SLOTS,
    COMMITTED_END,
    ENTRIES,
    FIRST_UNSTABLE,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    QUEUE_ID,
    SKIP_LINK,
    TAIL_LINK,
    WATCHED,
    QueueTable,
)
from mainstem.model import PARTITION_BITS, slot_of
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.placement import Placement
from mainstem.storage.placement import slots_of as slots_in
from mainstem.storage.state.queue_image import (
    QUEUE_CELLS,
    RANGE_CELLS,
    SLOTS_PER_TURN,
    TOPICS_PER_TURN,
    Cells,
    ranges_of,
    slots_of,
)
from mainstem.storage.state.queue_scan import chunks

Belongs = Callable[[QueueIds], numpy.typing.NDArray[numpy.bool_]]
"""Tells which of these queues belong to the write group."""

Later = Callable[[], Collection[int]]
"""The slots that came to the write group later than what is told of it. They are asked for in each turn, as slots come
between two."""

ROWS_PER_TURN = 1024
"""Queues placed between two turns: at worst each is of another topic, which costs a look-up."""

STATE_CELLS = (COMMITTED_END, NEXT_OFFSET, LOG_START, TAIL_LINK, SKIP_LINK, FIRST_UNSTABLE)


async def topics(table: QueueTable) -> AsyncIterator[bytes]:
    """Yield the ranges of all topics, in pieces of rows of `RANGE_CELLS`."""
    numbers = table.topics()
    for first in range(0, len(numbers), TOPICS_PER_TURN):
        yield ranges_of(table, numbers[first : first + TOPICS_PER_TURN]).tobytes()
        await asyncio.sleep(0)


async def rows(table: QueueTable, belongs: Belongs) -> AsyncIterator[bytes]:
    """Yield the write group's queues that ever held a batch, in pieces of rows of `QUEUE_CELLS`."""
    for chunk in chunks(table):
        for first in range(0, len(chunk), SLOTS_PER_TURN):
            slots = chunk[first : first + SLOTS_PER_TURN]
            held = numpy.flatnonzero(slots[:, COMMITTED_END] | slots[:, LOG_START])
            held = held[belongs(slots[held, QUEUE_ID].astype(numpy.uint64))]
            if len(held):
                yield slots[held][:, [QUEUE_ID, COMMITTED_END, LOG_START]].tobytes()
            await asyncio.sleep(0)


def in_group(placement: Placement, group: int, later: Later = frozenset) -> Belongs:
    """Tells which queues are in a write group, by the logs here, but for those of the slots that came `later`."""

    def belongs(queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.bool_]:
        but = numpy.array(sorted(later()), numpy.intp)
        found: numpy.typing.NDArray[numpy.bool_] = placement.groups_of(queue_ids) == group
        return found & ~numpy.isin(slots_in(queue_ids), but) if len(but) else found

    return belongs


def only_in_group(placement: Placement, group: int) -> Belongs:
    """Tells which queues are in a write group, and were in no other before, by the logs here."""
    in_this = in_group(placement, group)

    def belongs(queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.bool_]:
        moved = numpy.fromiter(placement.moved, numpy.uint64, len(placement.moved))
        return in_this(queue_ids) & ~numpy.isin(queue_ids, moved)

    return belongs


async def rows_left(
    table: QueueTable, placement: Placement, group: int, later: Later = frozenset
) -> AsyncIterator[bytes]:
    """Yield the queues that were in a write group and have gone on, with their ends there, in pieces as `rows`, but for
    those of the slots that came `later`."""
    gone: list[tuple[numpy.int64, int, int]] = []
    for queue_id, end in _ends_left(placement, group, later()).items():
        slot = table.find(queue_id)
        if slot != NO_SLOT:
            gone.append((numpy.uint64(queue_id).astype(numpy.int64), end, min(table.get(slot, LOG_START), end)))
    for first in range(0, len(gone), SLOTS_PER_TURN):
        yield numpy.array(gone[first : first + SLOTS_PER_TURN], numpy.int64).tobytes()
        await asyncio.sleep(0)


def _ends_left(placement: Placement, group: int, later: Collection[int]) -> dict[int, int]:
    """The ends in a write group of the queues that have gone on from there."""
    found: dict[int, int] = {}
    for queue_id, stays in placement.moved.items():
        ends = [after.first_offset for stay, after in pairwise(stays) if stay.group == group]
        if ends and stays[-1].group != group and slot_of(queue_id) not in later:
            found[queue_id] = ends[-1]
    return found


async def log_starts_left(
    table: QueueTable, placement: Placement, group: int, slots: Collection[int], later: Later
) -> AsyncIterator[bytes]:
    """Yield the log starts of the other queues of slots that have left a write group at some time, in pieces as `rows`,
    and no ends behind them. Nothing else may tell who gets the snapshot how far records were deleted of a queue that
    has nothing left of its time there, or has returned only behind the snapshot's block."""
    if not slots:
        return
    wanted, belongs = numpy.array(sorted(slots), numpy.intp), in_group(placement, group, later)
    told = numpy.array(sorted(_ends_left(placement, group, later())), numpy.uint64)
    for chunk in chunks(table):
        for first in range(0, len(chunk), SLOTS_PER_TURN):
            cells = chunk[first : first + SLOTS_PER_TURN]
            begun = numpy.flatnonzero(cells[:, LOG_START])
            queue_ids = cells[begun, QUEUE_ID].astype(numpy.uint64)
            others = numpy.isin(slots_in(queue_ids), wanted) & ~belongs(queue_ids) & ~numpy.isin(queue_ids, told)
            begun = begun[others]
            if len(begun):
                yield cells[begun][:, [QUEUE_ID, LOG_START, LOG_START]].tobytes()
            await asyncio.sleep(0)


async def create(table: QueueTable, ranges: bytes, was_deleted: Callable[[int], bool]) -> set[int]:
    """Create the queues of these ranges, unless their topics are known to be deleted. Returns the numbers of all topics
    in the ranges."""
    numbers: set[int] = set()
    cells = _rows_of(ranges, RANGE_CELLS)
    for first in range(0, len(cells), TOPICS_PER_TURN):
        for topic_number, first_partition, count in cells[first : first + TOPICS_PER_TURN].tolist():
            numbers.add(topic_number)
            if not was_deleted(topic_number):
                table.create(topic_number, first_partition, count)
        await asyncio.sleep(0)
    return numbers


async def replace(table: QueueTable, belongs: Belongs, queues: bytes) -> None:
    """Set the write group's queues to these rows, and queues without a row to empty. Their entries in the index in
    memory are not found any more. Rows of queues that do not exist are skipped. A queue in several write groups must
    not be among those that belong: it keeps its entries, and what its row has less than the table changes nothing."""
    for chunk in chunks(table):
        for first in range(0, len(chunk), SLOTS_PER_TURN):
            slots = chunk[first : first + SLOTS_PER_TURN]
            used = numpy.flatnonzero(slots[:, STATE_CELLS].any(axis=1))
            used = used[belongs(slots[used, QUEUE_ID].astype(numpy.uint64))]
            slots[used[:, None], STATE_CELLS] = 0
            slots[used, ENTRIES] &= WATCHED  # whoever waits goes on waiting
            await asyncio.sleep(0)
    cells = _rows_of(queues, QUEUE_CELLS)
    for first in range(0, len(cells), ROWS_PER_TURN):
        _place(table, cells[first : first + ROWS_PER_TURN])
        await asyncio.sleep(0)


def _place(table: QueueTable, cells: Cells) -> None:
    queue_ids = cells[:, 0].astype(numpy.uint64)
    numbers = numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS)).tolist()
    slots = slots_of(table, numbers, cells[:, 0])
    cells, slots = cells[slots >= 0], slots[slots >= 0]
    numbers_of_chunks = slots // CHUNK_SLOTS
    for number, chunk in enumerate(chunks(table)):
        here = numbers_of_chunks == number
        if here.any():
            places = slots[here] % CHUNK_SLOTS
            for cell, told in ((COMMITTED_END, 1), (NEXT_OFFSET, 1), (LOG_START, 2)):
                # what a row has less than the table is of a queue that has gone on, and may be led here
                numpy.maximum.at(chunk[:, cell], places, cells[here, told])


def _rows_of(content: bytes, cells: int) -> Cells:
    return numpy.frombuffer(content, numpy.int64).reshape(-1, cells)
