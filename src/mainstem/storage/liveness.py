"""Which data may go: what lies before a queue's log start, and what belonged to a topic known to be deleted.

A queue that this node merely has no record of is alive: missing metadata never deletes data.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy
import numpy.typing

from mainstem.kernel import LOG_START, QueueTable
from mainstem.model import PARTITION_BITS
from mainstem.storage.queue_store.extent_index import QueueIds

GONE = int(numpy.iinfo(numpy.int64).max)
"""The log start of a deleted queue: everything lies before it."""

UNKNOWN = -1


class Liveness:
    """Log starts for deciding what is dead."""

    def __init__(self, table: QueueTable, was_deleted: Callable[[int], bool]) -> None:
        self._table = table
        self._was_deleted = was_deleted

    def log_starts(self, queue_ids: QueueIds) -> numpy.typing.NDArray[numpy.int64]:
        """Per queue id its log start; `GONE` for queues of deleted topics, 0 for those nobody knows."""
        starts = self._table.column(queue_ids, LOG_START, UNKNOWN)
        unknown = numpy.flatnonzero(starts == UNKNOWN)
        topics = (queue_ids[unknown] >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64)
        for topic in numpy.unique(topics).tolist():
            starts[unknown[topics == topic]] = GONE if self._was_deleted(topic) else 0
        return starts
