"""A chunk of a file as the read cache holds it, and what memory it takes.

Chunks that came in one read are views of the same bytes. That memory is free once the last of them is gone, and counts
until then.
"""

from __future__ import annotations

from mainstem.model import Buffer

PIECE_BYTES_MORE = 512
"""The memory that a piece of a chunk takes besides its bytes."""


class ViewedBytes:
    """Bytes of a file, from `start` on, that several chunks are views of."""

    __slots__ = ("checked", "data", "start", "views")

    def __init__(self, data: memoryview, start: int, views: int) -> None:
        self.data = data
        self.start = start
        self.views = views
        self.checked: set[int] = set()
        """As of each of the chunks."""


class CachedChunk:
    """A chunk, or the bytes of some extents in it that follow each other."""

    __slots__ = (
        "_shared", "ahead", "came_at", "checked", "data", "end", "held_bytes", "is_new", "last_position", "start",
    )  # fmt: skip

    def __init__(
        self,
        data: Buffer,
        start: int,
        end: int,
        *,
        ahead: bool = False,
        is_new: bool = False,
        shared: ViewedBytes | None = None,
    ) -> None:
        """`data` are the bytes of the file from `start` on, its own unless they are of `shared`. `end`: of what it
        stands for, even behind the file's."""
        self.data = memoryview(data)
        self._shared = shared
        self.start = start
        self.end = end
        self.held_bytes = len(data) + PIECE_BYTES_MORE * is_new
        self.is_new = is_new
        """True of extents that were brought, until their reader has come for them: it has waited for the disk."""
        self.ahead = ahead
        """True until a reader has used it."""
        self.came_at = 0
        """The bytes of all chunks that memory had been given when this came, its own included."""
        self.checked: set[int] = set() if shared is None else shared.checked
        """Positions of the extents, lying in this chunk or reaching into it, whose CRC held, and of those in the chunks
        that came with it."""
        self.last_position = -1
        """The position at which the last read of the chunk started, in the file."""

    def has(self, position: int, length: int) -> bool:
        """Whether all of a stretch of the file is in it."""
        return self.start <= position and position + length <= self.start + len(self.data)

    @property
    def came_with(self) -> tuple[memoryview, int]:
        """The bytes that came in one read with this chunk, its own included, and where in the file they begin."""
        return (self.data, self.start) if self._shared is None else (self._shared.data, self._shared.start)

    def let_go(self) -> int:
        """Drop its bytes. Returns how much memory that frees: none, while other chunks are views of the same bytes."""
        if self._shared is None:
            return self.held_bytes
        self._shared.views -= 1
        return 0 if self._shared.views else len(self._shared.data)

    def keep_alone(self) -> int:
        """Have bytes of its own, for it will stay longer than its neighbours. Returns how much more memory that
        takes."""
        if self._shared is None:
            return 0
        freed = self.let_go()
        self._shared = None
        self.data = memoryview(bytes(self.data))
        self.checked = self.checked.copy()
        return self.held_bytes - freed
