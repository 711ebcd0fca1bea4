"""Sums how many bytes a queue, or a topic, holds on each disk. The cost depends on the rows of the indexes, not on the
number of queues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy

from mainstem.kernel import LOG_START, QueueTable, RecentIndex
from mainstem.model import PARTITION_BITS, QueueUsage, partition_of, queue_id_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_rows import all_rows
from mainstem.storage.queue_liveness import GONE, UNKNOWN
from mainstem.storage.queue_store.reading.stored_files import WriteGroupsAt
from mainstem.storage.queue_store.usage import topic_sums
from mainstem.storage.queue_store.usage.topic_sums import TopicSums

QUEUES_PER_TURN = 5_000
"""Queues answered in one turn of the event loop: about a millisecond."""

ROWS_PER_TURN = 20_000
"""Extents added up in one turn of the event loop: about two milliseconds if each is of another queue. The index of a
packed file may have a million."""

SHARES_PER_TURN = 500
"""Shares of segments made in one turn of the event loop: about a millisecond, as each is an object."""

NOTHING = QueueUsage(0, 0)
"""One object for all idle queues: a million objects would set the garbage collector off."""

Sums = TypeVar("Sums")


class SegmentShare(NamedTuple):
    """The bytes that a segment of the journal holds of one queue: live, split or given up."""

    sequence: int
    indexed: bool
    """Whether the segment's index is on disk; otherwise its rows are in memory."""
    batches: int
    bytes: int
    first_offset: int
    last_offset: int


class TellsStored(Protocol):
    """The bytes in store files."""

    def all_rows(self, groups_at: WriteGroupsAt) -> AsyncIterator[numpy.ndarray]:
        """Yield rows with `queue_id`, `length` (bytes of batches) and `last_offset`."""
        ...


class Usage:
    """Sums live bytes per queue over the journal and the queue store."""

    def __init__(
        self,
        table: QueueTable,
        index: RecentIndex,
        journal: Journal,
        stored: TellsStored,
        groups_at: WriteGroupsAt,
    ) -> None:
        self._groups_at = groups_at
        self._table = table
        self._index = index
        self._journal = journal
        self._stored = stored

    async def of(self, queue_ids: Sequence[int]) -> list[QueueUsage | None]:
        """Live bytes on disk 1 and on disk 2 per queue; None for an unknown one. A batch that is split and not
        yet pruned is counted on both."""
        parts = [numpy.zeros(0, numpy.uint64)]
        for first in range(0, len(queue_ids), QUEUES_PER_TURN):
            parts.append(numpy.array(queue_ids[first : first + QUEUES_PER_TURN], numpy.uint64))
            await asyncio.sleep(0)
        asked = numpy.concatenate(parts)
        ascending = bool((asked[1:] > asked[:-1]).all())  # as a caller that asks for all lists them: nothing to sort
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

    async def segments_of(self, topic_number: int) -> dict[int, list[SegmentShare]]:
        """The segments of the journal that hold batches of a topic, by partition, in offset order."""
        ids = numpy.array(
            [queue_id_of(topic_number, partition) for partition in (0, (1 << PARTITION_BITS) - 1)],
            numpy.uint64,
        )
        ready = {segment.sequence: segment.index_ready for segment in self._journal.segments()}
        found: dict[int, list[SegmentShare]] = defaultdict(list)
        async for sequence, rows in all_rows(self._journal, self._index):
            queues = rows["queue_id"]
            first, end = numpy.searchsorted(queues, ids[0]), numpy.searchsorted(queues, ids[1], "right")
            held, queues = rows[first:end], queues[first:end]
            if not len(held):
                continue
            starts = numpy.concatenate([[0], numpy.flatnonzero(queues[1:] != queues[:-1]) + 1])
            sums = numpy.add.reduceat(held["length"].astype(numpy.int64), starts)
            for at, (start, stop) in enumerate(zip(starts, [*starts[1:], len(held)], strict=True)):
                found[partition_of(int(queues[start]))].append(
                    SegmentShare(
                        sequence,
                        ready.get(sequence, False),
                        int(stop - start),
                        int(sums[at]),
                        int(held["base_offset"][start]),
                        int(held["last_offset"][stop - 1]),
                    )
                )
                if at % SHARES_PER_TURN == 0:
                    await asyncio.sleep(0)
        return found

    async def journal_of_topics(self) -> TopicSums:
        """Segments and bytes of batches in the journal per topic, live or not, split or not."""
        parts: list[TopicSums] = []
        async for _sequence, rows in all_rows(self._journal, self._index):
            parts.append(await asyncio.to_thread(topic_sums.of_rows, rows))
        return await asyncio.to_thread(topic_sums.together, parts)

    async def of_topics(self) -> dict[int, QueueUsage]:
        """Live bytes on disk 1 and on disk 2 per topic number, for all topics that hold any."""
        unsplit: dict[int, int] = defaultdict(int)
        stored: dict[int, int] = defaultdict(int)
        async for sums, rows in self._live_rows(unsplit, stored):
            topics, which = numpy.unique(rows["queue_id"] >> numpy.uint64(PARTITION_BITS), return_inverse=True)
            sizes = numpy.bincount(which, rows["length"], len(topics)).astype(numpy.int64)
            for topic, size in zip(topics.tolist(), sizes.tolist(), strict=True):
                sums[topic] += size
        return {topic: QueueUsage(unsplit[topic], stored[topic]) for topic in unsplit.keys() | stored.keys()}

    async def _live_rows(self, unsplit: Sums, stored: Sums) -> AsyncIterator[tuple[Sums, numpy.ndarray]]:
        """Yield the rows of all live batches, some at a time, with the sums they go into: `unsplit` or `stored`."""
        async for _sequence, rows in all_rows(self._journal, self._index):
            async for live in self._live(rows):
                yield unsplit, live
        async for rows in self._stored.all_rows(self._groups_at):
            async for live in self._live(rows):
                yield stored, live

    async def _live(self, rows: numpy.ndarray) -> AsyncIterator[numpy.ndarray]:
        for first in range(0, len(rows), ROWS_PER_TURN):
            part = rows[first : first + ROWS_PER_TURN]
            yield part[part["last_offset"] >= self._table.column(part["queue_id"], LOG_START, GONE)]
            if first + ROWS_PER_TURN < len(rows):
                await asyncio.sleep(0)
