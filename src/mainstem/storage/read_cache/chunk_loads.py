"""Loads chunks into memory: one at a time, or neighbours in one read. Loads of the same chunk are joined."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from mainstem.errors import MainstemError
from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.errors import OutOfReach
from mainstem.storage.read_cache.cached_chunk import CachedChunk, ViewedBytes
from mainstem.storage.read_cache.extent import CachedFile, ChunkKey
from mainstem.storage.read_cache.held_chunks import HeldChunks
from mainstem.storage.read_cache.paced_reads import PacedReads

log = logging.getLogger(__name__)


class ChunkLoads:
    """The chunks that are on their way into memory."""

    def __init__(self, held: HeldChunks, reads: PacedReads, chunk_bytes: int) -> None:
        self._held = held
        self._reads = reads
        self._chunk_bytes = chunk_bytes
        self._loads: SingleFlight[ChunkKey, CachedChunk] = SingleFlight()

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._loads

    def holds(self, source: CachedFile, number: int) -> bool:
        """Whether this chunk is in memory, or on its way there."""
        key = (source.name, number)
        return key in self._loads or self._held.has_whole(key)

    async def load(
        self, source: CachedFile, number: int, *, ahead: bool = False, has_room: bool = False
    ) -> CachedChunk:
        key = (source.name, number)
        read = self._reads.read_now if has_room else self._reads.read

        async def load() -> CachedChunk:
            start = number * self._chunk_bytes
            data = await read(source, start, self._chunk_bytes)
            chunk = CachedChunk(data, start, start + self._chunk_bytes, ahead=ahead)
            self._held.put(source, chunk)
            self._held.evict()
            return chunk

        return await self._loads.run(key, load)

    async def load_together(
        self, source: CachedFile, numbers: range, *, ahead_from: int, has_room: bool = False
    ) -> None:
        """Load neighbouring chunks in one read, but for those that came, or were begun, meanwhile; those from
        `ahead_from` on are ahead of their reader. `has_room`: the caller has waited for room, and would wait for itself
        if it did so once more. If that fails, and not because the source is out of reach, whoever
        wants one of them loads it alone: only one may be damaged."""
        read = self._reads.read_now if has_room else self._reads.read
        for some in self.missing(source, numbers, len(numbers)):
            if len(some) == 1:
                await self.load(source, some.start, ahead=some.start >= ahead_from, has_room=has_room)
                continue

            async def load(some: range = some) -> Sequence[CachedChunk | None]:
                begin = some.start * self._chunk_bytes
                try:
                    data = memoryview(await read(source, begin, len(some) * self._chunk_bytes))
                except OutOfReach:
                    raise
                except (MainstemError, OSError) as error:
                    log.debug("chunks %s of %s cannot be read together: %s", some, source.name, error)
                    return [None] * len(some)
                shared = ViewedBytes(data, begin, len(some))
                chunks: list[CachedChunk] = []
                for number in some:
                    start, end = number * self._chunk_bytes, (number + 1) * self._chunk_bytes
                    part = data[start - begin : end - begin]
                    chunks.append(CachedChunk(part, start, end, ahead=number >= ahead_from, shared=shared))
                    self._held.put(source, chunks[-1])
                self._held.evict()
                return chunks

            await self._loads.run_together([(source.name, number) for number in some], load)

    def missing(self, source: CachedFile, numbers: range, count_max: int) -> Iterator[range]:
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
