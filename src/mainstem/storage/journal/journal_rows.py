"""Lists the journal's batches as extent rows, one per batch, whether its segment is sealed or still open.

Retention, usage and the indexes of sealed segments all look at the journal through these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable

from mainstem.kernel import IndexedBlock, RecentIndex
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.blocks import Rows, rows_of_blocks, sorted_rows
from mainstem.storage.journal.encoding.format import position_of
from mainstem.storage.journal.journal import Journal


def rows_of(blocks: Iterable[IndexedBlock]) -> Rows:
    """Extent rows (one per batch, positions within their segment) of indexed blocks, sorted by (queue, offset)."""
    return sorted_rows([rows_of_blocks((block.header, block.rows_copied()) for block in blocks)])


async def all_rows(journal: Journal, index: RecentIndex, first: int = 0) -> AsyncIterator[tuple[int, Rows]]:
    """(segment sequence, extent rows) of every segment from sequence `first` on, oldest first: sealed ones from their
    index files, the others from memory as of the first step. Segments that are recycled meanwhile are left out."""
    segments = [segment for segment in journal.segments() if segment.sequence >= first]
    from_memory = {
        segment.sequence: rows_of(in_segment(index, segment.sequence, journal.dead))
        for segment in segments
        if not segment.index_ready
    }
    for segment in segments:
        if segment.index_ready:
            try:
                yield segment.sequence, (await journal.index(segment.sequence)).rows
            except SegmentGone:
                continue
        else:
            yield segment.sequence, from_memory[segment.sequence]


def in_segment(index: RecentIndex, sequence: int, dead: Container[int]) -> list[IndexedBlock]:
    """The indexed blocks of one segment but those at `dead` positions: a snapshot took their place."""
    blocks = index.blocks_between(position_of(sequence, 0), position_of(sequence + 1, 0))
    if not dead:  # as nearly always: a segment has thousands of blocks, and this is a turn of the event loop
        return blocks
    return [block for block in blocks if block.header.position not in dead]
