"""How many bytes a queue holds on each disk."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from mainstem.kernel import LOG_START, QueueTable, UnsplitIndex
from mainstem.model import QueueUsage
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal_rows import all_rows
from mainstem.storage.liveness import GONE
from mainstem.storage.queue_store.store import GroupsOf, QueueStore


class Usage:
    """Sums live bytes per queue over the journal and the queue store."""

    def __init__(
        self,
        table: QueueTable,
        index: UnsplitIndex,
        journal: Journal,
        store: QueueStore,
        groups_of: GroupsOf,
    ) -> None:
        self._groups_of = groups_of
        self._table = table
        self._index = index
        self._journal = journal
        self._store = store

    async def of(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        """Live bytes on disk 1 and on disk 2 per queue; None for an unknown one. A batch that is split and not
        yet pruned is counted on both."""
        wanted = numpy.array(sorted(set(queue_ids)), numpy.uint64)
        journal = numpy.zeros(len(wanted), numpy.int64)
        async for _sequence, rows in all_rows(self._journal, self._index):
            self._add(journal, wanted, rows)
        stored = numpy.zeros(len(wanted), numpy.int64)
        async for rows in self._store.all_rows(self._groups_of):
            self._add(stored, wanted, rows)
        starts = self._table.column(wanted, LOG_START, -1)
        place = {int(queue_id): position for position, queue_id in enumerate(wanted)}
        return [
            QueueUsage(int(journal[place[queue_id]]), int(stored[place[queue_id]]))
            if starts[place[queue_id]] >= 0
            else None
            for queue_id in queue_ids
        ]

    def _add(self, sums: numpy.ndarray, wanted: numpy.ndarray, rows: numpy.ndarray) -> None:
        if not len(wanted) or not len(rows):
            return
        at = numpy.minimum(numpy.searchsorted(wanted, rows["queue_id"]), len(wanted) - 1)
        starts = self._table.column(wanted, LOG_START, GONE)
        live = (wanted[at] == rows["queue_id"]) & (rows["last_offset"] >= starts[at])
        sums += numpy.bincount(at[live], rows["length"][live], len(wanted)).astype(numpy.int64)
