"""Are these bytes the batches that belong here? Asked of everything that comes back from a disk without a checksum of
its own: the batch must begin with the offset, length and leader epoch that an index says, and with the one magic there
is, none of which its CRC32C covers; and it must pass that."""

from __future__ import annotations

import struct

from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import Buffer

BATCH_START = struct.Struct(">qiibI")
"""Base offset, length, leader epoch, magic and CRC32C of a batch (Kafka's record batch v2)."""
MAGIC = 2
LENGTH_EXCLUDES = 12
CRC_COVERS_FROM = 21


def first_damaged(
    buffer: Buffer, starts: Buffer, lengths: Buffer, base_offsets: Buffer, leader_epochs: Buffer
) -> int:
    """The number of the first batch that is not what it should be, or lies outside the buffer; -1: all are whole.

    `starts` (in the buffer), `lengths` (of whole batches, in bytes), `base_offsets` and `leader_epochs` are of one
    length, native i64; ValueError if not.
    """
    view = memoryview(buffer).cast("B")
    columns = [memoryview(column).cast("B").cast("q") for column in (starts, lengths, base_offsets, leader_epochs)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("starts, lengths, base offsets and leader epochs are of one length, 8 bytes each")
    for number, (start, length, base_offset, leader_epoch) in enumerate(zip(*columns, strict=True)):
        if start < 0 or length < CRC_COVERS_FROM or start + length > len(view):
            return number
        if not is_batch(view[start : start + length], base_offset, leader_epoch):
            return number
    return -1


def is_batch(data: memoryview, base_offset: int, leader_epoch: int) -> bool:
    """Whether these bytes are the batch that begins at this offset, as it was stamped in this epoch."""
    if len(data) < CRC_COVERS_FROM:
        return False
    found_offset, found_length, found_epoch, magic, crc = BATCH_START.unpack_from(data)
    if (found_offset, found_epoch, magic) != (base_offset, leader_epoch, MAGIC):
        return False
    return bool(found_length + LENGTH_EXCLUDES == len(data) and crc32c(data[CRC_COVERS_FROM:]) == crc)
