"""The fixed header of a record batch, and walking over batches without decoding them.

`kernel/batch_header.py` says where its fields stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mainstem.kernel.batch_header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    MAGIC_AT,
    TRANSACTIONAL_BIT,
)
from mainstem.model import Buffer, TimestampType
from mainstem.protocol.errors import CorruptBatch, UnsupportedMagic
from mainstem.protocol.records.compression import Compression, compression_of

__all__ = ["BatchHeader", "TimestampType", "read_batch_header", "walk_batches"]

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class BatchHeader(NamedTuple):
    """The header's fields, as they stand on the wire. Timestamps in ms."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    checksum: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.length + LENGTH_EXCLUDES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """Raises `UnsupportedCompression`."""
        return compression_of(self.attributes & COMPRESSION_MASK)

    @property
    def compression_code(self) -> int:
        """The code in the attributes, even if no compression has it."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        log_append_time = self.attributes & LOG_APPEND_TIME_BIT
        return TimestampType.LOG_APPEND_TIME if log_append_time else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)


def read_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`; the whole batch must lie within the buffer.

    Raises `UnsupportedMagic` for older record formats (their magic stands at the same place) and
    `CorruptBatch` for what is no batch. The checksum is not looked at.
    """
    remaining = len(buffer) - position
    if position < 0 or remaining <= MAGIC_AT:
        raise CorruptBatch(f"{max(remaining, 0)} bytes have no room for a batch header", position)
    magic = buffer[position + MAGIC_AT]
    if magic < MAGIC:
        raise UnsupportedMagic(magic, position + MAGIC_AT)
    if magic > MAGIC:
        raise CorruptBatch(f"unknown record format {magic}", position + MAGIC_AT)
    if remaining < HEADER_BYTES:
        raise CorruptBatch(f"{remaining} bytes have no room for a batch header", position)
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.length < HEADER_BYTES - LENGTH_EXCLUDES or header.size_bytes > remaining:
        what = f"a batch claims {header.length} bytes after its length, {remaining} are there in all"
        raise CorruptBatch(what, position + LENGTH_AT)
    if header.record_count < 0 or header.last_offset_delta < 0:
        what = f"a batch claims {header.record_count} records, the last at +{header.last_offset_delta}"
        raise CorruptBatch(what, position)
    return header


def walk_batches(buffer: Buffer, *, partial_last: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every batch in a concatenation of batches.

    `partial_last`: an incomplete last batch ends the walk instead of raising, as in Fetch responses, which
    may be cut anywhere. Raises as `read_batch_header`.
    """
    position = 0
    end = len(buffer)
    while position < end:
        if partial_last and _is_partial(buffer, position, end):
            return
        header = read_batch_header(buffer, position)
        yield position, header
        position += header.size_bytes


def _is_partial(buffer: Buffer, position: int, end: int) -> bool:
    if end - position < LENGTH_AT + LENGTH.size:
        return True
    (length,) = LENGTH.unpack_from(buffer, position + LENGTH_AT)
    return bool(length >= 0 and length + LENGTH_EXCLUDES > end - position)
