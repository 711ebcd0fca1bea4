"""Bytes that lie in many places, which leave in their order without being joined.

Pure-Python twin of the compiled class. A large response from memory is a header for each partition and batches where
the store has them. Its bytes leave in one of two ways: `send` writes them to a socket from where they lie, `take` hands
them on as views, to a transport for instance that waits until a full socket takes more.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from mainstem.model import Buffer

PIECES_PER_CALL_MAX = 256
"""Pieces given to the system in one call; it takes no more than 1,024."""


_LEFT = memoryview(b"")
"""In the place of a piece that has left."""


class ScatteredBytes:
    __slots__ = ("_ends", "_first", "_left", "_pieces")

    def __init__(self, buffers: Iterable[Buffer] = ()) -> None:
        """Raises ValueError for a buffer that is not contiguous bytes."""
        pieces = [memoryview(buffer) for buffer in buffers]
        if not all(piece.itemsize == 1 and piece.c_contiguous for piece in pieces):
            raise ValueError("a piece is contiguous bytes")
        self._pieces = [piece for piece in pieces if len(piece)]
        self._ends = list(accumulate(map(len, self._pieces)))
        """Of each piece, counted from the beginning of the first."""
        self._first = 0
        """The first piece of which something has not left."""
        self._left = 0
        """Bytes that have left."""

    def __len__(self) -> int:
        """Bytes that have not left."""
        return self._ends[-1] - self._left if self._ends else 0

    def take(self, size: int) -> list[memoryview]:
        """Views of the next `size` bytes, or of all that are left; they have left then."""
        views = self._next(size, len(self._pieces))
        self._leave(sum(map(len, views)))
        return views

    def send(self, descriptor: int, size: int) -> int:
        """Write the next `size` bytes, or all that are left, to a socket, as far as it takes them without waiting; how
        many these were. A socket that fails takes none: whoever else writes to it is told why."""
        sent = 0
        while views := self._next(size - sent, PIECES_PER_CALL_MAX):
            try:
                taken = os.writev(descriptor, views)
            except OSError:
                break
            self._leave(taken)
            sent += taken
            if taken < sum(map(len, views)):
                break
        return sent

    def _next(self, size: int, count_max: int) -> list[memoryview]:
        """Views of the next `size` bytes, in no more than `count_max` pieces. All is done per list, not per piece."""
        first, ends = self._first, self._ends
        if size <= 0 or first == len(ends):
            return []
        until = self._left + size
        stop = min(bisect_left(ends, until, first) + 1, first + count_max, len(ends))
        views = self._pieces[first:stop]
        if ends[stop - 1] > until:
            views[-1] = views[-1][: until - ends[stop - 1]]
        gone = self._left - (ends[first] - len(self._pieces[first]))
        if gone:
            views[0] = views[0][gone:]
        return views

    def _leave(self, size: int) -> None:
        """Let go of the first `size` bytes."""
        self._left += size
        first = self._first
        self._first = bisect_right(self._ends, self._left, first)
        self._pieces[first : self._first] = [_LEFT] * (self._first - first)
