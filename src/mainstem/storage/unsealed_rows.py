"""The rows of segments that have no index file yet, for readers of many queues: made from the blocks that memory knows.

A segment that is written to, or was sealed within the last second, is looked up batch by batch in memory's index. That
is right for readers at the tail, who are mostly served from the write cache; one who comes from far behind, or after a
restart, wants all of it. Its rows are made once and again when a quarter more was written, so that all makings together
cost a few times the last one. What was written since is looked up batch by batch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from mainstem.kernel import UnsplitIndex
from mainstem.storage.journal.format import position_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal_rows import in_segment, rows_of
from mainstem.storage.queue_store.extent_index import ExtentIndex
from mainstem.storage.queue_store.single_flight import SingleFlight

AGAIN_SHARE = 4
"""Rows are made again when a fourth more was written…"""

AGAIN_BYTES_LEAST = 1 << 20
"""…and at least so much."""

SEGMENTS_MAX = 4
"""Kept: the one that is written to, and some that were sealed faster than they are indexed. 80 bytes a batch."""


class _Made(NamedTuple):
    end: int
    """The journal's, when they were made."""
    extents: ExtentIndex


class UnsealedRows:
    """Over a journal and what memory knows of its newest blocks."""

    def __init__(self, journal: Journal, index: UnsplitIndex) -> None:
        self._journal = journal
        self._index = index
        self._made: OrderedDict[int, _Made] = OrderedDict()
        self._makings: SingleFlight[int, _Made] = SingleFlight()

    async def extents(self, sequence: int) -> ExtentIndex:
        """The rows of a segment, but for those that were written or committed a short while ago."""
        start = position_of(sequence, 0)
        end = min(self._journal.end, position_of(sequence + 1, 0))
        made = self._made.get(sequence)
        if made is None or end - made.end >= max(AGAIN_BYTES_LEAST, (made.end - start) // AGAIN_SHARE):
            made = await self._makings.run(sequence, lambda: self._make(sequence, end))
        return made.extents

    def forget(self, sequence: int) -> None:
        """The segment has an index."""
        self._made.pop(sequence, None)

    async def _make(self, sequence: int, end: int) -> _Made:
        blocks = in_segment(self._index, sequence, self._journal.dead)
        rows = await asyncio.to_thread(rows_of, blocks)
        made = self._made[sequence] = _Made(end, ExtentIndex(rows, f"rows of segment {sequence}"))
        self._made.move_to_end(sequence)
        if len(self._made) > SEGMENTS_MAX:
            self._made.popitem(last=False)
        return made
