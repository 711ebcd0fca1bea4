"""The index files of sealed segments: written once, loaded into a bounded cache.

`<sequence, 20 digits>.idx` is header frame · rows · footer frame, in the format of run indexes
(`storage.queue_store.format`), one row per batch, positions being byte offsets in the segment. When it is missing,
damaged or of another segment, the journal makes it again from the segment's directories. The footer names the segment
(`identity_of`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import google_crc32c
import numpy

from mainstem.lru import Lru
from mainstem.ports import Files
from mainstem.storage.errors import FormatError
from mainstem.storage.extents import extent_pages
from mainstem.storage.extents.extent_format import EXTENT_ROW, FORMAT_VERSION, FRAME_BYTES, INDEX_MAGIC, FileFrame
from mainstem.storage.extents.extent_index import ExtentIndex, QueueFilter
from mainstem.storage.extents.extent_pages import ExtentPages, is_paged
from mainstem.storage.journal.encoding.blocks import Rows
from mainstem.storage.journal.segments.inventory import SegmentInfo
from mainstem.storage.journal.segments.segment_files import TEMPORARY, index_path

IDENTITY = struct.Struct("<QqQ")


def identity_of(segment: SegmentInfo) -> int:
    """A number that tells a sealed segment from all others, of this node and of other nodes; never 0."""
    return google_crc32c.value(IDENTITY.pack(segment.sequence, segment.created_ms, segment.end)) or 1


def pack_index(rows: Rows, identity: int = 0) -> bytes:
    """The bytes of an index file over these rows, which are sorted by (queue, offset)."""
    assert rows.dtype == EXTENT_ROW, "an index holds EXTENT_ROW rows"
    content = numpy.ascontiguousarray(rows).tobytes()
    timestamps = rows["max_timestamp"]
    footer = FileFrame(
        INDEX_MAGIC,
        rows_crc=google_crc32c.value(content),
        rows_position=FRAME_BYTES,
        row_count=len(rows),
        batch_bytes=int(rows["length"].sum(dtype=numpy.uint64)),
        min_timestamp=int(timestamps.min()) if len(rows) else -1,
        max_timestamp=int(timestamps.max()) if len(rows) else -1,
        name_crc=identity,
    )
    return FileFrame(INDEX_MAGIC).pack() + content + footer.pack()


def unpack_index(content: bytes, where: str, identity: int = 0) -> ExtentIndex:
    """Parse an index file. Raises `FormatError` naming `where` unless the bytes are a whole, valid index file, and of
    the segment with this `identity`, if the file names its segment."""
    FileFrame.unpack(content[:FRAME_BYTES], INDEX_MAGIC, where)
    footer = FileFrame.unpack(content[FRAME_BYTES:][-FRAME_BYTES:], INDEX_MAGIC, where)
    if footer.version != FORMAT_VERSION:
        raise FormatError(f"{where}: format {footer.version}, an index of the journal has {FORMAT_VERSION}")
    if footer.rows_position != FRAME_BYTES:
        raise FormatError(f"{where}: index rows at byte {footer.rows_position}, not {FRAME_BYTES}")
    if identity and footer.name_crc not in (0, identity):
        raise FormatError(f"{where}: the index is of another segment")
    return ExtentIndex.load(footer, content[FRAME_BYTES:-FRAME_BYTES], where)


def _packed(rows: Rows, where: str, identity: int) -> tuple[bytes, ExtentIndex, _Summary]:
    index = ExtentIndex(rows, where, FRAME_BYTES)
    return pack_index(rows, identity), index, _summary_of(index)


def _unpacked(content: bytes, where: str, identity: int) -> tuple[ExtentIndex, _Summary]:
    index = unpack_index(content, where, identity)
    return index, _summary_of(index)


class _Summary(NamedTuple):
    """The part of an index that memory keeps after it was written or loaded."""

    filter: QueueFilter
    """About a byte per queue of a segment, a few MiB for a thousand usual segments, `FILTER_BITS_MAX` each at most."""
    pages: ExtentPages | None
    """None: the index is small enough to be read as a whole. Else 5 KB for a usual segment of small batches."""


def _summary_of(index: ExtentIndex) -> _Summary:
    return _Summary(QueueFilter(index.queues()[0]), ExtentPages(index) if is_paged(index) else None)


class IndexFiles:
    """Writes, loads and caches the indexes of sealed segments."""

    def __init__(self, files: Files, cache_bytes: int) -> None:
        self._files = files
        self._cached: Lru[int, ExtentIndex] = Lru(cache_bytes, lambda index: index.memory_bytes)
        self._summaries: dict[int, _Summary] = {}
        """Of the indexes that were made or loaded since the start."""
        self._loading = asyncio.Lock()
        self.hits = 0
        self.loads = 0

    async def write(self, sequence: int, rows: Rows, identity: int) -> None:
        """Write the index of a segment, durable when this returns."""
        async with self._loading:
            await self._write(sequence, rows, identity)

    async def _write(self, sequence: int, rows: Rows, identity: int) -> ExtentIndex:
        path = index_path(sequence)
        content, index, summary = await asyncio.to_thread(_packed, rows, path, identity)
        file = await self._files.open(path + TEMPORARY, create=True)
        try:
            await file.size(truncate_to=0)
            await file.write(0, [content])
            await file.sync()
        finally:
            await file.close()
        await self._files.rename(path + TEMPORARY, path)
        self._summaries[sequence] = summary
        return index

    async def get(self, sequence: int, identity: int, rebuild: Callable[[], Awaitable[Rows]]) -> ExtentIndex:
        """The index of a segment; `rebuild` gives the rows when its file is missing, damaged or another segment's."""
        index = self._cached.get(sequence)
        if index is not None:
            self.hits += 1
            return index
        async with self._loading:
            index = self._cached.get(sequence)
            if index is None:
                self.loads += 1
                index = await self._load(sequence, identity)
                if index is None:
                    index = await self._write(sequence, await rebuild(), identity)
                self._cached.put(sequence, index)
        return index

    async def rows_with(
        self, sequence: int, identity: int, queue_id: int, rebuild: Callable[[], Awaitable[Rows]]
    ) -> ExtentIndex:
        """As `get`, but perhaps only some rows of the index: all those of this queue, and neighbours."""
        summary = self._summaries.get(sequence)
        if sequence not in self._cached and summary is not None and summary.pages is not None:
            wanted = summary.pages.of_queue(queue_id)
            if len(wanted) <= extent_pages.PAGES_AT_ONCE_MAX:
                with suppress(FileNotFoundError, FormatError):  # missing or damaged: it is made anew
                    return await self._read_pages(sequence, summary.pages, wanted)
        return await self.get(sequence, identity, rebuild)

    async def _read_pages(self, sequence: int, pages: ExtentPages, wanted: range) -> ExtentIndex:
        file = await self._files.open(index_path(sequence))
        try:
            content = await file.read(*pages.place(wanted))
        finally:
            await file.close()
        return pages.checked(wanted, content)

    def reads_pages(self, sequence: int) -> bool:
        """Whether `rows_with` reads pages of an index, which memory has not as a whole."""
        summary = self._summaries.get(sequence)
        return sequence not in self._cached and summary is not None and summary.pages is not None

    def may_hold(self, sequence: int, queue_id: int) -> bool:
        """False: the segment has no batch of the queue, known from memory without its index."""
        summary = self._summaries.get(sequence)
        return summary is None or queue_id in summary.filter

    async def discard(self, sequence: int) -> None:
        """Remove the index of a segment, so that the next `get` makes it anew."""
        async with self._loading:
            await self.remove(sequence)

    async def remove(self, sequence: int) -> None:
        self._cached.pop(sequence)
        self._summaries.pop(sequence, None)
        await self._files.remove(index_path(sequence))

    def held_bytes(self) -> int:
        return self._cached.held

    async def _load(self, sequence: int, identity: int) -> ExtentIndex | None:
        path = index_path(sequence)
        try:
            file = await self._files.open(path)
        except FileNotFoundError:
            return None
        try:
            content = await file.read(0, await file.size())
        finally:
            await file.close()
        try:
            index, self._summaries[sequence] = await asyncio.to_thread(_unpacked, content, path, identity)
            return index
        except FormatError:
            return None
