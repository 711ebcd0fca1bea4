"""One offset per queue, for many queues at a time; and work on the rows of large indexes beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds

Offsets = numpy.typing.NDArray[numpy.int64]

Result = TypeVar("Result")

ROWS_AT_ONCE_MAX = 8_192
"""Rows looked at in one turn of the event loop: about a millisecond."""


class OffsetsOfQueues:
    """It never changes."""

    def __init__(self, queue_ids: QueueIds, offsets: Offsets) -> None:
        """A queue may come more than once: then the largest offset counts."""
        order = numpy.lexsort((offsets, queue_ids))
        queue_ids, offsets = queue_ids[order], offsets[order]
        lasts = numpy.append(numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]), len(queue_ids) - 1)[: len(queue_ids)]
        self.queue_ids = queue_ids[lasts]
        """Each once, rising."""
        self.offsets = offsets[lasts]

    def of(self, queue_ids: QueueIds, missing: int = 0) -> Offsets:
        """The offsets of these queues, `missing` where there is none."""
        found = numpy.full(len(queue_ids), missing, numpy.int64)
        if len(self.queue_ids):
            places = numpy.minimum(self.queue_ids.searchsorted(queue_ids), len(self.queue_ids) - 1)
            same = self.queue_ids[places] == queue_ids
            found[same] = self.offsets[places[same]]
        return found

    def together(self, queue_ids: QueueIds, offsets: Offsets) -> OffsetsOfQueues:
        """These, and others."""
        return OffsetsOfQueues(
            numpy.concatenate((self.queue_ids, queue_ids)), numpy.concatenate((self.offsets, offsets))
        )


NO_OFFSETS = OffsetsOfQueues(numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.int64))


async def looked_at(rows: int, work: Callable[[], Result]) -> Result:
    """The result of work on so many rows, done in a thread if they are many."""
    return work() if rows <= ROWS_AT_ONCE_MAX else await asyncio.to_thread(work)
