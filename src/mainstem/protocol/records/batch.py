"""Whole batches: as a producer sent them, as they are stored, and the step from one to the other.

Stamping changes bytes in place and only those the checksum does not cover (base offset, leader epoch), or,
for LogAppendTime, a handful that it does, after which it is computed anew.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mainstem.model import Buffer
from mainstem.protocol.errors import CorruptBatch
from mainstem.protocol.records.checksum import crc32c
from mainstem.protocol.records.header import (
    ATTRIBUTES_POSITION,
    CHECKSUM_POSITION,
    HEADER_BYTES,
    LEADER_EPOCH_POSITION,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_POSITION,
    BatchHeader,
    read_batch_header,
    walk_batches,
)

_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that has no place in a queue yet: its base offset and leader epoch mean nothing."""

    data: Buffer
    header: BatchHeader

    @classmethod
    def parse(cls, data: Buffer) -> NewBatch:
        """Check what a produce request must get right: one whole batch in `data`, its checksum, and as many
        records as its offsets say. Records are not decoded. Raises `CorruptBatch`, `UnsupportedMagic`."""
        header = read_batch_header(data)
        if header.size_bytes != len(data):
            raise CorruptBatch(f"{len(data) - header.size_bytes} bytes follow the batch", header.size_bytes)
        if header.record_count != header.last_offset_delta + 1:
            what = f"{header.record_count} records cannot end at offset +{header.last_offset_delta}"
            raise CorruptBatch(what, 0)
        verify_checksum(data, header)
        return cls(data, header)

    def stored(self, base_offset: int, leader_epoch: int) -> StoredBatch:
        """A copy of this batch, stamped with its place in a queue."""
        data = bytearray(self.data)
        restamp(data, base_offset, leader_epoch)
        return StoredBatch(data, self.header._replace(base_offset=base_offset, leader_epoch=leader_epoch))


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of a queue: offsets and leader epoch are real. Compaction may have left gaps in it."""

    data: Buffer
    header: BatchHeader

    @classmethod
    def parse(cls, data: Buffer) -> StoredBatch:
        """Wrap one whole batch, its checksum unchecked. Raises `CorruptBatch`, `UnsupportedMagic`."""
        header = read_batch_header(data)
        if header.size_bytes != len(data):
            raise CorruptBatch(f"{len(data) - header.size_bytes} bytes follow the batch", header.size_bytes)
        return cls(data, header)


def stored_batches(buffer: Buffer, *, partial_last: bool = False) -> Iterator[StoredBatch]:
    """The batches of a concatenation, as slices of `buffer`; see `walk_batches`."""
    view = memoryview(buffer)
    for position, header in walk_batches(view, partial_last=partial_last):
        yield StoredBatch(view[position : position + header.size_bytes], header)


def verify_checksum(data: Buffer, header: BatchHeader) -> None:
    """Raise `CorruptBatch` unless the checksum of the one batch in `data` is right."""
    computed = crc32c(data, ATTRIBUTES_POSITION)
    if computed != header.checksum:
        what = f"the batch's checksum is {header.checksum:#010x}, its bytes have {computed:#010x}"
        raise CorruptBatch(what, CHECKSUM_POSITION)


def restamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write a batch's place in a queue into it. The checksum does not cover these fields."""
    assert len(batch) >= HEADER_BYTES
    _OFFSET.pack_into(batch, 0, base_offset)
    _EPOCH.pack_into(batch, LEADER_EPOCH_POSITION, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, timestamp_ms: int) -> None:
    """Turn the one batch in `batch` into a LogAppendTime batch of that time, and renew its checksum.

    Records keep their own deltas; readers take the batch's max timestamp for each of them.
    """
    assert len(batch) >= HEADER_BYTES
    (attributes,) = _ATTRIBUTES.unpack_from(batch, ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME_BIT)
    _TIMESTAMP.pack_into(batch, MAX_TIMESTAMP_POSITION, timestamp_ms)
    _CHECKSUM.pack_into(batch, CHECKSUM_POSITION, crc32c(batch, ATTRIBUTES_POSITION))
