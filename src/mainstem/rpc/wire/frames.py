"""Frames: the bytes between two nodes, without I/O.

    header (20 bytes, little-endian) · body (msgpack) · attachment (raw bytes)

A frame is one message. Its body is typed (`method.py`), its attachment is bytes the protocol never looks at, so that
blocks and batches travel as they lie. Every length is checked against a bound before a byte of the frame is kept: a
decoder holds at most one unfinished frame. Before the hellos are exchanged the bound is small, so that a stranger
cannot make a node buffer megabytes.

A decoder says where the next bytes go (`writable`), so that a socket writes them there: bytes of small frames into a
staging area, from which they are copied; those of a large frame into memory of its own, of which its attachment is
then a view.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mainstem.model import Buffer
from mainstem.rpc.errors import ProtocolViolation

HEADER = struct.Struct("<IBBHIII")
"""length of all that follows this field · kind · flags (0) · method or error code · request id · time left for the
call in ms (0: no deadline) · length of the body."""
HEADER_BYTES = HEADER.size
LENGTH_BYTES = 4
LENGTH = struct.Struct("<I")

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Larger than any block a write group closes; larger amounts travel as a stream."""

LOOKS_LIKE_TLS = (b"\x16\x03", b"\x15\x03")
"""The first bytes of a TLS handshake and of a TLS alert."""

HELLO_BYTES_MAX = 4096
"""Bound of the first frame of a connection."""

STAGING_BYTES = 64 * 1024
"""The staging area: the most that one read usefully returns where frames are small, and what an idle
connection holds."""

STAGED_FRAME_BYTES_MAX = STAGING_BYTES // 2
"""Larger frames get memory of their own: of a 1 MiB frame at most a sixteenth is copied, the part that came
with its header."""


class FrameKind(enum.IntEnum):
    HELLO = 1
    REQUEST = 2
    REPLY = 3
    """The one answer to a call."""
    ITEM = 4
    """One element of a streamed answer."""
    END = 5
    """The stream is complete."""
    ERROR = 6
    """Instead of REPLY or END; the method field is an `RpcErrorCode`."""
    CANCEL = 7
    """The caller no longer wants the answer."""
    CREDIT = 8
    """The caller took one ITEM and can hold one more."""
    TELL = 9
    """A request that is not answered; its request id is 0. From protocol version 2 on."""


class RpcErrorCode(enum.IntEnum):
    UNKNOWN_METHOD = 1
    MALFORMED = 2
    DEADLINE = 3
    OVERLOADED = 4
    FAILED = 5
    REFUSED = 6
    """A refusal that the method declares; the body names it."""
    VERSION = 7
    """For the connection (request id 0): no version in common. The connection ends."""
    IDENTITY = 8
    """For the connection, which then ends, or for one call: the peer's identity is refused; the body names
    the refusal."""


_KINDS = frozenset(int(kind) for kind in FrameKind)


class Frame(NamedTuple):
    kind: int
    code: int
    """Method number of a REQUEST, `RpcErrorCode` of an ERROR, else 0."""
    request_id: int
    time_left_ms: int
    body: bytes
    attachment: Buffer
    """Its bytes if the frame is small, a view of the frame's own memory if it is large; neither is written to
    again."""


def encode(
    kind: int,
    request_id: int,
    *,
    code: int = 0,
    time_left_ms: int = 0,
    body: bytes = b"",
    attachment: Sequence[Buffer] = (),
    frame_bytes_max: int = FRAME_BYTES_MAX,
) -> list[Buffer]:
    """A frame as buffers to be written in order; attachment buffers are passed through, not copied.

    Raises ValueError when the frame would be larger than `frame_bytes_max`."""
    size = HEADER_BYTES + len(body)
    for buffer in attachment:
        size += len(buffer)
    if size > frame_bytes_max:
        raise ValueError(f"a frame of {size} bytes is larger than the {frame_bytes_max} a peer accepts")
    header = HEADER.pack(size - LENGTH_BYTES, kind, 0, code, request_id, time_left_ms, len(body))
    return [header + body, *attachment]


_BARE_REPLY = struct.Struct("<IBBHIIIB")
_BARE_REPLY_HEAD = (_BARE_REPLY.size - LENGTH_BYTES, int(FrameKind.REPLY), 0, 0)
_EMPTY_MAP = 0x80
EMPTY_BODY = bytes([_EMPTY_MAP])
"""The body of a message without fields, in msgpack."""


def bare_reply(request_id: int) -> list[Buffer]:
    """The answer that says no more than that a call is done, as `encode` would make it of `EMPTY_BODY`."""
    return [_BARE_REPLY.pack(*_BARE_REPLY_HEAD, request_id, 0, 1, _EMPTY_MAP)]


class FrameDecoder:
    """Takes bytes, gives frames, in order. Take every frame there is before asking where the next bytes
    go."""

    __slots__ = ("_end", "_filled", "_header", "_large", "_staging", "_start", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._start = 0
        self._end = 0
        self._large: memoryview | None = None
        """The memory of the large frame under way; `_filled` of its bytes have arrived."""
        self._filled = 0
        self._header: tuple[int, ...] = ()

    def writable(self) -> memoryview:
        """The buffer for the next bytes; never empty once every frame was taken."""
        if self._large is not None:
            return self._large[self._filled :]
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end > STAGED_FRAME_BYTES_MAX:
            unread = self._end - self._start
            self._staging[:unread] = self._staging[self._start : self._end]
            self._start, self._end = 0, unread
        return self._staging[self._end :]

    def received(self, count: int) -> None:
        """`count` bytes were written to `writable()`."""
        if self._large is not None:
            self._filled += count
        else:
            self._end += count

    def fill(self, data: Buffer) -> Iterator[int]:
        """Copy received bytes to where they go, piece by piece: before the next piece, pass the yielded count
        to `received` and take the frames."""
        left = memoryview(data)
        while left:
            target = self.writable()
            count = min(len(target), len(left))
            target[:count] = left[:count]
            left = left[count:]
            yield count

    def next_frame(self) -> Frame | None:
        """The next whole frame, None when more bytes are needed. Raises `ProtocolViolation`."""
        if self._large is not None:
            if self._filled < len(self._large):
                return None
            view, self._large = self._large, None
            _, kind, _, code, request_id, time_left_ms, body_length = self._header
            stop = HEADER_BYTES + body_length
            return Frame(
                kind, code, request_id, time_left_ms,
                bytes(view[HEADER_BYTES : stop]), view[stop:].toreadonly(),
            )  # fmt: skip
        start = self._start
        available = self._end - start
        if available < HEADER_BYTES:
            if available >= LENGTH_BYTES:
                (length,) = LENGTH.unpack_from(self._staging, start)
                self._check_size(length + LENGTH_BYTES)
            return None
        header = HEADER.unpack_from(self._staging, start)
        length, kind, flags, code, request_id, time_left_ms, body_length = header
        size = length + LENGTH_BYTES
        if not HEADER_BYTES <= size <= self.frame_bytes_max:
            self._check_size(size)
        if kind not in _KINDS or flags:
            raise ProtocolViolation(f"frame kind {kind} with flags {flags:#x} is unknown")
        if body_length > size - HEADER_BYTES:
            raise ProtocolViolation(f"a body of {body_length} bytes in a frame of {size}")
        if available < size:
            if size > STAGED_FRAME_BYTES_MAX:
                self._begin_large(size, header)
            return None
        body = start + HEADER_BYTES
        attachment, end = body + body_length, start + size
        self._start = end
        staging = self._staging
        return Frame(
            kind, code, request_id, time_left_ms,
            bytes(staging[body:attachment]), bytes(staging[attachment:end]) if attachment < end else b"",
        )  # fmt: skip

    def _check_size(self, size: int) -> None:
        """Raises `ProtocolViolation` unless a frame may be so large."""
        if HEADER_BYTES <= size <= self.frame_bytes_max:
            return
        hint = ""
        if bytes(self._staging[self._start : self._start + len(LOOKS_LIKE_TLS[0])]) in LOOKS_LIKE_TLS:
            hint = ": these are bytes of TLS, which only one end speaks; set rpc_tls at both or at neither"
        raise ProtocolViolation(f"a frame of {size} bytes, allowed are {HEADER_BYTES} to {self.frame_bytes_max}{hint}")

    def _begin_large(self, size: int, header: tuple[int, ...]) -> None:
        # numpy's memory is not zeroed: that would touch every page once more, and a lying length costs nothing
        self._large = np.empty(size, np.uint8).data
        self._header = header
        self._filled = self._end - self._start
        self._large[: self._filled] = self._staging[self._start : self._end]
        self._start = self._end = 0
