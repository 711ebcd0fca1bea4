"""Makes the rows of segments that have no index file yet from the blocks in memory, for readers of many queues.

A segment that is written to, or was sealed within the last second, is looked up batch by batch in memory's index. That
suits readers at the tail, mostly served from the write cache; a reader from far behind, or after a restart, wants all
of the segment. Its rows are made once, and again when a quarter more was written, so that all of this together costs a
few times the last making. Batches written since are looked up one by one.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from mainstem.kernel import RecentIndex
from mainstem.lru import Lru
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.journal.encoding.format import position_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_rows import in_segment, rows_of

AGAIN_SHARE = 4
"""Rows are made again when a fourth more was written…"""

AGAIN_BYTES_LEAST = 1 << 20
"""…and at least this much."""

SEGMENTS_MAX = 4
"""Segments whose rows are kept: the open one, and some that were sealed faster than they are indexed. 80 bytes a
batch."""


class _Made(NamedTuple):
    end: int
    """Journal position of its end when the rows were made."""
    extents: ExtentIndex


class UnsealedRows:
    """Keeps the rows of the unindexed segments of a journal."""

    def __init__(self, journal: Journal, index: RecentIndex) -> None:
        self._journal = journal
        self._index = index
        self._made: Lru[int, _Made] = Lru(SEGMENTS_MAX)
        self._makings: SingleFlight[int, _Made] = SingleFlight()

    async def extents(self, sequence: int) -> ExtentIndex:
        """The rows of a segment, except those that were written or committed a short while ago."""
        start = position_of(sequence, 0)
        end = min(self._journal.end, position_of(sequence + 1, 0))
        made = self._made.peek(sequence)
        if made is None or end - made.end >= max(AGAIN_BYTES_LEAST, (made.end - start) // AGAIN_SHARE):
            made = await self._makings.run(sequence, lambda: self._make(sequence, end))
        return made.extents

    def forget(self, sequence: int) -> None:
        """Drop the rows of a segment that has an index now."""
        self._made.pop(sequence)

    async def _make(self, sequence: int, end: int) -> _Made:
        blocks = in_segment(self._index, sequence, self._journal.dead)
        rows = await asyncio.to_thread(rows_of, blocks)
        made = _Made(end, ExtentIndex(rows, f"rows of segment {sequence}"))
        self._made.put(sequence, made)
        return made
