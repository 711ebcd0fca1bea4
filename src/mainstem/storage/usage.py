"""How many bytes a queue, or a topic, holds on each disk. What this costs hangs on the rows of the indexes, not on
how many queues there are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import numpy

from mainstem.kernel import LOG_START, QueueTable, UnsplitIndex
from mainstem.model import PARTITION_BITS, QueueUsage
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal_rows import all_rows
from mainstem.storage.liveness import GONE, UNKNOWN
from mainstem.storage.queue_store.store import GroupsOf, QueueStore

QUEUES_PER_TURN = 5_000
"""Answered between two turns of the event loop: about a millisecond."""

NOTHING = QueueUsage(0, 0)
"""Shared by all idle queues: a million objects would bring the garbage collector in."""

Sums = TypeVar("Sums")


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
        parts = [numpy.zeros(0, numpy.uint64)]
        for first in range(0, len(queue_ids), QUEUES_PER_TURN):
            parts.append(numpy.array(queue_ids[first : first + QUEUES_PER_TURN], numpy.uint64))
            await asyncio.sleep(0)
        asked = numpy.concatenate(parts)
        ascending = bool((asked[1:] > asked[:-1]).all())  # as whoever asks for all lists them: nothing to sort
        wanted = asked if ascending else numpy.unique(asked)
        unsplit, stored = numpy.zeros(len(wanted), numpy.int64), numpy.zeros(len(wanted), numpy.int64)
        async for sums, rows in self._live_rows(unsplit, stored):
            if len(wanted):
                places = numpy.minimum(numpy.searchsorted(wanted, rows["queue_id"]), len(wanted) - 1)
                found = wanted[places] == rows["queue_id"]
                numpy.add.at(sums, places[found], rows["length"][found].astype(numpy.int64))
        usages: list[QueueUsage | None] = []
        for first in range(0, len(asked), QUEUES_PER_TURN):
            part = asked[first : first + QUEUES_PER_TURN]
            places = numpy.searchsorted(wanted, part)
            known = (self._table.column(part, LOG_START, UNKNOWN) != UNKNOWN).tolist()
            sizes = zip(known, unsplit[places].tolist(), stored[places].tolist(), strict=True)
            usages += [
                (QueueUsage(journal, store) if journal or store else NOTHING) if exists else None
                for exists, journal, store in sizes
            ]
            await asyncio.sleep(0)
        return usages

    async def of_topics(self) -> dict[int, QueueUsage]:
        """The same per topic number, of all topics that hold anything."""
        unsplit: dict[int, int] = defaultdict(int)
        stored: dict[int, int] = defaultdict(int)
        async for sums, rows in self._live_rows(unsplit, stored):
            topics, which = numpy.unique(rows["queue_id"] >> numpy.uint64(PARTITION_BITS), return_inverse=True)
            sizes = numpy.bincount(which, rows["length"], len(topics)).astype(numpy.int64)
            for topic, size in zip(topics.tolist(), sizes.tolist(), strict=True):
                sums[topic] += size
        return {topic: QueueUsage(unsplit[topic], stored[topic]) for topic in unsplit.keys() | stored.keys()}

    async def _live_rows(self, unsplit: Sums, stored: Sums) -> AsyncIterator[tuple[Sums, numpy.ndarray]]:
        """The rows of everything that is live, with what they are to be added to: `unsplit` or `stored`."""
        async for _sequence, rows in all_rows(self._journal, self._index):
            yield unsplit, self._live(rows)
        async for rows in self._store.all_rows(self._groups_of):
            yield stored, self._live(rows)

    def _live(self, rows: numpy.ndarray) -> numpy.ndarray:
        return rows[rows["last_offset"] >= self._table.column(rows["queue_id"], LOG_START, GONE)]
