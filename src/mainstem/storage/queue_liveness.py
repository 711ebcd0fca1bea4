"""Decides which data may be removed: batches before a queue's log start, of topics known to be deleted, and of write
groups that have left this node.

A queue that this node merely has no record of is alive: missing metadata never deletes data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy
import numpy.typing

from mainstem.kernel import LOG_START, QueueTable
from mainstem.model import PARTITION_BITS
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.placement import Placement

GONE = int(numpy.iinfo(numpy.int64).max)
"""The log start of a deleted queue: everything lies before it."""

UNKNOWN = -1

ROWS_PER_TURN = 16_384
"""Queues whose log starts are looked up in one turn of the event loop: some milliseconds if all their topics were
deleted."""


class QueueLiveness:
    """Gives the log starts by which readers of indexes tell dead batches from live ones."""

    def __init__(
        self,
        table: QueueTable,
        was_deleted: Callable[[int], bool],
        placement: Placement | None = None,
        has_left: Callable[[int], bool] = lambda group: False,
        is_here: Callable[[int], bool] = lambda group: True,
    ) -> None:
        """`has_left`: whether a write group had a replica here that is known to have left; `is_here`: whether this node
        has a part in a write group."""
        self._table = table
        self._was_deleted = was_deleted
        self._placement = placement
        self._has_left = has_left
        self._is_here = is_here

    def log_starts(self, queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.int64]:
        """Per queue id its log start, 0 for unknown queues. `GONE`: its topic is deleted; or its write group left, and
        no other one here has been its own; or it has moved to other nodes with all it had."""
        starts = self._table.column(queue_ids, LOG_START, UNKNOWN)
        unknown = numpy.flatnonzero(starts == UNKNOWN)
        if len(unknown):
            topics, which = numpy.unique(queue_ids[unknown] >> numpy.uint64(PARTITION_BITS), return_inverse=True)
            of_topics = [GONE if self._was_deleted(topic) else 0 for topic in topics.tolist()]
            starts[unknown] = numpy.array(of_topics, numpy.int64)[which]
        placement = self._placement
        left = [group for group in range(placement.groups) if self._has_left(group)] if placement is not None else []
        if placement is not None and left:
            here = [group for group in range(placement.groups) if self._is_here(group)]
            gone = numpy.isin(placement.groups_of(queue_ids), left)
            starts[gone & ~placement.ever_in(queue_ids, here)] = GONE
        if placement is not None:
            starts[placement.gone_elsewhere(queue_ids, self._is_here)] = GONE
        return starts

    async def margins(self, rows: Rows) -> numpy.typing.NDArray[numpy.int64]:
        """Per extent, by how many offsets its last one lies behind its queue's log start; -1: it is dead."""
        queue_ids = numpy.ascontiguousarray(rows["queue_id"])
        last_offsets: numpy.typing.NDArray[numpy.int64] = numpy.ascontiguousarray(rows["last_offset"])
        found = numpy.empty(len(rows), numpy.int64)
        for first in range(0, len(rows), ROWS_PER_TURN):
            part = slice(first, first + ROWS_PER_TURN)
            starts = self.log_starts(queue_ids[part])
            found[part] = last_offsets[part] - numpy.minimum(starts, last_offsets[part] + 1)
            if first + ROWS_PER_TURN < len(rows):
                await asyncio.sleep(0)
        return found
