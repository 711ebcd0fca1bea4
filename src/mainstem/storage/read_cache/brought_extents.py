"""Small extents that are brought into memory without their chunks, from many files in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mainstem.storage.disks.single_flight import SingleFlight
from mainstem.storage.read_cache.cached_chunk import PIECE_BYTES_MORE, CachedChunk
from mainstem.storage.read_cache.chunk_loads import ChunkLoads
from mainstem.storage.read_cache.extent import ChunkKey, Extent, ReadTogether
from mainstem.storage.read_cache.held_chunks import HeldChunks
from mainstem.storage.read_cache.paced_reads import PacedReads

ALONE_SHARE = 0.25
"""Of a chunk: larger extents are read with what lies around them in their chunks."""

BROUGHT_SHARE = 0.1
"""Of the memory, for what is brought at once: half of what readers passing through have."""

BROUGHT_BYTES_MAX = 1 << 20
"""As long as the disk takes for that other reads wait, as for a chunk."""


class BroughtExtents:
    """Extents that stand for their chunks until another extent of one of these is asked for."""

    def __init__(
        self, held: HeldChunks, loads: ChunkLoads, reads: PacedReads, *, bytes_max: int, chunk_bytes: int
    ) -> None:
        self._held = held
        self._loads = loads
        self._reads = reads
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes
        self._brings: SingleFlight[ChunkKey, None] = SingleFlight()
        """The chunks that are brought together, by the first of them."""

    def is_small(self, length: int) -> bool:
        """Whether an extent of so many bytes may be read without its chunk."""
        return length <= self._chunk_bytes * ALONE_SHARE

    def takes_alone(self, extent: Extent) -> bool:
        """Whether `bring` would read this extent: a small one in one chunk, of which memory has nothing."""
        number, start = divmod(extent.position, self._chunk_bytes)
        if not self.is_small(extent.length) or start + extent.length > self._chunk_bytes:
            return False
        key = (extent.source.name, number)
        return self._bytes_max > 0 and not (key in self._held or key in self._loads)

    async def bring(self, extents: Iterable[Extent], read_together: ReadTogether) -> None:
        """Bring small extents into memory, from many files in one go, without their chunks. They are checked as they
        are read. Those that do not come so are left to `read`, which reports what is wrong."""
        wanted: dict[ChunkKey, tuple[int, int]] = {}
        room = min(self._bytes_max * BROUGHT_SHARE, BROUGHT_BYTES_MAX)
        for extent in extents:
            if not self.takes_alone(extent):
                continue
            key, end = (extent.source.name, extent.position // self._chunk_bytes), extent.position + extent.length
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
        await self._reads.paced(sum(length for _name, _start, length in parts))
        contents = await read_together(parts)
        for (key, (start, end)), data in zip(wanted.items(), contents, strict=True):
            if data is None or len(data) != end - start or key in self._held:
                continue
            self._reads.bytes += len(data)
            self._held.keep(key, CachedChunk(data, start, end, is_new=True))
