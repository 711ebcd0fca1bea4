"""Building batches: for the node's internal topics, for the command line and for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mainstem.kernel.batch_header import (
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from mainstem.model import TimestampType
from mainstem.protocol.records.batch import NewBatch, crc32c
from mainstem.protocol.records.compression import Compression, compress
from mainstem.protocol.records.header import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, read_batch_header
from mainstem.protocol.records.record import ControlType, Headers, append_signed_varint

_NO_LEADER_EPOCH = -1
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A message to be put into a batch. `timestamp` in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def build_batch(
    records: Sequence[NewRecord],
    *,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> NewBatch:
    """One batch of at least one record, as a producer would send it (base offset 0)."""
    assert records, "a batch has at least one record"
    base_timestamp = records[0].timestamp
    body = bytearray()
    for offset_delta, record in enumerate(records):
        _append_record(body, record, offset_delta, record.timestamp - base_timestamp)
    payload = compress(compression, bytes(body))
    attributes = (
        compression
        | (LOG_APPEND_TIME_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    data = bytearray(HEADER_BYTES)
    data += payload
    HEADER.pack_into(
        data,
        0,
        0,
        len(data) - LENGTH_EXCLUDES,
        _NO_LEADER_EPOCH,
        MAGIC,
        0,
        attributes,
        len(records) - 1,
        base_timestamp,
        max(record.timestamp for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    CHECKSUM.pack_into(data, CHECKSUM_AT, crc32c(data, CHECKED_FROM))
    whole = bytes(data)
    return NewBatch(whole, read_batch_header(whole))


def build_empty_batch(offsets: int = 1) -> NewBatch:
    """A batch that takes so many offsets and has no record, as compaction leaves where records were: clients go on
    behind it."""
    data = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        data,
        0,
        0,
        len(data) - LENGTH_EXCLUDES,
        _NO_LEADER_EPOCH,
        MAGIC,
        0,
        Compression.NONE,
        offsets - 1,
        -1,
        -1,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        0,
    )
    CHECKSUM.pack_into(data, CHECKSUM_AT, crc32c(data, CHECKED_FROM))
    whole = bytes(data)
    return NewBatch(whole, read_batch_header(whole))


def build_control_batch(
    marker: ControlType, *, timestamp: int, producer_id: int, producer_epoch: int, coordinator_epoch: int
) -> NewBatch:
    """The batch that ends a transaction: one control record."""
    record = NewRecord(timestamp, _CONTROL_KEY.pack(0, marker), _CONTROL_VALUE.pack(0, coordinator_epoch))
    return build_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def _append_record(out: bytearray, record: NewRecord, offset_delta: int, timestamp_delta: int) -> None:
    body = bytearray(1)  # attributes, unused so far
    append_signed_varint(body, timestamp_delta)
    append_signed_varint(body, offset_delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    append_signed_varint(body, len(record.headers))
    for name, content in record.headers:
        _append_bytes(body, name.encode())
        _append_bytes(body, content)
    append_signed_varint(out, len(body))
    out += body


def _append_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        append_signed_varint(out, -1)
    else:
        append_signed_varint(out, len(content))
        out += content
