"""Takes extents out of bytes that memory has: those that can be taken as they are, many in one go."""

from __future__ import annotations

import struct

from mainstem.kernel.batch_header import EXTENT_BATCH, HEADER_BYTES, LENGTH_EXCLUDES
from mainstem.kernel.pure.checksum import crc32c
from mainstem.model import Buffer

EXTENT_ROW = struct.Struct("<8xqq8xQIIII8x")
"""Of `extent_format.EXTENT_ROW`: base offset, last offset, position, length, batches, records, crc."""

OFFSET_MAX = 1 << 62
"""Offsets from here on are nobody's: sums of those below fit into 64 bits."""


def take_extents(
    data: memoryview,
    start: int,
    rows: Buffer,
    checked: set[int],
    offset: int,
    bytes_max: int,
    batches: list[memoryview],
) -> tuple[int, int, int]:
    """Append a view of each batch of the first of these extents to `batches`, as many extents as are plain. How many
    those are, how many bytes they have, and the offset behind them.

    An extent is plain if it lies in `data`, which begins at `start` in its file; if it begins at `offset`, or where
    the one before it ended; if all of it fits into what is left of `bytes_max`; if its CRC32C holds; and if it is made
    of whole batches that follow each other and end where the row says, below `OFFSET_MAX`. `checked` has the positions
    of the extents of which the CRC is known to hold, and is told of those that are checked here. Of an extent that is
    not plain nothing is taken: who wants it finds out why by itself. ValueError when `rows` is not made of index
    rows."""
    view = memoryview(rows).cast("B")
    if len(view) % EXTENT_ROW.size:
        raise ValueError("index rows are of 64 bytes")
    taken = taken_bytes = 0
    for base_offset, last_offset, position, length, _batches, _records, crc in EXTENT_ROW.iter_unpack(view):
        inside = position - start
        if base_offset != offset or not offset <= last_offset < OFFSET_MAX or length > bytes_max - taken_bytes:
            break
        if inside < 0 or inside + length > len(data):
            break
        extent = data[inside : inside + length]
        ends = _batch_ends(extent, offset, last_offset)
        if not ends:
            break
        if position not in checked:
            if crc32c(extent) != crc:
                break
            checked.add(position)
        batches += [extent[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        taken, taken_bytes, offset = taken + 1, taken_bytes + length, last_offset + 1
    return taken, taken_bytes, offset


def _batch_ends(extent: memoryview, offset: int, last_offset: int) -> list[int]:
    """The ends of the batches of a plain extent; none: it is not plain."""
    ends: list[int] = []
    position = 0
    while position < len(extent):
        if len(extent) - position < HEADER_BYTES:
            return []
        base_offset, length, last_delta = EXTENT_BATCH.unpack_from(extent, position)
        size = length + LENGTH_EXCLUDES
        if size < HEADER_BYTES or size > len(extent) - position or last_delta < 0 or base_offset != offset:
            return []
        position += size
        offset = base_offset + last_delta + 1
        ends.append(position)
    return ends if offset == last_offset + 1 else []
