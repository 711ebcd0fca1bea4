"""The read cache holds pieces of old data, from the queue store and the journal's sealed segments, in memory for
catch-up readers.

A file is cached in aligned chunks of one size. Loads of the same chunk are joined; all reads of the disk are made by
the source (the `Files` port's own reading threads) and can be paced, so that readers of old data leave the journal's
disk time alone. Eviction is segmented: a chunk starts on probation and is protected only once a reader comes back to an
earlier place in it. So a reader passing through, however fast, evicts only chunks that passed through before it, and
never those that are read again and again.

If many queues have a little each in many files, a reader brings the extents that it will ask for, alone and all in one
go (`bring`). They stand for their chunks until another extent of one of these is asked for, which loads the chunk.

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
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, Protocol

from mainstem.errors import MainstemError
from mainstem.kernel import crc32c
from mainstem.model import Buffer, Sample
from mainstem.ports import Clock
from mainstem.storage.disks.bytes_under_way import BytesUnderWay
from mainstem.storage.disks.cached_chunk import PIECE_BYTES_MORE, CachedChunk, ViewedBytes
from mainstem.storage.disks.readers_crowd import ReadersCrowd
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import FormatError, OutOfReach, StorageError
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)


PROTECTED_SHARE = 0.8
"""The share of the memory that chunks read again may fill; the rest is left to readers passing through."""

DIRECT_SHARE = 0.25
"""An extent larger than this share of the cache is read past it: keeping it would evict everything else."""

AHEAD_TASKS_MAX = 8
"""Readers served by read-ahead at once, each by one chunk after the other: twice as many requests as a disk is given at
a time."""

AHEAD_LOADS_MAX = 32
"""Chunks that are read ahead at once for all readers, where more than one is for each: half of what an object store is
asked at once, so that those who wait for a chunk find a free place."""

READS_AHEAD_LEAST = 8
"""Neighbouring chunks are loaded in one read as far as that leaves so many reads on their way for what is read ahead:
they come beside each other, and each brings no more than one connection does."""

AHEAD_SHARE = 0.5
"""The share of the memory for chunks that were read ahead and not used yet. More would evict itself before it is
used."""

UNDER_WAY_SHARE = 0.75
"""Of the memory, for what is on its way at once where stretches are loaded: what is read ahead takes no more than
`AHEAD_SHARE`, so that those who wait for a chunk find room."""

ALONE_SHARE = 0.25
"""Of a chunk: larger extents are read with what lies around them in their chunks."""

BROUGHT_SHARE = 0.1
"""Of the memory, for what is brought at once: half of what readers passing through have."""

BROUGHT_BYTES_MAX = 1 << 20
"""As long as the disk takes for that other reads wait, as for a chunk."""

ChunkKey = tuple[str, int]
"""File name and number of the chunk in it."""


class CachedFile(Protocol):
    """A file that can be read; `name` is never given to another file."""

    @property
    def name(self) -> str: ...

    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer:
        """Bytes at a position; fewer at the end of the file. `at_once`: no commits want the disk now."""
        ...


class Extent(NamedTuple):
    """Bytes of a file and their CRC32C."""

    source: CachedFile
    position: int
    length: int
    crc: int


ReadTogether = Callable[[Sequence[tuple[str, int, int]]], Awaitable[Sequence[Buffer | None]]]
"""Reads parts of files, by name, position and length, in one go; None for what cannot be read so."""


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
        self._clock = clock
        self._sleep = sleep
        self._pace = pace
        self.bytes_max = bytes_max
        self.chunk_bytes = chunk_bytes
        self._bytes_per_second = bytes_per_second
        self._paid_until = 0.0
        self._probation: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        self._protected: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        self._bytes = 0
        self._protected_bytes = 0
        self._loads: SingleFlight[ChunkKey, CachedChunk] = SingleFlight()
        self._brings: SingleFlight[ChunkKey, None] = SingleFlight()
        """The chunks that are brought together, by the first of them."""
        self._ahead = Errands(supervision, "read ahead")
        self._ahead_together = ahead_together
        self._chunks_per_read = max(1, min(chunks_per_read, int(bytes_max * DIRECT_SHARE) // chunk_bytes))
        self._under_way = BytesUnderWay(int(bytes_max * UNDER_WAY_SHARE)) if self._chunks_per_read > 1 else None
        self._crowd = ReadersCrowd(
            clock,
            room=int(bytes_max * AHEAD_SHARE),
            stretch_bytes=self.stretch_bytes,
            under_way=self._under_way if past_when_crowded else None,
        )
        self._ahead_loads = Errands(supervision, "chunk ahead")
        self._ahead_under_way = 0
        """Chunks that `_ahead_loads` are loading."""
        self._hits = 0
        self._misses = 0
        self._disk_bytes = 0
        self._ahead_chunks = 0
        self._ahead_bytes = 0
        """Bytes held that no reader has used yet."""
        self._evicted_chunks = 0
        self._checksum_failures = 0

    @property
    def enabled(self) -> bool:
        return self.bytes_max > 0

    @property
    def bytes_held(self) -> int:
        return self._bytes + self._crowd.held

    @property
    def loads_stretches(self) -> bool:
        """Whether neighbouring chunks are loaded in one read."""
        return self._chunks_per_read > 1

    async def read(self, extent: Extent) -> tuple[memoryview, bool]:
        """The extent's bytes, and whether memory had all of them.

        Raises `FormatError` naming file and position when they are cut short or fail their CRC."""
        if extent.length > self.bytes_max * DIRECT_SHARE:
            self._misses += 1
            data = await self._from_disk(extent.source, extent.position, extent.length)
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
        chunk = self._look_up((extent.source.name, number), position, end, protects=True)
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
        chunk = self._look_up((source.name, position // self.chunk_bytes), position, position + 1, protects=True)
        return None if chunk is None or chunk.is_new else chunk

    def passed(self, source: CachedFile, chunk: CachedChunk, extents: int, position: int) -> None:
        """So many extents of a chunk, and of those behind it that came with it, were taken, the last of them at a
        position."""
        chunk.last_position = position
        self._hits += extents
        for number in range(chunk.start // self.chunk_bytes + 1, position // self.chunk_bytes + 1):
            self._look_up((source.name, number), position, position + 1, protects=False)

    async def span(self, source: CachedFile, position: int, length: int) -> tuple[memoryview, bool]:
        """Bytes of a file as the disk has them, fewer at its end, and whether memory had all of them. For readers who
        go through a file together, one behind the other: coming back to a chunk does not protect it."""
        if length > self.bytes_max * DIRECT_SHARE:
            self._misses += 1
            return memoryview(await self._from_disk(source, position, length)), False
        chunks, hit = await self._chunks(source, position, length, protects=False)
        return self._joined(chunks, position, length), hit

    def held_chunk(self, source: CachedFile, number: int) -> memoryview | None:
        """As `span`, of a whole chunk, if memory has it."""
        start = number * self.chunk_bytes
        chunk = self._look_up((source.name, number), start, start + self.chunk_bytes, protects=False)
        if chunk is None or not self._is_whole(chunk):
            return None
        self._hits += 1
        return chunk.data

    async def past(self, source: CachedFile, position: int, length: int) -> Buffer:
        """Bytes of a file as the disk has them, without a look into memory and without keeping them."""
        return await self._from_disk(source, position, length)

    def holds(self, source: CachedFile, number: int) -> bool:
        """Whether this chunk is in memory, or on its way there."""
        key = (source.name, number)
        chunk = self._probation.get(key) or self._protected.get(key)
        return key in self._loads or (chunk is not None and self._is_whole(chunk))

    def _is_whole(self, chunk: CachedChunk) -> bool:
        return chunk.end - chunk.start == self.chunk_bytes

    def is_small(self, length: int) -> bool:
        """Whether an extent of so many bytes may be read without its chunk."""
        return length <= self.chunk_bytes * ALONE_SHARE

    def takes_alone(self, extent: Extent) -> bool:
        """Whether `bring` would read this extent: a small one in one chunk, of which memory has nothing."""
        number, start = divmod(extent.position, self.chunk_bytes)
        if not self.is_small(extent.length) or start + extent.length > self.chunk_bytes:
            return False
        key = (extent.source.name, number)
        return self.enabled and not (key in self._probation or key in self._protected or key in self._loads)

    async def bring(self, extents: Iterable[Extent], read_together: ReadTogether) -> None:
        """Bring small extents into memory, from many files in one go, without their chunks. They are checked as they
        are read. Those that do not come so are left to `read`, which reports what is wrong."""
        wanted: dict[ChunkKey, tuple[int, int]] = {}
        room = min(self.bytes_max * BROUGHT_SHARE, BROUGHT_BYTES_MAX)
        for extent in extents:
            if not self.takes_alone(extent):
                continue
            key, end = (extent.source.name, extent.position // self.chunk_bytes), extent.position + extent.length
            start, stop = wanted.get(key, (extent.position, extent.position))
            if stop != extent.position or not self.is_small(end - start):
                continue  # the chunk is read when that is asked for
            room -= extent.length + PIECE_BYTES_MORE
            if room < 0:
                break
            wanted[key] = (start, end)
        if wanted:
            await self._brings.run(next(iter(wanted)), lambda: self._read_alone(wanted, read_together))

    async def _read_alone(self, wanted: Mapping[ChunkKey, tuple[int, int]], read_together: ReadTogether) -> None:
        parts = [(name, start, end - start) for (name, _number), (start, end) in wanted.items()]
        await self._paced(sum(length for _name, _start, length in parts))
        contents = await read_together(parts)
        for (key, (start, end)), data in zip(wanted.items(), contents, strict=True):
            if data is None or len(data) != end - start or key in self._probation or key in self._protected:
                continue
            self._disk_bytes += len(data)
            self._keep(key, CachedChunk(data, start, end, is_new=True))

    def _joined(self, chunks: list[CachedChunk], position: int, length: int) -> memoryview:
        data, start = chunks[0].came_with
        if all(chunk.came_with[0] is data for chunk in chunks):  # as one chunk is with itself
            return data[position - start : position + length - start]
        parts = [chunk.data for chunk in chunks]
        parts[-1] = parts[-1][: position + length - chunks[-1].start]
        parts[0] = parts[0][position - chunks[0].start :]
        return memoryview(b"".join(parts))

    @property
    def is_reading_ahead(self) -> bool:
        """Whether anything is on its way for a reader that does not wait for it yet."""
        return bool(self._ahead or self._ahead_loads)

    def read_ahead(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> bool:
        """Load, in the background, up to this many chunks of the extents, in their order; whether that was begun. Does
        nothing when too much is under way: a reader that gets there first loads what it needs itself."""
        if not self.enabled or chunk_count <= 0 or len(self._ahead) >= AHEAD_TASKS_MAX or self.is_crowded:
            return False
        self._ahead.start(self._load_ahead(extents, chunk_count))
        return True

    def read_on(self, source: CachedFile, numbers: range) -> None:
        """As `read_ahead`, of these chunks of one file. If memory has them all no task is begun to find that out: most
        readers that go on from where they were find it so."""
        if not self.enabled or len(self._ahead) >= AHEAD_TASKS_MAX or self.is_crowded:
            return
        missing = [number for number in numbers if not self.holds(source, number)]
        if missing:
            self._ahead.start(self._load_on(source, missing))

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
                (source.name, position), wanted, whole, lambda length: self._from_disk_now(source, position, length)
            )
        except OutOfReach:
            raise
        except (MainstemError, OSError) as error:
            log.debug("a stretch of %s at %d cannot be read: %s", source.name, position, error)
            return None

    def keep_rest(self, extent: Extent, stretch: CachedChunk) -> None:
        """Keep what `stretch_past` brought for its reader, who goes on with this extent."""
        self._crowd.keep_rest((extent.source.name, extent.position), extent.length, stretch)
        self._evict()

    def take_rest(self, extent: Extent) -> CachedChunk | None:
        """The bytes kept for a reader that goes on with this extent, if they still are."""
        return self._crowd.take_rest((extent.source.name, extent.position))

    def has(self, extent: Extent) -> bool:
        """Whether all of an extent is in memory, or on its way there."""
        last = (extent.position + extent.length - 1) // self.chunk_bytes
        return all(self.holds(extent.source, number) for number in range(extent.position // self.chunk_bytes, last + 1))

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
        missing = [*self._missing(source, numbers, self._chunks_per_read)]
        if missing and missing[-1].stop == numbers.stop:
            missing[-1] = self._with_more(source, missing[-1], upto)
        return missing

    def _with_more(self, source: CachedFile, numbers: range, stop: int) -> range:
        """These chunks, and those behind them, below `stop`, that memory lacks and has room for: as many as are loaded
        in one read."""
        end = numbers.stop
        while end < stop and end - numbers.start < self._chunks_per_read and not self.holds(source, end):
            if not self._has_room_ahead(end + 1 - numbers.stop):
                break
            end += 1
        return range(numbers.start, end)

    async def _load_part(self, source: CachedFile, numbers: range, ahead_from: int) -> None:
        """Load neighbouring chunks of a stretch, of which its reader comes later for those from `ahead_from` on. Of
        what reads raise, raises `OutOfReach` alone."""
        ahead = max(0, numbers.stop - ahead_from)
        self._ahead_chunks += ahead
        self._ahead_under_way += ahead
        try:
            await self._load_together(source, numbers, ahead_from=ahead_from, has_room=True)
        except OutOfReach:
            raise
        except (MainstemError, OSError) as error:
            log.debug("chunks %s of %s cannot be read: %s", numbers, source.name, error)
        finally:
            self._ahead_under_way -= ahead

    def forget(self, name: str) -> None:
        """Drop what there is of a file that is gone."""
        self._crowd.forget(name)
        for segment in (self._probation, self._protected):
            for key in [key for key in segment if key[0] == name]:
                self._remove(key, segment)

    async def close(self) -> None:
        """Stop reading ahead and forget everything."""
        for errands in (self._ahead, self._ahead_loads):
            errands.cancel()
            await errands.ended()
        self._probation.clear()
        self._protected.clear()
        self._crowd.clear()
        self._bytes = self._protected_bytes = self._ahead_bytes = 0

    def samples(self, of: str = "", where: str = "disk 2") -> Iterable[Sample]:
        """Current values. `of` stands in the names, behind `mainstem_`, of a cache of other data than the disks';
        `where` says from where it is filled."""
        name = f"mainstem_{of}read_cache"
        yield Sample(f"{name}_bytes", "gauge", f"Memory held by the read cache of {where}.", self.bytes_held)
        yield Sample(f"{name}_hits_total", "counter", "Extents served from memory.", self._hits)
        yield Sample(f"{name}_misses_total", "counter", f"Extents that waited for {where}.", self._misses)
        yield Sample(f"{name}_disk_bytes_total", "counter", f"Bytes of files read from {where}.", self._disk_bytes)
        yield Sample(f"{name}_ahead_chunks_total", "counter", "Chunks read ahead of readers.", self._ahead_chunks)
        yield Sample(f"{name}_evicted_chunks_total", "counter", "Chunks evicted.", self._evicted_chunks)
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
            chunk = self._look_up((source.name, number), position, position + length, protects=protects)
            if chunk is not None and chunk.is_new:
                chunk.is_new = hit = False
            elif chunk is None:
                hit = False
                with self._crowd.reader_waiting():
                    chunk = await self._load(source, number)
                chunk.last_position = max(chunk.last_position, position)
                self._came_for(chunk)  # it may have been on its way for a read ahead
            chunks.append(chunk)
        if hit:
            self._hits += 1
        else:
            self._misses += 1
        return chunks, hit

    def _came_for(self, chunk: CachedChunk) -> None:
        if chunk.ahead:
            chunk.ahead = False
            self._ahead_bytes -= chunk.held_bytes

    def _look_up(self, key: ChunkKey, position: int, end: int, *, protects: bool) -> CachedChunk | None:
        chunk = self._protected.get(key) or self._probation.get(key)
        if chunk is None:
            return None
        if not self._is_whole(chunk) and not chunk.start <= position < end <= chunk.end:
            return None  # `_load` puts the whole chunk in its place
        if key in self._protected:
            self._protected.move_to_end(key)
            return chunk
        self._came_for(chunk)
        if protects and position < chunk.last_position and self._is_read_again(chunk, position):
            self._protect(key, chunk)
        else:
            self._probation.move_to_end(key)
        chunk.last_position = position
        return chunk

    def _is_read_again(self, chunk: CachedChunk, position: int) -> bool:
        """Whether a reader came back. To keep a chunk that came with others takes a copy of it: two queues that share
        one, and are each read once, are not worth that."""
        return not self.loads_stretches or position in chunk.checked

    def _protect(self, key: ChunkKey, chunk: CachedChunk) -> None:
        self._bytes += chunk.keep_alone()
        del self._probation[key]
        self._protected[key] = chunk
        self._protected_bytes += chunk.held_bytes
        while self._protected_bytes > self.bytes_max * PROTECTED_SHARE and len(self._protected) > 1:
            oldest, demoted = self._protected.popitem(last=False)
            self._protected_bytes -= demoted.held_bytes
            self._probation[oldest] = demoted
        self._evict()

    async def _load(
        self, source: CachedFile, number: int, *, ahead: bool = False, has_room: bool = False
    ) -> CachedChunk:
        key = (source.name, number)
        read = self._from_disk_now if has_room else self._from_disk

        async def load() -> CachedChunk:
            start = number * self.chunk_bytes
            data = await read(source, start, self.chunk_bytes)
            chunk = CachedChunk(data, start, start + self.chunk_bytes, ahead=ahead)
            self._put(source, chunk)
            self._evict()
            return chunk

        return await self._loads.run(key, load)

    async def _load_together(
        self, source: CachedFile, numbers: range, *, ahead_from: int, has_room: bool = False
    ) -> None:
        """Load neighbouring chunks in one read, but for those that came, or were begun, meanwhile; those from
        `ahead_from` on are ahead of their reader. `has_room`: the caller has waited for room, and would wait for itself
        if it did so once more. If that fails, and not because the source is out of reach, whoever
        wants one of them loads it alone: only one may be damaged."""
        read = self._from_disk_now if has_room else self._from_disk
        for some in self._missing(source, numbers, len(numbers)):
            if len(some) == 1:
                await self._load(source, some.start, ahead=some.start >= ahead_from, has_room=has_room)
                continue

            async def load(some: range = some) -> Sequence[CachedChunk | None]:
                begin = some.start * self.chunk_bytes
                try:
                    data = memoryview(await read(source, begin, len(some) * self.chunk_bytes))
                except OutOfReach:
                    raise
                except (MainstemError, OSError) as error:
                    log.debug("chunks %s of %s cannot be read together: %s", some, source.name, error)
                    return [None] * len(some)
                shared = ViewedBytes(data, begin, len(some))
                chunks: list[CachedChunk] = []
                for number in some:
                    start, end = number * self.chunk_bytes, (number + 1) * self.chunk_bytes
                    part = data[start - begin : end - begin]
                    chunks.append(CachedChunk(part, start, end, ahead=number >= ahead_from, shared=shared))
                    self._put(source, chunks[-1])
                self._evict()
                return chunks

            await self._loads.run_together([(source.name, number) for number in some], load)

    def _missing(self, source: CachedFile, numbers: range, count_max: int) -> Iterator[range]:
        """Yield the chunks among these that memory has not, nor are on their way: neighbours together, up to
        `count_max`."""
        first = numbers.start
        for number in numbers:
            if self.holds(source, number):
                if first < number:
                    yield range(first, number)
                first = number + 1
            elif number + 1 - first == count_max:
                yield range(first, number + 1)
                first = number + 1
        if first < numbers.stop:
            yield range(first, numbers.stop)

    def _put(self, source: CachedFile, chunk: CachedChunk) -> None:
        """Add a whole chunk, in place of what there is of it."""
        key = (source.name, chunk.start // self.chunk_bytes)
        for segment in (self._probation, self._protected):
            if key in segment:  # some extents of it
                self._remove(key, segment)
        self._add(key, chunk)

    def _keep(self, key: ChunkKey, chunk: CachedChunk) -> None:
        self._add(key, chunk)
        self._evict()

    def _add(self, key: ChunkKey, chunk: CachedChunk) -> None:
        self._probation[key] = chunk
        self._bytes += chunk.held_bytes
        if chunk.ahead:
            self._ahead_bytes += chunk.held_bytes

    def _evict(self) -> None:
        if self.bytes_held > self.bytes_max:
            self._crowd.drop_old()
        while self.bytes_held > self.bytes_max and (self._probation or self._protected):
            segment = self._probation if len(self._probation) > 1 or not self._protected else self._protected
            self._remove(next(iter(segment)), segment)
            self._evicted_chunks += 1

    def _remove(self, key: ChunkKey, segment: OrderedDict[ChunkKey, CachedChunk]) -> None:
        chunk = segment.pop(key)
        self._came_for(chunk)
        self._bytes -= chunk.let_go()
        if segment is self._protected:
            self._protected_bytes -= chunk.held_bytes

    # --- disk ---------------------------------------------------------------------------------------------

    async def _load_ahead(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> None:
        try:
            async with aclosing(extents):
                if self._ahead_together > 1:
                    await self._load_ahead_together(extents, chunk_count)
                    return
                async for source, number in self._chunk_places(extents):
                    if chunk_count == 0 or not self._has_room_ahead(1):
                        return
                    chunk_count -= 1
                    if not self.holds(source, number):
                        self._ahead_chunks += 1
                        await self._load(source, number, ahead=True)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead stopped: %s", error)

    async def _load_on(self, source: CachedFile, missing: Sequence[int]) -> None:
        try:
            for number in missing:
                if not self._has_room_ahead(1):
                    return
                if not self.holds(source, number):  # nor has another reader begun with it meanwhile
                    self._ahead_chunks += 1
                    await self._load(source, number, ahead=True)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead in %s stopped: %s", source.name, error)

    def _has_room_ahead(self, count: int) -> bool:
        """Whether memory has room for so many more chunks that are read ahead."""
        on_their_way = (self._ahead_under_way + count - 1) * self.chunk_bytes
        return self._ahead_bytes + on_their_way < self.bytes_max * AHEAD_SHARE

    async def _load_ahead_together(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> None:
        """Load chunks ahead of one reader, many at once, neighbours in one read. A read that would be of fewer for the
        only reason that `chunk_count` ends there is left to the next call, which is for more."""
        mine: set[asyncio.Task[bool]] = set()
        """The loads of this reader that are under way."""
        last: ChunkKey | None = None
        async for source, position, length, _crc in extents:
            first, end = position // self.chunk_bytes, (position + length - 1) // self.chunk_bytes + 1
            if (source.name, first) == last:
                first += 1
            numbers = range(first, min(end, first + chunk_count))
            at_once = max(chunk_count, self._ahead_under_way) // READS_AHEAD_LEAST
            together = max(1, min(self._chunks_per_read, at_once))
            for some in [*self._missing(source, numbers, together)]:
                if len(some) < together and some.stop == numbers.stop < end:
                    return
                if not self._has_room_ahead(len(some)) or not await self._load_beside(source, some, mine):
                    return
            chunk_count -= len(numbers)
            if chunk_count <= 0:
                return
            last = (source.name, end - 1)

    async def _load_beside(self, source: CachedFile, numbers: range, mine: set[asyncio.Task[bool]]) -> bool:
        """Begin to load neighbouring chunks, once there is room for one more read. False: one failed, or all readers
        together have as much on its way as they may."""
        if len(self._ahead_loads) >= AHEAD_LOADS_MAX:
            return False
        self._ahead_chunks += len(numbers)
        self._ahead_under_way += len(numbers)
        mine.add(self._ahead_loads.start(self._loaded_ahead(source, numbers)))
        if len(mine) >= self._ahead_together:
            done, _under_way = await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
            mine -= done
            return all(task.result() for task in done)
        return True

    async def _loaded_ahead(self, source: CachedFile, numbers: range) -> bool:
        try:
            await self._load_together(source, numbers, ahead_from=numbers.start)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead of chunks %s of %s failed: %s", numbers, source.name, error)
            return False
        finally:
            self._ahead_under_way -= len(numbers)
        return True

    async def _chunk_places(
        self, extents: AsyncGenerator[Extent, None]
    ) -> AsyncGenerator[tuple[CachedFile, int], None]:
        """The chunks that extents lie in, each once as long as the extents follow each other."""
        previous: ChunkKey | None = None
        async for extent in extents:
            last = (extent.position + extent.length - 1) // self.chunk_bytes
            for number in range(extent.position // self.chunk_bytes, last + 1):
                if (extent.source.name, number) != previous:
                    previous = (extent.source.name, number)
                    yield extent.source, number

    async def _from_disk(self, source: CachedFile, position: int, length: int) -> Buffer:
        if self._under_way is None:
            return await self._from_disk_now(source, position, length)
        async with self._under_way.of(length):
            return await self._from_disk_now(source, position, length)

    async def _from_disk_now(self, source: CachedFile, position: int, length: int) -> Buffer:
        at_once = await self._paced(length)
        data = await source.read(position, length, at_once=at_once)
        self._disk_bytes += len(data)
        return data

    async def _paced(self, length: int) -> bool:
        """Return when so many bytes may be read; whether no commits want the disk."""
        if self._bytes_per_second:
            now = self._clock.monotonic()
            start = max(self._paid_until, now)
            self._paid_until = start + length / self._bytes_per_second
            if start > now:
                await self._sleep(start - now)
        return self._pace is not None and await self._pace(length)

    def _check(self, extent: Extent, data: Buffer) -> None:
        if len(data) == extent.length and crc32c(data) == extent.crc:
            return
        self._checksum_failures += 1
        what = "fails its CRC" if len(data) == extent.length else f"is cut short at {len(data)} bytes"
        raise FormatError(
            f"{extent.source.name}: extent of {extent.length} bytes at {extent.position} {what}; "
            "restore the file from a copy or a replica"
        )


LOADS_TOGETHER = 4
"""Chunks requested at once: as many as there are threads for reads at once (`read_threads.py`); a reading thread alone
always has its next, and other readers wait for no more than these."""


async def load_chunks(
    cache: ReadCache, wanted: Sequence[tuple[CachedFile, int, int]]
) -> tuple[list[memoryview | None], bool]:
    """Chunks by number, and whether memory had all of them: one on its way is waited for as well. None for a chunk of
    which no bytes are wanted, and for an unreadable one: the reader that needs it reads it again by itself, and reports
    what is wrong."""
    chunks: list[memoryview | None] = [None] * len(wanted)
    missing = [at for at, (source, number, length) in enumerate(wanted) if length and not cache.holds(source, number)]

    waited = bool(missing)

    async def load(at: int) -> None:
        nonlocal waited
        source, number, _length = wanted[at]
        try:
            chunks[at], hit = await cache.span(source, number * cache.chunk_bytes, cache.chunk_bytes)
            waited = waited or not hit
        except (StorageError, OSError) as error:
            log.debug("chunk %d of %s cannot be read: %s", number, source.name, error)

    for first in range(0, len(missing), LOADS_TOGETHER):
        await asyncio.gather(*(load(at) for at in missing[first : first + LOADS_TOGETHER]))
    for at, (_source, _number, length) in enumerate(wanted):
        if length and chunks[at] is None:
            await load(at)
    return chunks, not waited
