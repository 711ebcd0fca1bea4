"""The chunks in memory, and which of them goes when it is full.

Eviction is segmented: a chunk starts on probation and is protected only once a reader comes back to an earlier place in
it. So a reader passing through, however fast, evicts only chunks that passed through before it, and never those that
are read again and again. A chunk that was read ahead, and not used yet, is worth more than one that was: it stays until
as much as memory holds has come after it, for by then its reader has gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mainstem.storage.read_cache.cached_chunk import CachedChunk
from mainstem.storage.read_cache.extent import CachedFile, ChunkKey
from mainstem.storage.read_cache.readers_crowd import ReadersCrowd

PROTECTED_SHARE = 0.8
"""The share of the memory that chunks read again may fill; the rest is left to readers passing through."""


class HeldChunks:
    """Chunks by file and number, within `bytes_max` together with what the crowd holds."""

    def __init__(self, crowd: ReadersCrowd, *, bytes_max: int, chunk_bytes: int, come_together: bool) -> None:
        """`come_together`: neighbouring chunks may be views of the same bytes."""
        self._crowd = crowd
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes
        self._come_together = come_together
        self._unused: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        """Read ahead, and not used yet, in the order in which they came."""
        self._probation: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        self._protected: OrderedDict[ChunkKey, CachedChunk] = OrderedDict()
        self._bytes = 0
        self._protected_bytes = 0
        self._come_bytes = 0
        """Of all chunks so far."""
        self.ahead_bytes = 0
        """Bytes held that no reader has used yet."""
        self.evicted = 0
        self.ahead_is_less: Callable[[], None] = lambda: None
        """Called when a chunk that was read ahead was used, or has left."""

    def __contains__(self, key: ChunkKey) -> bool:
        """Whether there is a chunk, or some extents of it."""
        return key in self._probation or key in self._unused or key in self._protected

    @property
    def bytes_held(self) -> int:
        return self._bytes + self._crowd.held

    def has_whole(self, key: ChunkKey) -> bool:
        chunk = self._probation.get(key) or self._unused.get(key) or self._protected.get(key)
        return chunk is not None and self.is_whole(chunk)

    def look_up(self, key: ChunkKey, position: int, end: int, *, protects: bool) -> CachedChunk | None:
        chunk = self._protected.get(key) or self._probation.get(key) or self._unused.get(key)
        if chunk is None:
            return None
        if not self.is_whole(chunk) and not chunk.start <= position < end <= chunk.end:
            return None  # `_load` puts the whole chunk in its place
        if key in self._protected:
            self._protected.move_to_end(key)
            return chunk
        if chunk.ahead:
            self.came_for(key, chunk)
        if protects and position < chunk.last_position and self._is_read_again(chunk, position):
            self._protect(key, chunk)
        else:
            self._probation.move_to_end(key)
        chunk.last_position = position
        return chunk

    def came_for(self, key: ChunkKey, chunk: CachedChunk) -> None:
        """The reader of a chunk has come, if it was read ahead."""
        if chunk.ahead:
            self._is_not_ahead(chunk)
            if self._unused.get(key) is chunk:
                self._probation[key] = self._unused.pop(key)

    def _is_not_ahead(self, chunk: CachedChunk) -> None:
        chunk.ahead = False
        self.ahead_bytes -= chunk.held_bytes
        self.ahead_is_less()

    def is_whole(self, chunk: CachedChunk) -> bool:
        return chunk.end - chunk.start == self._chunk_bytes

    def _is_read_again(self, chunk: CachedChunk, position: int) -> bool:
        """Whether a reader came back. To keep a chunk that came with others takes a copy of it: two queues that share
        one, and are each read once, are not worth that."""
        return not self._come_together or position in chunk.checked

    def _protect(self, key: ChunkKey, chunk: CachedChunk) -> None:
        self._bytes += chunk.keep_alone()
        del self._probation[key]
        self._protected[key] = chunk
        self._protected_bytes += chunk.held_bytes
        while self._protected_bytes > self._bytes_max * PROTECTED_SHARE and len(self._protected) > 1:
            oldest, demoted = self._protected.popitem(last=False)
            self._protected_bytes -= demoted.held_bytes
            self._probation[oldest] = demoted
        self.evict()

    def put(self, source: CachedFile, chunk: CachedChunk) -> None:
        """Add a whole chunk, in place of what there is of it."""
        key = (source.name, chunk.start // self._chunk_bytes)
        for segment in self._segments:
            if key in segment:  # some extents of it
                self._remove(key, segment)
        self._add(key, chunk)

    def keep(self, key: ChunkKey, chunk: CachedChunk) -> None:
        self._add(key, chunk)
        self.evict()

    def _add(self, key: ChunkKey, chunk: CachedChunk) -> None:
        (self._unused if chunk.ahead else self._probation)[key] = chunk
        self._bytes += chunk.held_bytes
        self._come_bytes += chunk.held_bytes
        chunk.came_at = self._come_bytes
        if chunk.ahead:
            self.ahead_bytes += chunk.held_bytes

    def evict(self) -> None:
        if self.bytes_held > self._bytes_max:
            self._crowd.drop_old()
        while self.bytes_held > self._bytes_max and any(self._segments):
            segment = self._next_to_leave()
            self._remove(next(iter(segment)), segment)
            self.evicted += 1

    @property
    def _segments(self) -> tuple[OrderedDict[ChunkKey, CachedChunk], ...]:
        return self._probation, self._unused, self._protected

    def _next_to_leave(self) -> OrderedDict[ChunkKey, CachedChunk]:
        """The segment of which the first chunk goes next."""
        if self._unused:
            first = self._unused[next(iter(self._unused))]
            if first.came_at + self._bytes_max <= self._come_bytes:
                return self._unused
        if len(self._probation) > 1:
            return self._probation
        return self._protected or self._unused or self._probation

    def _remove(self, key: ChunkKey, segment: OrderedDict[ChunkKey, CachedChunk]) -> None:
        chunk = segment.pop(key)
        if chunk.ahead:
            self._is_not_ahead(chunk)
        self._bytes -= chunk.let_go()
        if segment is self._protected:
            self._protected_bytes -= chunk.held_bytes

    def forget(self, name: str) -> None:
        """Drop what there is of a file that is gone."""
        for segment in self._segments:
            for key in [key for key in segment if key[0] == name]:
                self._remove(key, segment)

    def clear(self) -> None:
        for segment in self._segments:
            segment.clear()
        self._bytes = self._protected_bytes = self.ahead_bytes = 0
