"""The read cache holds pieces of old data, from the queue store and the journal's sealed segments, in memory for
catch-up readers.

A file is cached in aligned chunks of one size. Loads of the same chunk are joined; all reads of the disk are made by
the source (the `Files` port's own reading threads) and can be paced, so that readers of old data leave the journal's
disk time alone (`chunk_loads.py`, `paced_reads.py`). Chunks leave by the rules of `held_chunks.py`, and come ahead of
their readers by those of `chunks_ahead.py`.

If many queues have a little each in many files, a reader brings the extents that it will ask for, alone and all in one
go (`brought_extents.py`). They stand for their chunks until another extent of one of these is asked for, which loads
the chunk.

If each read takes long to come, whatever it brings, neighbouring chunks are loaded in one read. They are then views of
the same bytes, whose memory counts until the last of them is evicted. The bytes on their way then are bounded, too, and
a reader that waits for its turn has the following bytes brought along, as far as there is room. When so many readers
wait, each at a place of its own, that memory would evict what was loaded for one before it comes back for the rest,
each is brought stretches of its own (`readers_crowd.py`), past the chunks.

Invariant: `read` returns no unchecked byte. A caller asks for an extent with its CRC32C; the cache checks it when its
chunks came from the disk, and remembers the result with them until they are evicted. (`span` is for bytes that carry
checksums of their own; its caller checks them.) Chunks are never changed; views of them stay valid as long as they are
held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

from mainstem.errors import MainstemError
from mainstem.kernel import crc32c
from mainstem.model import Buffer, Sample
from mainstem.ports import Clock
from mainstem.storage.errors import FormatError, OutOfReach
from mainstem.storage.read_cache.brought_extents import BroughtExtents
from mainstem.storage.read_cache.bytes_under_way import BytesUnderWay
from mainstem.storage.read_cache.cached_chunk import CachedChunk
from mainstem.storage.read_cache.chunk_loads import ChunkLoads
from mainstem.storage.read_cache.chunks_ahead import ChunksAhead
from mainstem.storage.read_cache.extent import CachedFile, Extent, ReadTogether
from mainstem.storage.read_cache.files_in_whole import FilesInWhole
from mainstem.storage.read_cache.held_chunks import HeldChunks
from mainstem.storage.read_cache.paced_reads import PacedReads
from mainstem.storage.read_cache.readers_crowd import ReadersCrowd
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)


DIRECT_SHARE = 0.25
"""An extent larger than this share of the cache is read past it: keeping it would evict everything else."""

AHEAD_SHARE = 0.5
"""The share of the memory for chunks that were read ahead and not used yet. More would evict itself before it is
used."""

FAR_AHEAD_SHARE = 0.75
"""The same of what is read ahead many chunks at once. They come in another order than they were asked for: those that
have come while their reader waits for one before them would otherwise take the place of what could be asked for."""

FAR_UNDER_WAY_SHARE = 0.625
"""The share of the memory for what is on its way of that: `UNDER_WAY_SHARE` leaves room for those who wait for a chunk,
for four of them at a time with the usual settings."""

UNDER_WAY_SHARE = 0.75
"""Of the memory, for what is on its way at once where stretches are loaded."""


class ReadCache:
    """Extents by way of memory. Sizes in bytes; `bytes_max` 0 reads and checks every extent from disk."""

    def __init__(
        self,
        clock: Clock,
        *,
        bytes_max: int,
        chunk_bytes: int,
        bytes_per_second: int = 0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pace: Callable[[int], Awaitable[bool]] | None = None,
        supervision: Supervision | None = None,
        ahead_together: int = 1,
        chunks_per_read: int = 1,
        past_when_crowded: bool = False,
    ) -> None:
        """`pace(bytes)` is awaited before bytes are read from a disk, and returns whether the disk is otherwise idle.
        `ahead_together`: chunks that are read ahead at once for one reader; more than one hides the time that each
        takes to come from far away, and would have a disk seek. `chunks_per_read`: neighbouring chunks that may be
        loaded in one read. `past_when_crowded`: readers are brought stretches of their own while they are too many."""
        self.bytes_max = bytes_max
        self.chunk_bytes = chunk_bytes
        self._chunks_per_read = max(1, min(chunks_per_read, int(bytes_max * DIRECT_SHARE) // chunk_bytes))
        self._under_way = BytesUnderWay(int(bytes_max * UNDER_WAY_SHARE)) if self._chunks_per_read > 1 else None
        self._reads = PacedReads(
            clock, bytes_per_second=bytes_per_second, sleep=sleep, pace=pace, under_way=self._under_way
        )
        room = int(bytes_max * AHEAD_SHARE)
        self._crowd = ReadersCrowd(
            clock,
            room=room,
            stretch_bytes=self.stretch_bytes,
            under_way=self._under_way if past_when_crowded else None,
        )
        self._memory = HeldChunks(
            self._crowd, bytes_max=bytes_max, chunk_bytes=chunk_bytes, come_together=self.loads_stretches
        )
        self._loads = ChunkLoads(self._memory, self._reads, chunk_bytes)
        self._ahead = ChunksAhead(
            self._memory,
            self._loads,
            self._crowd,
            supervision,
            room=room,
            far_room=int(bytes_max * FAR_AHEAD_SHARE),
            far_under_way=int(bytes_max * FAR_UNDER_WAY_SHARE),
            chunk_bytes=chunk_bytes,
            together=ahead_together,
            chunks_per_read=self._chunks_per_read,
        )
        self._in_whole = FilesInWhole(
            self._ahead, supervision, chunk_bytes=chunk_bytes, chunks_per_read=self._chunks_per_read
        )
        self._memory.ahead_is_less = self._in_whole.look_for_room
        self._brought = BroughtExtents(
            self._memory, self._loads, self._reads, bytes_max=bytes_max, chunk_bytes=chunk_bytes
        )
        self._hits = 0
        self._misses = 0
        self._checksum_failures = 0

    @property
    def enabled(self) -> bool:
        return self.bytes_max > 0

    @property
    def bytes_held(self) -> int:
        return self._memory.bytes_held

    @property
    def loads_stretches(self) -> bool:
        """Whether neighbouring chunks are loaded in one read."""
        return self._chunks_per_read > 1

    async def read(self, extent: Extent) -> tuple[memoryview, bool]:
        """The extent's bytes, and whether memory had all of them.

        Raises `FormatError` naming file and position when they are cut short or fail their CRC."""
        if extent.length > self.bytes_max * DIRECT_SHARE:
            self._misses += 1
            data = await self._reads.read(extent.source, extent.position, extent.length)
            self._check(extent, data)
            return memoryview(data), False
        view = self._held(extent)
        if view is not None:
            return view, True
        chunks, hit = await self._chunks(extent.source, extent.position, extent.length, protects=True)
        view = self._joined(chunks, extent.position, extent.length)
        if not all(extent.position in chunk.checked for chunk in chunks):
            try:
                self._check(extent, view)
            except FormatError:
                self.forget(extent.source.name)  # the next read asks the disk again
                raise
            for chunk in chunks:
                chunk.checked.add(extent.position)
        return view, hit

    def _held(self, extent: Extent) -> memoryview | None:
        """As `read`, of an extent that memory has in one chunk, which is what most are; None: it is another."""
        position, end = extent.position, extent.position + extent.length
        number = position // self.chunk_bytes
        if end > (number + 1) * self.chunk_bytes:
            return None
        chunk = self._memory.look_up((extent.source.name, number), position, end, protects=True)
        if chunk is None:
            return None
        if chunk.is_new:  # `_chunks` tells that its reader has waited
            return None
        view = chunk.data[position - chunk.start : end - chunk.start]
        if position not in chunk.checked:
            try:
                self._check(extent, view)
            except FormatError:
                self.forget(extent.source.name)  # the next read asks the disk again
                raise
            chunk.checked.add(position)
        self._hits += 1
        return view

    def held(self, source: CachedFile, position: int) -> CachedChunk | None:
        """The chunk with this place of a file, if memory has it, for who takes several extents of it, and of those that
        came with it, by itself, checks each that `checked` does not name, and tells `passed`."""
        chunk = self._memory.look_up((source.name, position // self.chunk_bytes), position, position + 1, protects=True)
        return None if chunk is None or chunk.is_new else chunk

    async def arrives(self, extent: Extent) -> bool:
        """Return once the chunk in which an extent begins is in memory, if it is on its way there; whether that took
        waiting. Raises what the read of it does."""
        number = extent.position // self.chunk_bytes
        if (extent.source.name, number) not in self._loads:
            return False
        self._misses += 1
        with self._crowd.reader_waiting():
            await self._loads.load(extent.source, number)
        return True

    def passed(self, source: CachedFile, chunk: CachedChunk, extents: int, position: int) -> None:
        """So many extents of a chunk, and of those behind it that came with it, were taken, the last of them at a
        position."""
        chunk.last_position = position
        self._hits += extents
        for number in range(chunk.start // self.chunk_bytes + 1, position // self.chunk_bytes + 1):
            self._memory.look_up((source.name, number), position, position + 1, protects=False)

    async def span(self, source: CachedFile, position: int, length: int) -> tuple[memoryview, bool]:
        """Bytes of a file as the disk has them, fewer at its end, and whether memory had all of them. For readers who
        go through a file together, one behind the other: coming back to a chunk does not protect it."""
        if length > self.bytes_max * DIRECT_SHARE:
            self._misses += 1
            return memoryview(await self._reads.read(source, position, length)), False
        chunks, hit = await self._chunks(source, position, length, protects=False)
        return self._joined(chunks, position, length), hit

    def held_chunk(self, source: CachedFile, number: int) -> memoryview | None:
        """As `span`, of a whole chunk, if memory has it."""
        start = number * self.chunk_bytes
        chunk = self._memory.look_up((source.name, number), start, start + self.chunk_bytes, protects=False)
        if chunk is None or not self._memory.is_whole(chunk):
            return None
        self._hits += 1
        return chunk.data

    async def past(self, source: CachedFile, position: int, length: int) -> Buffer:
        """Bytes of a file as the disk has them, without a look into memory and without keeping them."""
        return await self._reads.read(source, position, length)

    def holds(self, source: CachedFile, number: int) -> bool:
        """Whether this chunk is in memory, or on its way there."""
        return self._loads.holds(source, number)

    def takes_alone(self, extent: Extent) -> bool:
        """Whether `bring` would read this extent: a small one in one chunk, of which memory has nothing."""
        return self.enabled and self._brought.takes_alone(extent)

    async def bring(self, extents: Iterable[Extent], read_together: ReadTogether) -> None:
        """As `BroughtExtents.bring`."""
        await self._brought.bring(extents, read_together)

    @property
    def is_reading_ahead(self) -> bool:
        """Whether anything is on its way for a reader that does not wait for it yet."""
        return self._ahead.is_under_way

    def read_ahead(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> bool:
        """As `ChunksAhead.begin`."""
        return self.enabled and self._ahead.begin(extents, chunk_count)

    def read_on(self, source: CachedFile, numbers: range) -> None:
        """As `ChunksAhead.go_on`."""
        if self.enabled:
            self._ahead.go_on(source, numbers)

    def bring_whole(self, source: CachedFile, length: int) -> bool:
        """As `FilesInWhole.begin`."""
        return self.loads_stretches and self._in_whole.begin(source, length)

    async def comes_in_whole(self, extent: Extent) -> bool:
        """As `FilesInWhole.comes`."""
        return await self._in_whole.comes(extent.source, extent.position)

    def _joined(self, chunks: list[CachedChunk], position: int, length: int) -> memoryview:
        data, start = chunks[0].came_with
        if all(chunk.came_with[0] is data for chunk in chunks):  # as one chunk is with itself
            return data[position - start : position + length - start]
        parts = [chunk.data for chunk in chunks]
        parts[-1] = parts[-1][: position + length - chunks[-1].start]
        parts[0] = parts[0][position - chunks[0].start :]
        return memoryview(b"".join(parts))

    @property
    def stretch_bytes(self) -> int:
        """The bytes loaded in one read."""
        return self._chunks_per_read * self.chunk_bytes

    async def load_stretch(self, extent: Extent, length: int, upto: int = 0) -> bool:
        """Load the chunks that memory lacks of an extent and what follows it, `length` bytes in all, neighbours in one
        read where these take long; whether a reader waited for that. A chunk that cannot be loaded so is left to
        `read`, which reports what is wrong, but for `OutOfReach`. `upto`: where in the file that ends which the reader
        may ask for next, so that it comes in the same read as far as there is room."""
        if self._under_way is None or extent.length > self.bytes_max * DIRECT_SHARE:
            return False
        source, position = extent.source, extent.position
        end = position + max(extent.length, min(length, int(self.bytes_max * DIRECT_SHARE)))
        numbers = range(position // self.chunk_bytes, (end - 1) // self.chunk_bytes + 1)
        upto = -(-upto // self.chunk_bytes)
        if sum(map(len, self._missing_of(source, numbers, upto))) < 2:
            return False
        self._misses += 1
        with self._crowd.reader_waiting():
            await self._load_missing(self._under_way, source, numbers, upto)
        return True

    async def _load_missing(self, under_way: BytesUnderWay, source: CachedFile, numbers: range, upto: int) -> None:
        async with under_way.of(max(len(numbers), self._chunks_per_read) * self.chunk_bytes) as room:
            missing = self._missing_of(source, numbers, upto)  # some came while it waited for room
            room.shrink(sum(map(len, missing)) * self.chunk_bytes)
            loads = [self._load_part(source, some, numbers.stop) for some in missing]
            if len(loads) == 1:
                await loads[0]
                return
            for failure in await asyncio.gather(*loads, return_exceptions=True):
                if failure is not None:
                    raise failure

    @property
    def is_crowded(self) -> bool:
        """Whether readers are so many that each is brought a stretch of its own."""
        return self._crowd.is_crowded

    async def stretch_past(self, extent: Extent, wanted: int, whole: Callable[[int], int]) -> CachedChunk | None:
        """An extent and what follows it, as `ReadersCrowd.stretch` brings it for one reader alone. None while readers
        are few, when memory has the extent, and when it cannot be read so: `read` reports why, but for `OutOfReach`."""
        if not self.is_crowded or extent.length > self.bytes_max * DIRECT_SHARE or self.has(extent):
            return None
        source, position = extent.source, extent.position
        self._misses += 1
        try:
            return await self._crowd.stretch(
                (source.name, position), wanted, whole, lambda length: self._reads.read_now(source, position, length)
            )
        except OutOfReach:
            raise
        except (MainstemError, OSError) as error:
            log.debug("a stretch of %s at %d cannot be read: %s", source.name, position, error)
            return None

    def keep_rest(self, extent: Extent, stretch: CachedChunk) -> None:
        """Keep what `stretch_past` brought for its reader, who goes on with this extent."""
        self._crowd.keep_rest((extent.source.name, extent.position), extent.length, stretch)
        self._memory.evict()

    def take_rest(self, extent: Extent) -> CachedChunk | None:
        """The bytes kept for a reader that goes on with this extent, if they still are."""
        return self._crowd.take_rest((extent.source.name, extent.position))

    def has(self, extent: Extent) -> bool:
        """Whether all of an extent is in memory, or on its way there."""
        last = (extent.position + extent.length - 1) // self.chunk_bytes
        return all(
            self._loads.holds(extent.source, number) for number in range(extent.position // self.chunk_bytes, last + 1)
        )

    def checked(self, chunk: CachedChunk, extent: Extent) -> memoryview:
        """An extent, all of it in what `stretch_past` brought. Raises as `read`."""
        begins = extent.position - chunk.start
        view = chunk.data[begins : begins + extent.length]
        if extent.position not in chunk.checked:
            self._check(extent, view)
            chunk.checked.add(extent.position)
        return view

    def _missing_of(self, source: CachedFile, numbers: range, upto: int) -> list[range]:
        """The chunks that memory lacks of a stretch, and of what follows it below `upto`, in reads."""
        missing = [*self._loads.missing(source, numbers, self._chunks_per_read)]
        if missing and missing[-1].stop == numbers.stop:
            missing[-1] = self._with_more(source, missing[-1], upto)
        return missing

    def _with_more(self, source: CachedFile, numbers: range, stop: int) -> range:
        """These chunks, and those behind them, below `stop`, that memory lacks and has room for: as many as are loaded
        in one read."""
        end = numbers.stop
        while end < stop and end - numbers.start < self._chunks_per_read and not self._loads.holds(source, end):
            if not self._ahead.has_room(end + 1 - numbers.stop):
                break
            end += 1
        return range(numbers.start, end)

    async def _load_part(self, source: CachedFile, numbers: range, ahead_from: int) -> None:
        """Load neighbouring chunks of a stretch, of which its reader comes later for those from `ahead_from` on. Of
        what reads raise, raises `OutOfReach` alone."""
        ahead = max(0, numbers.stop - ahead_from)
        self._ahead.chunks += ahead
        self._ahead.under_way += ahead
        try:
            await self._loads.load_together(source, numbers, ahead_from=ahead_from, has_room=True)
        except OutOfReach:
            raise
        except (MainstemError, OSError) as error:
            log.debug("chunks %s of %s cannot be read: %s", numbers, source.name, error)
        finally:
            self._ahead.under_way -= ahead

    def forget(self, name: str) -> None:
        """Drop what there is of a file that is gone."""
        self._crowd.forget(name)
        self._memory.forget(name)

    async def close(self) -> None:
        """Stop reading ahead and forget everything."""
        await self._in_whole.close()
        await self._ahead.close()
        self._memory.clear()
        self._crowd.clear()

    def samples(self, of: str = "", where: str = "disk 2") -> Iterable[Sample]:
        """Current values. `of` stands in the names, behind `mainstem_`, of a cache of other data than the disks';
        `where` says from where it is filled."""
        name = f"mainstem_{of}read_cache"
        yield Sample(f"{name}_bytes", "gauge", f"Memory held by the read cache of {where}.", self.bytes_held)
        yield Sample(f"{name}_hits_total", "counter", "Extents served from memory.", self._hits)
        yield Sample(f"{name}_misses_total", "counter", f"Extents that waited for {where}.", self._misses)
        yield Sample(f"{name}_disk_bytes_total", "counter", f"Bytes of files read from {where}.", self._reads.bytes)
        yield Sample(f"{name}_ahead_chunks_total", "counter", "Chunks read ahead of readers.", self._ahead.chunks)
        yield Sample(f"{name}_evicted_chunks_total", "counter", "Chunks evicted.", self._memory.evicted)
        yield Sample(
            f"mainstem_{of or 'queue_store_'}checksum_failures_total",
            "counter",
            "Extents that failed their CRC.",
            self._checksum_failures,
        )

    # --- chunks -------------------------------------------------------------------------------------------

    async def _chunks(
        self, source: CachedFile, position: int, length: int, *, protects: bool
    ) -> tuple[list[CachedChunk], bool]:
        first = position // self.chunk_bytes
        last = (position + length - 1) // self.chunk_bytes
        chunks: list[CachedChunk] = []
        hit = True
        for number in range(first, last + 1):
            chunk = self._memory.look_up((source.name, number), position, position + length, protects=protects)
            if chunk is not None and chunk.is_new:
                chunk.is_new = hit = False
            elif chunk is None:
                hit = False
                with self._crowd.reader_waiting():
                    chunk = await self._loads.load(source, number)
                chunk.last_position = max(chunk.last_position, position)
                self._memory.came_for((source.name, number), chunk)  # it may have been on its way for a read ahead
            chunks.append(chunk)
        if hit:
            self._hits += 1
        else:
            self._misses += 1
        return chunks, hit

    def _check(self, extent: Extent, data: Buffer) -> None:
        if len(data) == extent.length and crc32c(data) == extent.crc:
            return
        self._checksum_failures += 1
        what = "fails its CRC" if len(data) == extent.length else f"is cut short at {len(data)} bytes"
        raise FormatError(
            f"{extent.source.name}: extent of {extent.length} bytes at {extent.position} {what}; "
            "restore the file from a copy or a replica"
        )
