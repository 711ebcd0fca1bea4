"""The result of a read of the queue store, and how it is built from extents."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.kernel import take_extents
from mainstem.kernel.batch_header import EXTENT_BATCH, LENGTH_EXCLUDES
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.read_cache.cached_chunk import CachedChunk

_unpack = EXTENT_BATCH.unpack_from
_HEADER_BYTES = EXTENT_BATCH.size
_LENGTH_MIN = _HEADER_BYTES - LENGTH_EXCLUDES


class StoredSlice(NamedTuple):
    """Whole batches of one queue, each in a view of its own, following each other without a gap."""

    batches: list[memoryview]
    base_offset: int
    next_offset: int
    """The offset behind the last record of the last batch."""
    from_cache: bool
    """True when memory had all of it; otherwise the read waited for a disk."""


class SliceBuilder:
    """Takes extents of a queue in offset order, and keeps the batches of the requested offsets."""

    def __init__(self, offset: int, bytes_max: int) -> None:
        self._offset = offset
        self.bytes_max = bytes_max
        self._bytes_left = bytes_max
        self._batches: list[memoryview] = []
        self._base_offset = -1
        self._next_offset = -1
        self._from_cache = True
        self.past: tuple[str, CachedChunk] | None = None
        """The last stretch that was brought for this reader alone, and the name of its file."""

    def __len__(self) -> int:
        """Batches taken so far."""
        return len(self._batches)

    @property
    def bytes_left(self) -> int:
        return self._bytes_left

    def waited(self) -> None:
        """Its reader has waited for a disk."""
        self._from_cache = False

    def takes_whole(self, length: int) -> bool:
        """Whether there is room for all of an extent of so many bytes, or it is the first."""
        return not self._batches or length <= self._bytes_left

    def has_room(self, base_offset: int, batch_count: int, length: int) -> bool:
        """Whether an extent is worth reading: it continues the slice, and its first batch may fit."""
        if not self._batches:
            return True
        if base_offset != self._next_offset or self._bytes_left <= 0:
            return False
        return batch_count > 1 or length <= self._bytes_left

    def goes_on_at(self, base_offset: int) -> bool:
        """Whether an extent that begins there is the next as it is."""
        return base_offset == (self._next_offset if self._batches else self._offset)

    def add(self, extent: memoryview, from_cache: bool, where: str) -> bool:
        """Take the extent's batches. False when the slice ends within it. Raises `FormatError` naming `where`
        when it is not made of whole batches."""
        self._from_cache = self._from_cache and from_cache
        position, end = 0, len(extent)
        wanted, left, expected = self._offset, self._bytes_left, self._next_offset
        batches = self._batches
        try:
            while position < end:
                if end - position < _HEADER_BYTES:
                    raise FormatError(f"{where}: {end - position} bytes at +{position} are no record batch")
                base_offset, length, last_offset_delta = _unpack(extent, position)
                after = position + length + LENGTH_EXCLUDES
                if length < _LENGTH_MIN or after > end or last_offset_delta < 0:
                    raise FormatError(f"{where}: the record batch at +{position} claims {length} bytes")
                next_offset = base_offset + last_offset_delta + 1
                if next_offset > wanted:
                    if not batches:
                        self._base_offset = base_offset
                    elif after - position > left or base_offset != expected:
                        return False
                    batches.append(extent[position:after])
                    left -= after - position
                    expected = next_offset
                position = after
            return True
        finally:
            self._bytes_left, self._next_offset = left, expected

    def add_plain(self, chunk: CachedChunk, rows: Buffer) -> int:
        """Take the first of these extents, as rows of an index, that came with a chunk of their file and go on where
        the slice ends, whole and in one go. How many were taken; of the others `add` finds out what is to become."""
        if not self._batches:  # where the slice begins within an extent is for `add` to find
            self._next_offset = self._base_offset = self._offset
        data, start = chunk.came_with
        taken, size, self._next_offset = take_extents(
            data, start, rows, chunk.checked, self._next_offset, self._bytes_left, self._batches
        )
        self._bytes_left -= size
        return taken

    def build(self) -> StoredSlice:
        assert self._batches, "an index row names an extent that holds the offset"
        return StoredSlice(self._batches, self._base_offset, self._next_offset, self._from_cache)
