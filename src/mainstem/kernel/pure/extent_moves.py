"""The work on the bytes of extents: check and gather them, find the batches in them, make their checksums."""

from __future__ import annotations

from mainstem.kernel.batch_header import HEADER, HEADER_BYTES, LENGTH_EXCLUDES
from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import Buffer

WALK_FIELDS = 7
"""Of a row that `walk_batches` writes: position, length, base offset, last offset, largest timestamp, records, leader
epoch."""


def gather_extents(source: Buffer, starts: Buffer, lengths: Buffer, checksums: Buffer, target: Buffer) -> int:
    """Copy pieces of `source` into `target`, one after the other. The number of the first whose CRC32C is not the one
    given, and then nothing behind it has been copied; -1: all are right.

    `starts`, `lengths` and `checksums` are native i64, one each per piece. ValueError when they are not of one length,
    or a piece lies outside of the source, or all together do not make up the target."""
    view, out = memoryview(source).cast("B"), memoryview(target).cast("B")
    columns = [memoryview(column).cast("B").cast("q") for column in (starts, lengths, checksums)]
    if len({len(column) for column in columns}) > 1:
        raise ValueError("starts, lengths and checksums are of one length, 8 bytes each")
    size = 0
    for start, length, _ in zip(*columns, strict=True):
        if start < 0 or length < 0 or length > len(view) - start:
            raise ValueError("a piece lies outside of the source")
        size += length
    if size != len(out):
        raise ValueError("the pieces do not make up the target")
    done = 0
    for number, (start, length, checksum) in enumerate(zip(*columns, strict=True)):
        piece = view[start : start + length]
        if crc32c(piece) != checksum:
            return number
        out[done : done + length] = piece
        done += length
    return -1


def walk_batches(buffer: Buffer, rows: Buffer) -> int:
    """Write a row of `WALK_FIELDS` native i64 for each record batch in `buffer`, as far as there is room in `rows`.

    Their number, when the buffer is made of whole batches and there is room for all. Otherwise minus one, minus the
    position of what is no batch, or has no room. ValueError when `rows` is not made of rows."""
    view = memoryview(buffer).cast("B")
    out = memoryview(rows).cast("B").cast("q")
    if len(out) % WALK_FIELDS:
        raise ValueError("rows are of seven fields, 8 bytes each")
    position = number = 0
    while position < len(view):
        if len(view) - position < HEADER_BYTES or (number + 1) * WALK_FIELDS > len(out):
            return -1 - position
        fields = HEADER.unpack_from(view, position)
        base_offset, length, epoch, last_delta, max_timestamp = fields[0], fields[1], fields[2], fields[6], fields[8]
        size = length + LENGTH_EXCLUDES
        if size < HEADER_BYTES or size > len(view) - position or last_delta < 0:
            return -1 - position
        out[number * WALK_FIELDS + 0] = position
        out[number * WALK_FIELDS + 1] = size
        out[number * WALK_FIELDS + 2] = base_offset
        out[number * WALK_FIELDS + 3] = base_offset + last_delta
        out[number * WALK_FIELDS + 4] = max_timestamp
        out[number * WALK_FIELDS + 5] = fields[12]
        out[number * WALK_FIELDS + 6] = epoch
        number += 1
        position += size
    return number


def checksum_pieces(buffer: Buffer, lengths: Buffer, checksums: Buffer, crc: int = 0) -> None:
    """The CRC32C of each piece, of pieces that make up the buffer one after the other, into `checksums`. The first goes
    on from `crc`. Lengths and checksums are native i64; ValueError when there are not as many, or the pieces do not
    make up the buffer."""
    view = memoryview(buffer).cast("B")
    sizes, out = memoryview(lengths).cast("B").cast("q"), memoryview(checksums).cast("B").cast("q")
    if len(sizes) != len(out) or min(sizes, default=0) < 0 or sum(sizes) != len(view):
        raise ValueError("as many checksums as lengths, which make up the buffer")
    position = 0
    for number, size in enumerate(sizes):
        out[number] = crc32c(view[position : position + size], crc)
        position += size
        crc = 0
