"""Reads the whole queue table chunk by chunk: at a million queues some 16 chunks, each less than a millisecond.

Questions about all queues at once (which have data, which may lose some) are answered here with arrays over the slots,
so that neither topics nor idle queues have a cost of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import CELLS, CHUNK_SLOTS, COMMITTED_END, LOG_START, QUEUE_ID, QueueTable
from mainstem.model import PARTITION_BITS
from mainstem.storage.extents.extent_index import QueueIds

Cells = numpy.typing.NDArray[numpy.int64]
"""Two-dimensional: one row of `CELLS` per slot."""


class LiveQueues(NamedTuple):
    """Queues that hold batches, ascending by id, their log starts and high watermarks."""

    queue_ids: QueueIds
    log_starts: numpy.typing.NDArray[numpy.int64]
    high_watermarks: numpy.typing.NDArray[numpy.int64]


def chunks(table: QueueTable) -> Iterator[Cells]:
    """All slots of a table in place, chunk by chunk; slots in use bear their queue's id, free ones zeros."""
    for number in count():
        try:
            cells, _first = table.cells(number * CHUNK_SLOTS)
        except IndexError:
            return
        yield numpy.frombuffer(cells, numpy.int64).reshape(-1, CELLS)


async def live_queues(table: QueueTable) -> LiveQueues:
    """The queues whose log start lies before their high watermark; a chunk per turn of the event loop."""
    found = [numpy.zeros((0, 3), numpy.int64)]
    for slots in chunks(table):
        live = numpy.flatnonzero(slots[:, COMMITTED_END] > slots[:, LOG_START])
        found.append(slots[live][:, [QUEUE_ID, LOG_START, COMMITTED_END]])
        await asyncio.sleep(0)
    return await asyncio.to_thread(_sorted, found)


def _sorted(found: list[Cells]) -> LiveQueues:
    """Sort the queues found; called beside the event loop, since a million take a tenth of a second."""
    rows = numpy.concatenate(found)
    queue_ids = rows[:, 0].astype(numpy.uint64)
    order = numpy.argsort(queue_ids)
    return LiveQueues(queue_ids[order], rows[order, 1], rows[order, 2])


async def topics_with_data(table: QueueTable) -> set[int]:
    """Numbers of the topics of which any queue ever held a record; a chunk per turn of the event loop."""
    topics: set[int] = set()
    for slots in chunks(table):
        held = slots[slots[:, COMMITTED_END] > 0, QUEUE_ID].astype(numpy.uint64)
        topics.update(numpy.unique(held >> numpy.uint64(PARTITION_BITS)).tolist())
        await asyncio.sleep(0)
    return topics
