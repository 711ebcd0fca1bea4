"""The queues of a node as a checkpoint keeps them: the ranges that exist, and a row for each queue that ever held a
batch. Idle queues cost only their range.

Strategy: an image is taken a piece per turn of the event loop, while blocks go on being applied in between, so that a
million queues hold the loop for less than a millisecond at a time. Its pieces are therefore of different ages, none
older than the position the checkpoint states. That does no harm, because a start applies every block behind that
position again, and applying a block to a queue twice changes nothing: the high watermark is set to where the block
ends, log starts only move up, a range that exists is left alone. Two things follow. The journal must be synced up to
the youngest piece before the image is saved. And a row whose queue is in no range (it came or went in between) is left
out when the image is put back: the later blocks create or delete that queue.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import (
    CHUNK_SLOTS,
    COMMITTED_END,
    LOG_START,
    NEXT_OFFSET,
    QUEUE_ID,
    QueueTable,
)
from mainstem.model import queue_id_of
from mainstem.storage.state.queue_scan import chunks

Cells = numpy.typing.NDArray[numpy.int64]
"""Two-dimensional: one row per range or queue."""

RANGE_CELLS = 3
"""Topic number, first partition, count."""
QUEUE_CELLS = 3
"""Queue id, high watermark, log start."""

TOPICS_PER_TURN = 1000
"""Topics whose ranges are listed in one turn of the event loop: about a millisecond."""


SLOTS_PER_TURN = CHUNK_SLOTS // 4
"""Slots copied in one turn of the event loop: less than a millisecond."""


class QueueImage(NamedTuple):
    """Little-endian i64, one after the other, in pieces: `RANGE_CELLS` a range, `QUEUE_CELLS` a queue."""

    ranges: list[bytes]
    queues: list[bytes]


async def take(table: QueueTable) -> QueueImage:
    """The image of a table, taken in pieces. Every block applied before the call is part of it."""
    ranges: list[bytes] = []
    topics = table.topics()
    for first in range(0, len(topics), TOPICS_PER_TURN):
        ranges.append(ranges_of(table, topics[first : first + TOPICS_PER_TURN]).tobytes())
        await asyncio.sleep(0)
    queues: list[bytes] = []
    for chunk in chunks(table):
        for first in range(0, len(chunk), SLOTS_PER_TURN):
            queues.append(_held_in(chunk[first : first + SLOTS_PER_TURN]).tobytes())
            await asyncio.sleep(0)
    return QueueImage(ranges, [piece for piece in queues if piece])


def _held_in(slots: Cells) -> Cells:
    held = numpy.flatnonzero(slots[:, COMMITTED_END] | slots[:, LOG_START])
    rows = numpy.empty((len(held), QUEUE_CELLS), numpy.int64)
    for place, cell in enumerate((QUEUE_ID, COMMITTED_END, LOG_START)):
        rows[:, place] = slots[held, cell]
    return rows


def put_back(table: QueueTable, ranges: bytes, queues: bytes) -> None:
    """Fill an empty table from the pieces of an image, joined."""
    topics = numpy.frombuffer(ranges, numpy.int64).reshape(-1, RANGE_CELLS)
    for topic_number, first_partition, partitions in topics.tolist():
        table.create(topic_number, first_partition, partitions)
    rows = numpy.frombuffer(queues, numpy.int64).reshape(-1, QUEUE_CELLS)
    if not len(rows):
        return
    slots = slots_of(table, numpy.unique(topics[:, 0]).tolist(), rows[:, 0])
    rows, slots = rows[slots >= 0], slots[slots >= 0]
    order = numpy.argsort(slots)
    rows, slots = rows[order], slots[order]
    for number, chunk in enumerate(chunks(table)):
        first, end = numpy.searchsorted(slots, [number * CHUNK_SLOTS, (number + 1) * CHUNK_SLOTS])
        places = slots[first:end] - number * CHUNK_SLOTS
        chunk[places, NEXT_OFFSET] = chunk[places, COMMITTED_END] = rows[first:end, 1]
        chunk[places, LOG_START] = rows[first:end, 2]


def ranges_of(table: QueueTable, topics: list[int]) -> Cells:
    """A row of `RANGE_CELLS` per range of these topics."""
    ranges = [(topic, entry.first_partition, entry.count) for topic in topics for entry in table.ranges(topic)]
    return numpy.array(ranges, numpy.int64).reshape(-1, RANGE_CELLS)


def slots_of(
    table: QueueTable, topics: list[int], queue_ids: numpy.typing.NDArray[numpy.int64]
) -> numpy.typing.NDArray[numpy.int64]:
    """The slot of each queue, -1 where there is none."""
    spans = numpy.array(
        [
            (queue_id_of(topic, entry.first_partition), entry.count, entry.first_slot)
            for topic in topics
            for entry in table.ranges(topic)
        ],
        numpy.int64,
    ).reshape(-1, 3)
    if not len(spans):
        return numpy.full(len(queue_ids), -1)
    places = numpy.maximum(numpy.searchsorted(spans[:, 0], queue_ids, side="right") - 1, 0)
    distances = queue_ids - spans[places, 0]
    inside = (distances >= 0) & (distances < spans[places, 1])
    return numpy.where(inside, spans[places, 2] + distances, -1)
