"""Batches that no honest producer sends: of records that are all the same, under a header that says anything."""

from __future__ import annotations

from mainstem.kernel.batch_header import ATTRIBUTES_AT, CHECKSUM_AT, HEADER, HEADER_BYTES, MAGIC
from mainstem.model import BatchAppend
from mainstem.protocol.records import Compression, NewBatch, read_batch_header
from mainstem.protocol.records.batch import crc32c
from mainstem.protocol.records.compression import compress

KEYED_RECORD = bytes([14, 0, 0, 0, 2, 107, 1, 0])
"""Offset delta and timestamp delta 0, the key `k`, no value, no headers."""
KEYLESS_RECORD = bytes([12, 0, 0, 0, 1, 1, 0])


def crafted_batch(
    record: bytes,
    count: int,
    *,
    compression: Compression = Compression.ZSTD,
    base_timestamp: int = 1000,
    max_timestamp: int = 1000,
) -> bytes:
    payload = compress(compression, record * count)
    data = bytearray(HEADER_BYTES) + payload
    times = base_timestamp, max_timestamp
    HEADER.pack_into(data, 0, 0, len(data) - 12, -1, MAGIC, 0, compression, count - 1, *times, -1, -1, -1, count)
    data[CHECKSUM_AT : CHECKSUM_AT + 4] = crc32c(data, ATTRIBUTES_AT).to_bytes(4, "big")
    return bytes(data)


def to_append(queue_id: int, data: bytes) -> BatchAppend:
    return NewBatch(data, read_batch_header(data)).to_append(queue_id)
