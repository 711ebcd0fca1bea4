"""Lists the journal's directory at a start: segments, their headers, their indexes. It reads no block."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.ports import Files
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.format import (
    FIRST_BLOCK,
    PAGE_BYTES,
    SegmentHeader,
    position_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.segments.pool import SegmentPool
from mainstem.storage.journal.segments.segment_files import DIRECTORY, INDEX, SEGMENT, TEMPORARY, segment_path


class SegmentInfo(NamedTuple):
    """A segment as the journal knows it."""

    sequence: int
    name: str
    """File name in the journal's directory."""
    first: int
    """Journal position of its first block."""
    end: int
    """Journal position behind its last block; before `recover`, equal to `first` in the last segment."""
    sealed: bool
    """True when no block will be added any more."""
    created_ms: int
    index_ready: bool
    """True when its index file exists."""
    bytes: int
    """Size of the file; the size its header states if the file was cut."""


class FoundSegment(NamedTuple):
    """A segment file: its header (None: damaged, or never written) and its size in bytes."""

    sequence: int
    header: SegmentHeader | None
    size: int


class Inventory(NamedTuple):
    segments: list[FoundSegment]
    """Oldest first."""
    indexed: frozenset[int]
    """Sequences with an index file."""
    highest_sequence: int
    """The highest sequence that any file was used under, those in the pool included; 0: none."""

    def infos(self) -> list[SegmentInfo]:
        """The segments found, oldest first. A segment counts as sealed when the next one states where it ended;
        otherwise its index is not believed. The last is left out while its header is not a segment's: it was taken and
        never written to, or it is damaged, which `recover` finds out."""
        infos = []
        following: list[FoundSegment | None] = [*self.segments[1:], None]
        for segment, successor in zip(self.segments, following, strict=False):
            if segment.header is None and successor is None:
                continue
            first = position_of(segment.sequence, FIRST_BLOCK)
            end = successor.header.previous_end if successor and successor.header else 0
            sealed = sequence_of(end) == segment.sequence and end >= first
            infos.append(
                SegmentInfo(
                    segment.sequence,
                    segment_name(segment.sequence),
                    first,
                    end if sealed else first,
                    sealed,
                    segment.header.created_ms if segment.header else 0,
                    sealed and segment.sequence in self.indexed,
                    max(segment.size, segment.header.size) if segment.header else segment.size,
                )
            )
        return infos


async def take_inventory(files: Files, pool: SegmentPool) -> Inventory:
    """List the directory and read the segments' headers; hand the pool its files; remove half-written index files and
    those without a segment."""
    names = await files.names(DIRECTORY)
    segments = [await _find(files, sequence) for sequence in _sequences(names, SEGMENT)]
    known = {segment.sequence for segment in segments}
    indexed = frozenset(_sequences(names, INDEX))
    for name in names:
        if name.endswith(TEMPORARY) or (
            name.endswith(INDEX) and name.removesuffix(INDEX).isdigit() and int(name.removesuffix(INDEX)) not in known
        ):
            await files.remove(f"{DIRECTORY}/{name}")
    highest = max([await pool.open(names), *known])
    return Inventory(segments, indexed & known, highest)


def _sequences(names: list[str], suffix: str) -> list[int]:
    """Sequences in the names of files with this suffix, ascending; names are sorted and of one length."""
    return [int(stem) for name in names if name.endswith(suffix) and (stem := name.removesuffix(suffix)).isdigit()]


async def _find(files: Files, sequence: int) -> FoundSegment:
    path = segment_path(sequence)
    file = await files.open(path)
    try:
        page = await file.read(0, PAGE_BYTES)
        size = await file.size()
    finally:
        await file.close()
    try:
        header = SegmentHeader.unpack(page, path)
    except FormatError:
        return FoundSegment(sequence, None, size)
    return FoundSegment(sequence, header if header.sequence == sequence else None, size)
