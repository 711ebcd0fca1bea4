"""Bytes from a socket, cut into frames: an i32 length, then that many bytes.

The socket is read into one bytearray; frames are handed out as views of it, so a frame is valid until
the next call that takes space, and a large one as long as somebody holds a view of it. Nothing is ever resized in
place (exported views would forbid it): growing and shrinking replace the bytearray.

Memory follows the bytes that were really sent. The buffer starts small and doubles while reads fill it, up to
`READ_BYTES_MAX`; it grows beyond that only for a frame that needs it, by doubling, so that a lying length costs its
sender half of what it costs this node. Large frames lie in memory of their own, mapped as a whole when their first
bytes are there: pages take memory when they are written to, nothing is copied on the way, and all of it goes back.

It grows by permission of the code that counts the memory of all buffers. Without it reads are small, and a frame that
needs more room is starved until the permission, asked for again, is given.
"""

from __future__ import annotations

import mmap
import struct

from mainstem.kernel import untrack
from mainstem.ports import OWN_FRAME_BYTES_MIN

START_BYTES = 16 * 1024
"""The memory of an idle connection."""

READ_BYTES_MAX = 256 * 1024
"""The most that one read from a socket usefully returns."""

MAPPED_BYTES_MIN = 2 * 1024 * 1024
"""Larger buffers are mapped. Usual requests are smaller, and their buffers used again."""

KEEP_BYTES_MAX = OWN_FRAME_BYTES_MIN
"""A larger buffer, which holds one frame and nothing else, is given up as soon as that is taken: its memory lasts as
long as somebody holds a view of it."""

LENGTH_BYTES = 4
_LENGTH = struct.Struct(">i")


class Growth:
    """Permits a buffer to grow: to whatever it asks for. It holds no buffer."""

    __slots__ = ()

    def may_grow(self, capacity: int) -> bool:
        """Whether the buffer may get as large as that."""
        return True

    def resized(self, capacity: int) -> None:
        """The buffer has got smaller."""


UNBOUNDED_GROWTH = Growth()


class ReceiveBuffer:
    __slots__ = ("_buffer", "_end", "_growth", "_start", "_view", "starved")

    def __init__(self, growth: Growth = UNBOUNDED_GROWTH) -> None:
        self._growth = growth
        self.starved = 0
        """The size that the buffer needs for the next frame and may not have; 0: it needs no more."""
        self._buffer: bytearray | mmap.mmap = bytearray(START_BYTES)
        self._view = memoryview(self._buffer)
        """A view of the whole buffer: slices of it cost less than views of their own."""
        self._start = 0
        self._end = 0
        untrack(self)  # what permits it to grow does not hold it

    @property
    def capacity(self) -> int:
        return len(self._buffer)

    @property
    def unread(self) -> int:
        """Bytes received and not yet taken as frames."""
        return self._end - self._start

    @property
    def full(self) -> bool:
        return self._end == len(self._buffer) and self._start == 0

    def writable(self) -> memoryview:
        """The buffer for the next bytes. Not empty unless the buffer is `full`."""
        if self._end == len(self._buffer):
            self._compact(self._buffer)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were written to `writable()`."""
        self._end += count
        if self._end == len(self._buffer) < READ_BYTES_MAX and self._growth.may_grow(2 * len(self._buffer)):
            self._compact(bytearray(2 * len(self._buffer)))

    def length(self) -> int | None:
        """The length prefix of the next frame, unchecked; None while it is incomplete."""
        if self._end - self._start < LENGTH_BYTES:
            return None
        return int(_LENGTH.unpack_from(self._buffer, self._start)[0])

    @property
    def has_frame(self) -> bool:
        """Whether the next frame is complete."""
        length = self.length()
        return length is not None and LENGTH_BYTES + length <= self._end - self._start

    def take(self, length: int) -> memoryview | None:
        """The next frame without its prefix, or None while it is incomplete: then room is made for more of
        it. `length` is what `length()` said, once checked."""
        stop = self._start + LENGTH_BYTES + length
        if stop > self._end:
            self._make_room(LENGTH_BYTES + length)
            return None
        frame = self._view[self._start + LENGTH_BYTES : stop]
        self._start = stop
        return frame

    def put_back(self, length: int) -> None:
        """The frame of that length was taken last; it is the next one again."""
        self._start -= LENGTH_BYTES + length

    def whole(self) -> tuple[memoryview, int, int]:
        """The whole buffer, and the bounds of the bytes not yet taken as frames."""
        return self._view, self._start, self._end

    def skip(self, size: int) -> None:
        """Take frames of so many bytes in all, lengths included."""
        self._start += size

    def settle(self, *, scarce: bool = False) -> None:
        """Call it when no frame is in use: gives up a buffer too large to keep; where memory is `scarce`, any
        that is larger than it has to be."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEEP_BYTES_MAX:
                self._compact(bytearray(START_BYTES))
                self._growth.resized(START_BYTES)
            elif scarce:
                self.shrink()

    def shrink(self) -> None:
        """Go back to the size of an idle connection, if the buffer is empty."""
        if self._start == self._end and len(self._buffer) > START_BYTES:
            self._compact(bytearray(START_BYTES))
            self._growth.resized(START_BYTES)

    def give_up(self) -> None:
        """Nothing is received any more: hold no memory, however long other code holds this object."""
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def _make_room(self, size: int) -> None:
        if size <= len(self._buffer):
            if self._start + size > len(self._buffer):
                self._compact(self._buffer)
        elif self.unread == len(self._buffer):
            capacity = min(size, 2 * len(self._buffer))
            if capacity > MAPPED_BYTES_MIN:
                capacity = size
            if self._growth.may_grow(capacity):
                self.starved = 0
                self._compact(bytearray(capacity) if capacity <= MAPPED_BYTES_MIN else mmap.mmap(-1, capacity))
            else:
                self.starved = capacity
        elif self._start:
            self._compact(self._buffer)  # what there is of the frame, so that the rest fills the buffer

    def _compact(self, target: bytearray | mmap.mmap) -> None:
        unread = self.unread
        if self._start or target is not self._buffer:
            # through memoryviews: a slice assignment between overlapping ones moves without a temporary
            view = memoryview(target)
            view[:unread] = self._view[self._start : self._end]
            self._buffer, self._view = target, view
        self._start = 0
        self._end = unread
