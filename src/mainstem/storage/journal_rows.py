"""What the journal holds, as extent rows: one per batch, whether its segment is sealed or still open.

Retention, usage and the indexes of sealed segments all look at the journal through these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import numpy

from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.format import DIRECTORY_ROW, offset_of, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.queue_store.format import EXTENT_ROW
from mainstem.storage.unsplit_index import IndexedBlock, UnsplitIndex


def rows_of(blocks: Iterable[IndexedBlock]) -> numpy.ndarray:
    """Extent rows (one per batch, positions within their segment) of indexed blocks, sorted by
    (queue, offset)."""
    parts = []
    for block in blocks:
        directory = numpy.frombuffer(block.cells, DIRECTORY_ROW)
        part = numpy.zeros(len(directory), EXTENT_ROW)
        part["queue_id"] = directory["queue_id"]
        part["base_offset"] = directory["base_offset"]
        part["last_offset"] = directory["base_offset"] + directory["last_offset_delta"]
        part["max_timestamp"] = directory["max_timestamp"]
        part["position"] = offset_of(block.header.payload_position) + directory["position"].astype(
            numpy.uint64
        )
        part["length"] = directory["length"]
        part["batch_count"] = 1
        part["record_count"] = directory["record_count"]
        part["leader_epoch"] = directory["leader_epoch"]
        parts.append(part)
    rows = numpy.concatenate(parts) if parts else numpy.zeros(0, EXTENT_ROW)
    return rows[numpy.lexsort((rows["base_offset"], rows["queue_id"]))]


async def all_rows(journal: Journal, index: UnsplitIndex) -> AsyncIterator[tuple[int, numpy.ndarray]]:
    """(segment sequence, extent rows) of every segment, oldest first: sealed ones from their index files, the
    others from memory as of the first step. Segments that are recycled meanwhile are left out."""
    segments = journal.segments()
    from_memory = {
        segment.sequence: rows_of(in_segment(index, segment.sequence))
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


def in_segment(index: UnsplitIndex, sequence: int) -> list[IndexedBlock]:
    """The indexed blocks of one segment."""
    return [block for block in index.blocks() if sequence_of(block.header.position) == sequence]
