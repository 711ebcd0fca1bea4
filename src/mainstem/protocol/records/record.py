"""Decoding the records of a batch, one after the other.

Every length is bounded by the bytes of the record it stands in, every record by those of its batch, and the
decompressed batch by `bytes_max`. Positions in errors count from the start of the (decompressed) records.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from mainstem.kernel.batch_header import HEADER_BYTES
from mainstem.model import TimestampType
from mainstem.protocol.errors import CorruptBatch
from mainstem.protocol.records.batch import NewBatch, StoredBatch
from mainstem.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from mainstem.protocol.records.header import BatchHeader

T = TypeVar("T")

_SHIFT_END = 70  # ten bytes of seven bits


def read_signed_varint(buffer: bytes, position: int) -> tuple[int, int]:
    """The number at `position` (zigzag, seven bits a byte, up to ten bytes or 64 bits) and the position after it. An
    end of input raises IndexError, which readers of records turn into their own error."""
    byte = buffer[position]
    if byte < 0x80:  # as most are
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = buffer[position + 1]
    if second < 0x80:  # as of most others
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value = 0
    start = position
    for shift in range(0, _SHIFT_END, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return (value >> 1) ^ -(value & 1), position
    raise CorruptBatch("a variable-length number exceeds 64 bits", start)


def append_signed_varint(out: bytearray, value: int) -> None:
    """Append `value` (64 bits signed) to `out`."""
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


Headers = tuple[tuple[str, bytes | None], ...]

_CONTROL_KEY = struct.Struct(">hh")  # version, type
_CONTROL_VALUE = struct.Struct(">hi")  # version, coordinator epoch


@dataclass(frozen=True, slots=True)
class Record:
    """One message. `timestamp` is in ms; for LogAppendTime batches it is the batch's."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class ControlType(enum.IntEnum):
    """The kinds of control records: how a transaction ended."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """The end of a transaction. `type` is None for markers of a kind this version does not know."""

    type: ControlType | None
    coordinator_epoch: int


def read_records(batch: NewBatch | StoredBatch, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of a batch, in order. Raises `CorruptBatch`, `RecordsTooLarge` or
    `UnsupportedCompression`, at the latest when the bad record is reached."""
    return scan_records(batch, _says_nothing, _itself, bytes_max)


def _says_nothing(body: bytes, start: int, stop: int) -> None:
    """For `scan_records`: all records are read."""


def _itself(record: Record) -> Record:
    return record


def scan_records(
    batch: NewBatch | StoredBatch,
    quick: Callable[[bytes, int, int], T | None],
    other: Callable[[Record], T | None],
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[T]:
    """The contents of a batch's records, in order: whatever `quick` makes of the bytes between two positions, else
    whatever `other` makes of the record, without those of which neither makes anything. `quick` leaves to `other` all
    that it is not sure of. Raises like `read_records`, and like `other`."""
    header = batch.header
    payload = decompress(header.compression, memoryview(batch.data)[HEADER_BYTES:], bytes_max)
    body = payload if type(payload) is bytes else bytes(payload)
    position = 0
    for _ in range(header.record_count):
        try:
            size, start = read_signed_varint(body, position)
            stop = start + size
            if size < 0 or stop > len(body):
                raise CorruptBatch(f"a record claims {size} bytes", position)
            said = quick(body, start, stop)
            record = _read_record(body, start, stop, header) if said is None else None
        except IndexError:
            raise CorruptBatch("a record ends early", position) from None
        if record is not None:
            said = other(record)
        if said is not None:
            yield said
        position = stop
    if position != len(body):
        raise CorruptBatch(f"{len(body) - position} bytes follow the last record", position)


def _read_record(body: bytes, start: int, stop: int, header: BatchHeader) -> Record:
    position = start + 1  # attributes, unused so far
    timestamp_delta, position = read_signed_varint(body, position)
    offset_delta, position = read_signed_varint(body, position)
    key, position = _read_bytes(body, position, stop)
    value, position = _read_bytes(body, position, stop)
    count, position = read_signed_varint(body, position)
    if not 0 <= count <= stop - position:
        raise CorruptBatch(f"a record claims {count} headers", position)
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position, stop)
        if name is None:
            raise CorruptBatch("a record header has no name", position)
        content, position = _read_bytes(body, position, stop)
        headers.append((_text(name, position), content))
    if position != stop:
        raise CorruptBatch("a record does not fill its length", position)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        timestamp = header.max_timestamp
    else:
        timestamp = header.base_timestamp + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp, key, value, tuple(headers))


def _read_bytes(body: bytes, position: int, stop: int) -> tuple[bytes | None, int]:
    size, position = read_signed_varint(body, position)
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > stop:
        raise CorruptBatch(f"a part of a record claims {size} bytes", position)
    return body[position:end], end


def _text(name: bytes, position: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise CorruptBatch("the name of a record header is not UTF-8", position) from None


def read_control(record: Record) -> ControlRecord:
    """Decodes a record of a control batch. Raises `CorruptBatch`."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise CorruptBatch("a control record has no type", 0)
    _, code = _CONTROL_KEY.unpack_from(record.key)
    if code not in (ControlType.ABORT, ControlType.COMMIT):
        return ControlRecord(None, -1)
    if record.value is None or len(record.value) < _CONTROL_VALUE.size:
        raise CorruptBatch("a transaction marker has no coordinator epoch", 0)
    _, coordinator_epoch = _CONTROL_VALUE.unpack_from(record.value)
    return ControlRecord(ControlType(code), coordinator_epoch)
