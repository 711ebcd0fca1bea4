"""Bytes from a socket, cut into frames: an i32 length, then that many bytes.

One bytearray that the socket is read into; frames are handed out as views of it, so a frame is valid until
the next call that takes space. Nothing is ever resized in place (exported views would forbid it): growing
and shrinking replace the bytearray.

Memory follows what was really sent. The buffer starts small and doubles while reads fill it, up to
`READ_BYTES_MAX`; it grows beyond that only for a frame that needs it, to the frame's size at once when that
is moderate, else by doubling, so that a lying length costs its sender half of what it costs us.
"""

from __future__ import annotations

import struct

START_BYTES = 16 * 1024
"""What an idle connection costs."""

READ_BYTES_MAX = 256 * 1024
"""As much as one read from a socket usefully returns."""

GROW_AT_ONCE_BYTES = 1024 * 1024
"""Frames up to this size (the usual produce request) get their room without doubling."""

KEEP_BYTES_MAX = 4 * 1024 * 1024
"""A larger buffer is given up as soon as the frame it grew for is gone."""

LENGTH_BYTES = 4
_LENGTH = struct.Struct(">i")


class ReceiveBuffer:
    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(START_BYTES)
        self._view = memoryview(self._buffer)
        """All of the buffer: slices of it cost less than views of their own."""
        self._start = 0
        self._end = 0

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
        """Where the next bytes go. Not empty unless the buffer is `full`."""
        if self._end == len(self._buffer):
            self._compact(self._buffer)
        return self._view[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were written to `writable()`."""
        self._end += count
        if self._end == len(self._buffer) < READ_BYTES_MAX:
            self._replace(2 * len(self._buffer))

    def length(self) -> int | None:
        """The length prefix of the next frame, unchecked; None while it is incomplete."""
        if self._end - self._start < LENGTH_BYTES:
            return None
        return int(_LENGTH.unpack_from(self._buffer, self._start)[0])

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

    def whole(self) -> tuple[memoryview, int, int]:
        """All of the buffer, and from where to where there are bytes not yet taken as frames."""
        return self._view, self._start, self._end

    def skip(self, size: int) -> None:
        """Frames of so many bytes in all, lengths included, are taken."""
        self._start += size

    def settle(self) -> None:
        """To be called when no frame is in use: gives up a buffer too large to keep."""
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEEP_BYTES_MAX:
                self._compact(bytearray(READ_BYTES_MAX))

    def shrink(self) -> None:
        """Back to the size of an idle connection, if nothing is in the buffer."""
        if self._start == self._end and len(self._buffer) > START_BYTES:
            self._compact(bytearray(START_BYTES))

    def _make_room(self, size: int) -> None:
        if size <= len(self._buffer):
            if self._start + size > len(self._buffer):
                self._compact(self._buffer)
        elif size <= GROW_AT_ONCE_BYTES:
            self._replace(size)
        elif self.unread == len(self._buffer):
            self._replace(min(size, max(GROW_AT_ONCE_BYTES, 2 * len(self._buffer))))

    def _replace(self, capacity: int) -> None:
        self._compact(bytearray(capacity))

    def _compact(self, target: bytearray) -> None:
        unread = self.unread
        if self._start or target is not self._buffer:
            # through memoryviews: a slice assignment between overlapping ones moves without a temporary
            view = memoryview(target)
            view[:unread] = self._view[self._start : self._end]
            self._buffer, self._view = target, view
        self._start = 0
        self._end = unread
