"""Checks that bytes are the batches that belong at a place. Every batch read back from a disk without another checksum
must pass: it must begin with the offset, length and leader epoch that an index states, and with the only valid magic,
none of which its CRC32C covers; and its CRC32C must hold."""

from __future__ import annotations

from mainstem.kernel.batch_header import CHECKED_FROM, LENGTH_EXCLUDES, MAGIC, START
from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import Buffer


def first_damaged(buffer: Buffer, starts: Buffer, lengths: Buffer, base_offsets: Buffer, leader_epochs: Buffer) -> int:
    """The number of the first batch that is not what it should be, or lies outside the buffer; -1: all are whole.

    `starts` (in the buffer), `lengths` (of whole batches, in bytes), `base_offsets` and `leader_epochs` are of one
    length, native i64; ValueError if not.
    """
    view = memoryview(buffer).cast("B")
    columns = [memoryview(column).cast("B").cast("q") for column in (starts, lengths, base_offsets, leader_epochs)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("starts, lengths, base offsets and leader epochs are of one length, 8 bytes each")
    for number, (start, length, base_offset, leader_epoch) in enumerate(zip(*columns, strict=True)):
        if start < 0 or length < CHECKED_FROM or start + length > len(view):
            return number
        if not is_batch(view[start : start + length], base_offset, leader_epoch):
            return number
    return -1


def is_batch(data: memoryview, base_offset: int, leader_epoch: int, rest: Buffer = b"") -> bool:
    """Whether these bytes, and the `rest` behind them, are the batch that begins at this offset, as it was stamped in
    this epoch."""
    if len(data) < CHECKED_FROM:
        return False
    found_offset, found_length, found_epoch, magic, crc = START.unpack_from(data)
    if (found_offset, found_epoch, magic) != (base_offset, leader_epoch, MAGIC):
        return False
    if found_length + LENGTH_EXCLUDES != len(data) + len(rest):
        return False
    return bool(crc32c(rest, crc32c(data[CHECKED_FROM:])) == crc)
