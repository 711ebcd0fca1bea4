"""Encodes the Produce response from the outcomes of the batches of a request.

Its fields are `protocol.messages.produce.ProduceResponse`; the codec is the oracle of its bytes. A field that this
broker never needs (record errors, another leader) is written as its default."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Protocol

from mainstem.kernel.layout import Verdict

ErrorTable = Sequence[tuple[int, bytes | None]]
"""Kafka's error code and message of each verdict, by its number."""

MESSAGE_BYTES_MAX = 32767
FRAME_BYTES_MAX = 2**31 - 1

_FLEXIBLE_FROM = 9
_LOG_START_FROM = 5
_MESSAGES_FROM = 8
_TOPIC_IDS_FROM = 13

_HEAD = struct.Struct(">ii")  # length, correlation id
_CORRELATION_ID_BYTES = 4
_COUNT = struct.Struct(">i")
_TEXT_LENGTH = struct.Struct(">h")
_PARTITION = struct.Struct(">ihqq")
"""Partition, error code, base offset, log append time."""
_PARTITION_AND_LOG_START = struct.Struct(">ihqqq")
_THROTTLE_MS = struct.Struct(">i")
_NO_RECORD_ERRORS = _COUNT.pack(0)
_NO_TAGS = b"\x00"


class _Answered(Protocol):
    """The fields of `ScannedBatch` that a response has."""

    partition: int
    verdict: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


def encode_response(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[bytes, int]],
    batches: Iterable[_Answered],
    errors: ErrorTable,
    throttle_ms: int = 0,
) -> bytes:
    """The frame of the response. `topics` has the key and the number of batches of each topic; `throttle_ms` is for how
    long the client is throttled."""
    flexible = version >= _FLEXIBLE_FROM
    tags = _NO_TAGS if flexible else b""
    tails = {int(Verdict.OK): _tail(version, None)}
    following = iter(batches)
    parts = [tags, _count(len(topics), flexible)]
    for key, count in topics:
        if version < _TOPIC_IDS_FROM:
            parts.append(_varint(len(key) + 1) if flexible else _TEXT_LENGTH.pack(len(key)))
        parts += (key, _count(count, flexible))
        for batch in islice(following, count):
            code, message = (0, None) if batch.verdict == Verdict.OK else errors[batch.verdict]
            tail = tails.get(batch.verdict)
            if tail is None:
                tail = tails[batch.verdict] = _tail(version, message)
            fields = batch.partition, code, batch.base_offset, batch.log_append_time_ms
            if version >= _LOG_START_FROM:
                parts += (_PARTITION_AND_LOG_START.pack(*fields, batch.log_start_offset), tail)
            else:
                parts += (_PARTITION.pack(*fields), tail)
        parts.append(tags)
    parts += (_THROTTLE_MS.pack(throttle_ms), tags)
    size = _CORRELATION_ID_BYTES + sum(map(len, parts))
    if size > FRAME_BYTES_MAX:
        raise OverflowError(f"a response of {size} bytes")
    return b"".join([_HEAD.pack(size, correlation_id), *parts])


def _tail(version: int, message: bytes | None) -> bytes:
    """The bytes behind the fixed fields of a partition. Raises ValueError for a message that is too long."""
    if message is not None and len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(f"an error message of {len(message)} bytes, more than a string may have")
    if version >= _FLEXIBLE_FROM:
        text = b"\x00" if message is None else _varint(len(message) + 1) + message
        return _count(0, True) + text + _NO_TAGS
    if version >= _MESSAGES_FROM:
        return _NO_RECORD_ERRORS + (b"\xff\xff" if message is None else _TEXT_LENGTH.pack(len(message)) + message)
    return b""


def _count(count: int, flexible: bool) -> bytes:
    return _varint(count + 1) if flexible else _COUNT.pack(count)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
