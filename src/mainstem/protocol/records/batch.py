"""Whole batches: as a producer sent them, as they are stored, and the step from one to the other.

Stamping changes bytes in place and only those the checksum does not cover (base offset, leader epoch), or,
for LogAppendTime, a handful that it does, after which it is computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c

from mainstem.kernel import first_damaged as first_damaged  # also for rooms that the kernel is closed to
from mainstem.kernel.batch_header import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_OFFSET,
    BASE_OFFSET_AT,
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    HEADER_BYTES,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    LOG_APPEND_TIME_BIT,
    MAX_TIMESTAMP_AT,
    TIMESTAMP,
)
from mainstem.model import BatchAppend, Buffer
from mainstem.protocol.errors import CorruptBatch
from mainstem.protocol.records.header import BatchHeader, read_batch_header, walk_batches

_CHUNK_BYTES = 64 * 1024
"""The library takes only `bytes`, so other buffers must be copied. Piece by piece the copy stays in the
processor's cache (as fast as one large copy at 1 MB) and needs no second batch's worth of memory."""


def crc32c(buffer: Buffer, start: int = 0) -> int:
    """The checksum of `buffer` from `start` to its end."""
    size = len(buffer) - start
    if size <= _CHUNK_BYTES:
        checksum: int = google_crc32c.value(bytes(buffer[start:]))
        return checksum
    view = memoryview(buffer)
    checksum = 0
    for position in range(start, len(buffer), _CHUNK_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(view[position : position + _CHUNK_BYTES]))
    return checksum


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that has no place in a queue yet: its base offset and leader epoch mean nothing."""

    data: Buffer
    header: BatchHeader

    @classmethod
    def parse(cls, data: Buffer) -> NewBatch:
        """Check a produce request's batch: one whole batch in `data`, its checksum, and as many records as
        its offsets say. Records are not decoded. Raises `CorruptBatch`, `UnsupportedMagic`."""
        header = read_batch_header(data)
        if header.size_bytes != len(data):
            raise CorruptBatch(f"{len(data) - header.size_bytes} bytes follow the batch", header.size_bytes)
        if header.record_count != header.last_offset_delta + 1:
            what = f"{header.record_count} records cannot end at offset +{header.last_offset_delta}"
            raise CorruptBatch(what, 0)
        verify_checksum(data, header)
        return cls(data, header)

    def to_append(self, queue_id: int, *, log_append_time: bool = False) -> BatchAppend:
        """This batch for the end of a queue, as a store takes it, without a copy. `log_append_time`: the store stamps
        it with its own clock."""
        header = self.header
        return BatchAppend(
            queue_id,
            memoryview(self.data),
            header.record_count,
            header.last_offset_delta,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.attributes,
            header.checksum,
            log_append_time,
        )

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
    computed = crc32c(data, CHECKED_FROM)
    if computed != header.checksum:
        what = f"the batch's checksum is {header.checksum:#010x}, its bytes have {computed:#010x}"
        raise CorruptBatch(what, CHECKSUM_AT)


def restamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write a batch's place in a queue into it. The checksum does not cover these fields."""
    assert len(batch) >= HEADER_BYTES
    BASE_OFFSET.pack_into(batch, BASE_OFFSET_AT, base_offset)
    LEADER_EPOCH.pack_into(batch, LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, timestamp_ms: int) -> None:
    """Turn the one batch in `batch` into a LogAppendTime batch of that time, and renew its checksum.

    Records keep their own deltas; readers take the batch's max timestamp for each of them.
    """
    assert len(batch) >= HEADER_BYTES
    (attributes,) = ATTRIBUTES.unpack_from(batch, ATTRIBUTES_AT)
    ATTRIBUTES.pack_into(batch, ATTRIBUTES_AT, attributes | LOG_APPEND_TIME_BIT)
    TIMESTAMP.pack_into(batch, MAX_TIMESTAMP_AT, timestamp_ms)
    CHECKSUM.pack_into(batch, CHECKSUM_AT, crc32c(batch, CHECKED_FROM))
