"""Bytes that lie in many places, which leave in their order without being joined.

Pure-Python twin of the compiled class. A large response from memory is a header for each partition and batches where
the store has them. Its bytes leave in one of two ways: `send` writes them to a socket from where they lie, `take` hands
them on as views, to a transport for instance that waits until a full socket takes more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable

from mainstem.model import Buffer

PIECES_PER_CALL_MAX = 256
"""Pieces given to the system in one call; it takes no more than 1,024."""


class ScatteredBytes:
    __slots__ = ("_pieces", "_size")

    def __init__(self, buffers: Iterable[Buffer] = ()) -> None:
        """Raises ValueError for a buffer that is not contiguous bytes."""
        self._pieces: deque[memoryview] = deque()
        self._size = 0
        for buffer in buffers:
            piece = memoryview(buffer)
            if piece.itemsize != 1 or not piece.c_contiguous:
                raise ValueError("a piece is contiguous bytes")
            if len(piece):
                self._pieces.append(piece)
                self._size += len(piece)

    def __len__(self) -> int:
        """Bytes that have not left."""
        return self._size

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
        """Views of the next `size` bytes, in no more than `count_max` pieces."""
        views: list[memoryview] = []
        for piece in self._pieces:
            if size <= 0 or len(views) == count_max:
                break
            views.append(piece[:size])
            size -= len(views[-1])
        return views

    def _leave(self, size: int) -> None:
        """Let go of the first `size` bytes."""
        self._size -= size
        pieces = self._pieces
        while size > 0:
            if size < len(pieces[0]):
                pieces[0] = pieces[0][size:]
                return
            size -= len(pieces.popleft())
