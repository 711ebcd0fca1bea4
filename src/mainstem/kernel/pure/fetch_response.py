"""A Fetch response, from the rows of a plan to the buffers of a frame.

Pure-Python twin of the compiled writer. Topics stand in the order of their first row, each with all of its rows. Small
parts are joined into one buffer, a large part stays the buffer it is: nothing of it is copied."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mainstem.kernel.layout import Verdict
from mainstem.kernel.pure.plan_row import PlanRow
from mainstem.kernel.pure.scattered_bytes import ScatteredBytes
from mainstem.model import Buffer

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13

UNCOPIED_BYTES_MIN = 8 * 1024
"""Stretches of batches from this size on stay buffers of their own. Below it the copy costs less than one more
object, and one more entry of the socket's list."""

SPARED_BYTES_MIN = 512
"""The same in a response of more than `JOINED_BYTES_MAX`. Its copy would not stay in the processor's caches until it is
sent, and may be pages that the kernel has yet to hand out."""

JOINED_BYTES_MAX = 256 * 1024

SCATTERED_FROM = 16
SCATTERED_BYTES_FROM = 128 * 1024
"""A response with so many uncopied stretches, or so many bytes in them, is made as `ScatteredBytes`: of few and large
ones each call to the system takes as much as a turn of the event loop may, where a transport makes one for each."""

FRAME_BYTES_MAX = 2**31 - 1

_HEAD = struct.Struct(">ii")  # length, correlation id
_THROTTLE = struct.Struct(">i")
_SESSION = struct.Struct(">hi")  # error code, session id
_LENGTH = struct.Struct(">i")
_NAME_LENGTH = struct.Struct(">h")
_V4 = struct.Struct(">ihqq")  # partition, error code, high watermark, last stable offset
_V5 = struct.Struct(">ihqqq")  # and log start
_DIVERGING = struct.Struct(">iq")
_ABORTED = struct.Struct(">qq")
_REPLICA = struct.Struct(">i")
_NO_TAGS = b"\x00"


class _Writer:
    """Gathers buffers."""

    def __init__(self, rows: Sequence[PlanRow]) -> None:
        large = sum(row.size for row in rows) > JOINED_BYTES_MAX
        self._uncopied_min = SPARED_BYTES_MIN if large else UNCOPIED_BYTES_MIN
        self.buffers: list[Buffer] = []
        self.stretches = self.stretch_bytes = 0
        """Buffers that are not copied, and the bytes in them."""
        self._small: list[Buffer] = []

    def add(self, *pieces: Buffer) -> None:
        self._small += pieces

    def stretch(self, buffer: Buffer) -> None:
        if len(buffer) < self._uncopied_min:
            self._small.append(buffer)
        else:
            self.flush()
            self.buffers.append(memoryview(buffer))
            self.stretches += 1
            self.stretch_bytes += len(buffer)

    def flush(self) -> None:
        if self._small:
            self.buffers.append(b"".join(self._small))
            self._small = []


def write_fetch_response(
    version: int,
    correlation_id: int,
    session_id: int,
    rows: Sequence[PlanRow],
    codes: Sequence[int],
    read_committed: bool,
    throttle_ms: int = 0,
) -> list[Buffer] | list[ScatteredBytes]:
    """The frame of a Fetch response without an error of its own: buffers, or one `ScatteredBytes` of many or large
    ones. Raises OverflowError beyond 2 GiB."""
    writer = _Writer(rows)
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        writer.add(_NO_TAGS)
    writer.add(_THROTTLE.pack(throttle_ms))
    if version >= 7:
        writer.add(_SESSION.pack(0, session_id))
    topics = _by_topic(rows)
    writer.add(_length(len(topics), flexible))
    _write_topics(writer, version, topics, codes, read_committed)
    if flexible:
        writer.add(_NO_TAGS)
    writer.flush()
    size = 4 + sum(map(len, writer.buffers))
    if size > FRAME_BYTES_MAX:
        raise OverflowError(f"a Fetch response of {size} bytes")
    writer.buffers[0] = _HEAD.pack(size, correlation_id) + writer.buffers[0]
    if writer.stretches >= SCATTERED_FROM or writer.stretch_bytes >= SCATTERED_BYTES_FROM:
        return [ScatteredBytes(writer.buffers)]
    return writer.buffers


def write_fetch_topics(
    version: int, rows: Sequence[PlanRow], codes: Sequence[int], read_committed: bool
) -> tuple[int, list[Buffer]]:
    """How many topics there are, and the topics alone. Raises OverflowError beyond 2 GiB."""
    writer = _Writer(rows)
    topics = _by_topic(rows)
    _write_topics(writer, version, topics, codes, read_committed)
    writer.flush()
    size = sum(map(len, writer.buffers))
    if size > FRAME_BYTES_MAX:
        raise OverflowError(f"topics of a Fetch response of {size} bytes")
    return len(topics), writer.buffers or [b""]


def _by_topic(rows: Sequence[PlanRow]) -> list[list[PlanRow]]:
    topics: dict[int, list[PlanRow]] = {}
    for row in rows:
        topics.setdefault(id(row.topic), []).append(row)
    return list(topics.values())


def _write_topics(
    writer: _Writer, version: int, topics: Sequence[list[PlanRow]], codes: Sequence[int], read_committed: bool
) -> None:
    for partitions in topics:
        writer.add(_key(partitions[0].topic.key, version), _length(len(partitions), version >= FLEXIBLE_FROM))
        for row in partitions:
            _write_row(writer, version, row, codes, read_committed)
        if version >= FLEXIBLE_FROM:
            writer.add(_NO_TAGS)


def _write_row(writer: _Writer, version: int, row: PlanRow, codes: Sequence[int], read_committed: bool) -> None:
    flexible = version >= FLEXIBLE_FROM
    served = row.high_watermark >= 0
    code = 0 if row.verdict == Verdict.OK else codes[row.verdict]
    numbers = row.partition, code, row.high_watermark, row.last_stable
    if version >= 5:
        writer.add(_V5.pack(*numbers, row.log_start))
    else:
        writer.add(_V4.pack(*numbers))
    # readers of committed data get a list of aborted transactions, others get none
    if read_committed and served:
        writer.add(_length(len(row.aborted), flexible))
        for transaction in row.aborted:
            writer.add(_ABORTED.pack(*transaction), _NO_TAGS if flexible else b"")
    else:
        writer.add(_length(-1, flexible))
    if version >= 11:
        writer.add(_REPLICA.pack(row.nearer))
    writer.add(_length(row.size, flexible))
    for buffer in row.records:
        writer.stretch(buffer)
    if flexible:
        if row.diverging is None:
            writer.add(_NO_TAGS)
        else:  # one tagged field: number 0, 13 bytes
            writer.add(b"\x01\x00\x0d", _DIVERGING.pack(*row.diverging), _NO_TAGS)


def _key(key: str | bytes, version: int) -> bytes:
    if isinstance(key, bytes):
        return key
    name = key.encode()
    if version >= FLEXIBLE_FROM:
        return _length(len(name), True) + name
    return _NAME_LENGTH.pack(len(name)) + name


def _length(length: int, flexible: bool) -> bytes:
    """The length of an array or of records; -1: null."""
    if not flexible:
        return _LENGTH.pack(length)
    value = length + 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
