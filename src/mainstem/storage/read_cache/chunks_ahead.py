"""Chunks that are read ahead of their readers, in the background: of a disk one after the other for each reader, of
what is far away many at once, neighbours in one read. A reader that gets to a place first loads what it needs itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from mainstem.errors import MainstemError
from mainstem.storage.read_cache.chunk_loads import ChunkLoads
from mainstem.storage.read_cache.extent import CachedFile, ChunkKey, Extent
from mainstem.storage.read_cache.held_chunks import HeldChunks
from mainstem.storage.read_cache.readers_crowd import ReadersCrowd
from mainstem.supervised import Errands, Supervision

log = logging.getLogger(__name__)

AHEAD_TASKS_MAX = 8
"""Readers served by read-ahead at once, each by one chunk after the other: twice as many requests as a disk is given at
a time."""

AHEAD_LOADS_MAX = 32
"""Chunks that are read ahead at once for all readers, where more than one is for each: half of what an object store is
asked at once, so that those who wait for a chunk find a free place."""

READS_AHEAD_LEAST = 8
"""Neighbouring chunks are loaded in one read as far as that leaves so many reads on their way for what is read ahead:
they come beside each other, and each brings no more than one connection does."""


class ChunksAhead:
    """The chunks that are read ahead of all readers together, and the room for more."""

    def __init__(
        self,
        held: HeldChunks,
        loads: ChunkLoads,
        crowd: ReadersCrowd,
        supervision: Supervision | None,
        *,
        room: int,
        far_room: int,
        far_under_way: int,
        chunk_bytes: int,
        together: int,
        chunks_per_read: int,
    ) -> None:
        """`room`: the bytes that may be in memory, or on their way there, before their readers come for them;
        `far_room`, `far_under_way`: the same of what is read ahead many chunks at once, and those of them on their way.
        `together`, `chunks_per_read`: as `ReadCache` has them. Ahead of a crowd nothing is read."""
        self._held = held
        self._loads = loads
        self._crowd = crowd
        self.room = room
        self._far_room = far_room
        self._far_under_way = far_under_way
        self._chunk_bytes = chunk_bytes
        self._together = together
        self._chunks_per_read = chunks_per_read
        self._errands = Errands(supervision, "read ahead")
        self._requests = Errands(supervision, "chunk ahead")
        self.under_way = 0
        """Chunks on their way."""
        self.chunks = 0
        """Read ahead so far."""

    @property
    def is_under_way(self) -> bool:
        """Whether anything is on its way for a reader that does not wait for it yet."""
        return bool(self._errands or self._requests)

    def begin(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> bool:
        """Load, in the background, up to this many chunks of the extents, in their order; whether that was begun. Does
        nothing when too much is under way: a reader that gets there first loads what it needs itself."""
        if chunk_count <= 0 or len(self._errands) >= AHEAD_TASKS_MAX or self._crowd.is_crowded:
            return False
        self._errands.start(self._load_ahead(extents, chunk_count))
        return True

    def go_on(self, source: CachedFile, numbers: range) -> None:
        """As `begin`, of these chunks of one file. If memory has them all no task is begun to find that out: most
        readers that go on from where they were find it so."""
        if len(self._errands) >= AHEAD_TASKS_MAX or self._crowd.is_crowded:
            return
        missing = [number for number in numbers if not self._loads.holds(source, number)]
        if missing:
            self._errands.start(self._load_on(source, missing))

    def has_room(self, count: int) -> bool:
        """Whether memory has room for so many more chunks that are read ahead."""
        on_their_way = (self.under_way + count - 1) * self._chunk_bytes
        return self._held.ahead_bytes + on_their_way < self.room

    def has_far_room(self, count: int) -> bool:
        """The same for one more read of what is read ahead many chunks at once."""
        if len(self._requests) >= AHEAD_LOADS_MAX:
            return False
        on_their_way = (self.under_way + count - 1) * self._chunk_bytes
        return on_their_way < min(self._far_under_way, self._far_room - self._held.ahead_bytes)

    async def _load_ahead(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> None:
        try:
            async with aclosing(extents):
                if self._together > 1:
                    await self._load_ahead_together(extents, chunk_count)
                    return
                async for source, number in self._chunk_places(extents):
                    if chunk_count == 0 or not self.has_room(1):
                        return
                    chunk_count -= 1
                    if not self._loads.holds(source, number):
                        self.chunks += 1
                        await self._loads.load(source, number, ahead=True)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead stopped: %s", error)

    async def _load_on(self, source: CachedFile, missing: Sequence[int]) -> None:
        try:
            for number in missing:
                if not self.has_room(1):
                    return
                if not self._loads.holds(source, number):  # nor has another reader begun with it meanwhile
                    self.chunks += 1
                    await self._loads.load(source, number, ahead=True)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead in %s stopped: %s", source.name, error)

    async def _load_ahead_together(self, extents: AsyncGenerator[Extent, None], chunk_count: int) -> None:
        """Load chunks ahead of one reader, many at once, neighbours in one read. A read that would be of fewer for the
        only reason that `chunk_count` ends there is left to the next call, which is for more."""
        mine: set[asyncio.Task[bool]] = set()
        """The loads of this reader that are under way."""
        last: ChunkKey | None = None
        async for source, position, length, _crc in extents:
            first, end = position // self._chunk_bytes, (position + length - 1) // self._chunk_bytes + 1
            if (source.name, first) == last:
                first += 1
            numbers = range(first, min(end, first + chunk_count))
            at_once = max(chunk_count, self.under_way) // READS_AHEAD_LEAST
            together = max(1, min(self._chunks_per_read, at_once))
            for some in [*self._loads.missing(source, numbers, together)]:
                if len(some) < together and some.stop == numbers.stop < end:
                    return
                if not self.has_far_room(len(some)) or not await self._load_beside(source, some, mine):
                    return
            chunk_count -= len(numbers)
            if chunk_count <= 0:
                return
            last = (source.name, end - 1)

    async def _load_beside(self, source: CachedFile, numbers: range, mine: set[asyncio.Task[bool]]) -> bool:
        """Begin to load neighbouring chunks, and return once there is room for one more read. False: one failed."""
        mine.add(self._begun(source, numbers))
        if len(mine) >= self._together:
            done, _under_way = await asyncio.wait(mine, return_when=asyncio.FIRST_COMPLETED)
            mine -= done
            return all(task.result() for task in done)
        return True

    def load_missing(self, source: CachedFile, numbers: range) -> list[asyncio.Task[bool]]:
        """Begin to load those of neighbouring chunks that memory lacks: reads, each of which tells whether it did not
        fail."""
        return [self._begun(source, some) for some in [*self._loads.missing(source, numbers, len(numbers))]]

    def _begun(self, source: CachedFile, numbers: range) -> asyncio.Task[bool]:
        self.chunks += len(numbers)
        self.under_way += len(numbers)
        return self._requests.start(self._loaded_ahead(source, numbers))

    async def _loaded_ahead(self, source: CachedFile, numbers: range) -> bool:
        try:
            await self._loads.load_together(source, numbers, ahead_from=numbers.start)
        except (MainstemError, OSError) as error:  # the reader meets it again, and reports it
            log.debug("read ahead of chunks %s of %s failed: %s", numbers, source.name, error)
            return False
        finally:
            self.under_way -= len(numbers)
        return True

    async def _chunk_places(
        self, extents: AsyncGenerator[Extent, None]
    ) -> AsyncGenerator[tuple[CachedFile, int], None]:
        """The chunks that extents lie in, each once as long as the extents follow each other."""
        previous: ChunkKey | None = None
        async for extent in extents:
            last = (extent.position + extent.length - 1) // self._chunk_bytes
            for number in range(extent.position // self._chunk_bytes, last + 1):
                if (extent.source.name, number) != previous:
                    previous = (extent.source.name, number)
                    yield extent.source, number

    async def close(self) -> None:
        for errands in (self._errands, self._requests):
            errands.cancel()
            await errands.ended()
