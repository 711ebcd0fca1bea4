"""Frames: the bytes between two nodes, without I/O.

    header (20 bytes, little-endian) · body (msgpack) · attachment (raw bytes)

A frame is one message. Its body is typed (`method.py`), its attachment is bytes the protocol never looks at,
so that blocks and batches travel as they lie. Every length is checked against a bound before a byte of it is
kept: a decoder holds at most one unfinished frame. Before the hellos are exchanged the bound is small, so
that a stranger cannot make a node buffer megabytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.model import Buffer
from mainstem.rpc.errors import ProtocolViolation

HEADER = struct.Struct("<IBBHIII")
"""length of all that follows this field · kind · flags (0) · method or error code · request id ·
time left for the call in ms (0: no deadline) · length of the body."""
LENGTH_BYTES = 4

FRAME_BYTES_MAX = 16 * 1024 * 1024
"""Larger than any block a write group closes; what moves more than this is a stream."""

HELLO_BYTES_MAX = 4096
"""Bound of the first frame of a connection."""


class Kind(enum.IntEnum):
    HELLO = 1
    REQUEST = 2
    REPLY = 3
    """The one answer of a call."""
    ITEM = 4
    """One element of a streamed answer."""
    END = 5
    """The stream is complete."""
    ERROR = 6
    """Instead of REPLY or END; the method field is an `ErrorCode`."""
    CANCEL = 7
    """The caller no longer wants the answer."""
    CREDIT = 8
    """The caller took one ITEM and can hold one more."""


class ErrorCode(enum.IntEnum):
    UNKNOWN_METHOD = 1
    MALFORMED = 2
    DEADLINE = 3
    OVERLOADED = 4
    FAILED = 5
    REFUSED = 6
    """A refusal the method declares; the body names it."""
    VERSION = 7


_KINDS = frozenset(int(kind) for kind in Kind)


class Frame(NamedTuple):
    kind: int
    code: int
    """Method number of a REQUEST, `ErrorCode` of an ERROR, else 0."""
    request_id: int
    time_left_ms: int
    body: bytes
    attachment: bytes


def encode(
    kind: Kind, request_id: int, *, code: int = 0, time_left_ms: int = 0, body: bytes = b"",
    attachment: Sequence[Buffer] = (), frame_bytes_max: int = FRAME_BYTES_MAX,
) -> list[Buffer]:
    """A frame as buffers to be written in order; attachment buffers are passed through, not copied.

    Raises ValueError when the frame would be larger than `frame_bytes_max`."""
    size = HEADER.size + len(body) + sum(len(buffer) for buffer in attachment)
    if size > frame_bytes_max:
        raise ValueError(f"a frame of {size} bytes is larger than the {frame_bytes_max} a peer accepts")
    header = HEADER.pack(size - LENGTH_BYTES, kind, 0, code, request_id, time_left_ms, len(body))
    return [header + body, *attachment]


class FrameDecoder:
    """Bytes in, frames out, in order."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._position = 0

    def feed(self, data: Buffer) -> None:
        if self._position == len(self._buffer):
            self._buffer.clear()
            self._position = 0
        elif self._position >= self.frame_bytes_max:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next_frame(self) -> Frame | None:
        """The next whole frame, None when more bytes are needed. Raises `ProtocolViolation`."""
        available = len(self._buffer) - self._position
        if available < LENGTH_BYTES:
            return None
        (length,) = struct.unpack_from("<I", self._buffer, self._position)
        size = length + LENGTH_BYTES
        if not HEADER.size <= size <= self.frame_bytes_max:
            raise ProtocolViolation(
                f"a frame of {size} bytes, allowed are {HEADER.size} to {self.frame_bytes_max}")
        if available < HEADER.size:
            return None
        _, kind, flags, code, request_id, time_left_ms, body_length = HEADER.unpack_from(
            self._buffer, self._position)
        if kind not in _KINDS or flags:
            raise ProtocolViolation(f"frame kind {kind} with flags {flags:#x} is unknown")
        if body_length > size - HEADER.size:
            raise ProtocolViolation(f"a body of {body_length} bytes in a frame of {size}")
        if available < size:
            return None
        start = self._position + HEADER.size
        self._position += size
        with memoryview(self._buffer) as view:
            body = bytes(view[start:start + body_length])
            attachment = bytes(view[start + body_length:self._position])
        return Frame(kind, code, request_id, time_left_ms, body, attachment)
