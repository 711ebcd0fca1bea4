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

import google_crc32c
import numpy

from mainstem.lru import Lru
from mainstem.ports import Files
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW, FORMAT_VERSION, FRAME_BYTES, INDEX_MAGIC, FileFrame
from mainstem.storage.extents.extent_index import ExtentIndex, QueueFilter
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


def _packed(rows: Rows, identity: int) -> tuple[bytes, QueueFilter]:
    return pack_index(rows, identity), QueueFilter(numpy.unique(rows["queue_id"]))


def _unpacked(content: bytes, where: str, identity: int) -> tuple[ExtentIndex, QueueFilter]:
    index = unpack_index(content, where, identity)
    return index, QueueFilter(index.queues()[0])


class IndexFiles:
    """Writes, loads and caches the indexes of sealed segments."""

    def __init__(self, files: Files, cache_bytes: int) -> None:
        self._files = files
        self._cached: Lru[int, ExtentIndex] = Lru(cache_bytes, lambda index: index.memory_bytes)
        self._filters: dict[int, QueueFilter] = {}
        """Filters of the indexes that were made or loaded since the start: about a byte per queue of a segment, a few
        MiB for a thousand usual segments, `FILTER_BITS_MAX` each at most."""
        self._loading = asyncio.Lock()
        self.hits = 0
        self.loads = 0

    async def write(self, sequence: int, rows: Rows, identity: int) -> None:
        """Write the index of a segment, durable when this returns."""
        async with self._loading:
            await self._write(sequence, rows, identity)

    async def _write(self, sequence: int, rows: Rows, identity: int) -> None:
        content, self._filters[sequence] = await asyncio.to_thread(_packed, rows, identity)
        path = index_path(sequence)
        file = await self._files.open(path + TEMPORARY, create=True)
        try:
            await file.size(truncate_to=0)
            await file.write(0, [content])
            await file.sync()
        finally:
            await file.close()
        await self._files.rename(path + TEMPORARY, path)

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
                    rows = await rebuild()
                    await self._write(sequence, rows, identity)
                    index = ExtentIndex(rows, index_path(sequence))
                self._cached.put(sequence, index)
        return index

    def may_hold(self, sequence: int, queue_id: int) -> bool:
        """False: the segment has no batch of the queue, known from memory without its index."""
        known = self._filters.get(sequence)
        return known is None or queue_id in known

    async def discard(self, sequence: int) -> None:
        """Remove the index of a segment, so that the next `get` makes it anew."""
        async with self._loading:
            await self.remove(sequence)

    async def remove(self, sequence: int) -> None:
        self._cached.pop(sequence)
        self._filters.pop(sequence, None)
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
            index, self._filters[sequence] = await asyncio.to_thread(_unpacked, content, path, identity)
            return index
        except FormatError:
            return None
