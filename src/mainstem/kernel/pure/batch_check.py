"""Are these bytes the batches that belong here? Asked of everything that comes back from a disk without a checksum of
its own: the batch must begin with the offset and length that an index says, and pass its CRC32C."""

from __future__ import annotations

import struct

from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import Buffer

BATCH_START = struct.Struct(">qi5xI")
"""Base offset, length and CRC32C of a batch (Kafka's record batch v2)."""
LENGTH_EXCLUDES = 12
CRC_COVERS_FROM = 21


def first_damaged(buffer: Buffer, starts: Buffer, lengths: Buffer, base_offsets: Buffer) -> int:
    """The number of the first batch that is not what it should be, or lies outside the buffer; -1: all are whole.

    `starts` (in the buffer), `lengths` (of whole batches, in bytes) and `base_offsets` are of one length, native i64;
    ValueError if not.
    """
    view = memoryview(buffer).cast("B")
    columns = [memoryview(column).cast("B").cast("q") for column in (starts, lengths, base_offsets)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("starts, lengths and base offsets are of one length, 8 bytes each")
    for number, (start, length, base_offset) in enumerate(zip(*columns, strict=True)):
        if start < 0 or length < CRC_COVERS_FROM or start + length > len(view):
            return number
        found_offset, found_length, crc = BATCH_START.unpack_from(view, start)
        if found_offset != base_offset or found_length + LENGTH_EXCLUDES != length:
            return number
        if crc32c(view[start + CRC_COVERS_FROM : start + length]) != crc:
            return number
    return -1
