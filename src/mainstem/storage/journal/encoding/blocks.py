"""Tells real blocks from bytes that only look like blocks, and reads what batches a block has. No I/O.

A block is real when it names the place it lies at, its CRC holds, and it continues the chain. Blocks of a
segment's former life name another place. The search behind damage has no chain to follow, so it goes by place
and CRC, and by what every block claims: everything below its `durable_position` was on disk when it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import google_crc32c
import numpy
import numpy.typing

from mainstem.kernel.batch_header import CHECKED_FROM, HEADER_BYTES, LENGTH_EXCLUDES, TO_LAST_OFFSET_DELTA
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.journal.encoding.format import (
    BLOCK_ALIGNMENT,
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    DIRECTORY_STRUCT,
    BlockHeader,
    offset_of,
)
from mainstem.storage.journal.encoding.transaction_rows import record_counts

Rows = numpy.typing.NDArray[numpy.void]

POSITION_FIELD = 32
"""The place in which a block header keeps its own position, bytes from its start."""
assert BlockHeader(0, 0, 0, 0, 0, 0, 0, 0, 0x0123456789ABCDEF, 0, 0, 0).pack(b"")[0][
    POSITION_FIELD : POSITION_FIELD + 8
] == (0x0123456789ABCDEF).to_bytes(8, "little")


def batches_fault(directory: Buffer, payload: Buffer) -> str | None:
    """Describe the first fault in the batches of a data block; None when all are what the directory says.

    Checked: place and length, base offset, leader epoch, last offset delta, and the batch's CRC32C."""
    view = memoryview(payload)
    for row in DIRECTORY_STRUCT.iter_unpack(directory):
        _queue, base_offset, _time, _producer, position, length, delta, _count, _seq, _pe, _at, epoch, crc = row
        batch = view[position : position + length]
        if length < HEADER_BYTES or len(batch) != length:
            return f"batch at payload byte {position} does not fit with its {length} bytes"
        base, stated_length, leader_epoch, magic, stated_crc, _a, last_delta = TO_LAST_OFFSET_DELTA.unpack_from(batch)
        if (
            (base, leader_epoch, last_delta, stated_crc) != (base_offset, epoch, delta, crc)
            or magic != 2
            or stated_length != length - LENGTH_EXCLUDES
        ):
            return f"batch at payload byte {position} is not the one in the directory"
        if google_crc32c.value(bytes(batch[CHECKED_FROM:])) != crc:
            return f"batch at payload byte {position} fails its CRC"
    return None


def places_in(buffer: Buffer, position: int) -> list[int]:
    """Offsets in `buffer`, which starts at journal `position`, where something lies that has a block's magic
    and names this very place. Both are multiples of `BLOCK_ALIGNMENT`."""
    assert position % BLOCK_ALIGNMENT == 0
    words = numpy.frombuffer(buffer, "<u8", len(buffer) // BLOCK_ALIGNMENT)
    field = POSITION_FIELD // BLOCK_ALIGNMENT
    if len(words) <= field:
        return []
    # The magic first: few words have it, and this looks through megabytes, at every start and not only after damage.
    begun = numpy.flatnonzero(words.view("<u4")[: 2 * (len(words) - field) : 2] == BLOCK_MAGIC)
    own = numpy.uint64(position) + begun.astype(numpy.uint64) * numpy.uint64(BLOCK_ALIGNMENT)
    return [int(index) * BLOCK_ALIGNMENT for index in begun[words[begun + field] == own]]


def block_at(buffer: Buffer, offset: int, position: int) -> BlockHeader | None:
    """The block at `offset` of `buffer` if it is whole (header and directory), names `position` as its place
    and its CRC holds. The chain is the caller's to check."""
    try:
        header = BlockHeader.unpack(buffer, offset, "")
    except FormatError:
        return None
    sound = header.position == position and header.durable_position <= position and header.verify(buffer, offset)
    return header if sound else None


def begins_block(buffer: Buffer, position: int, previous_crc: int) -> bool:
    """Whether what lies at journal `position` was written as a block there, behind the one with this CRC, though a bit
    of it may be another by now: it names its place, or continues the chain. `buffer` holds a header's bytes; with
    fewer there was no block."""
    if len(buffer) < BLOCK_HEADER_BYTES:
        return False
    fields = BLOCK_HEADER.unpack_from(buffer)
    magic, chained, own_position = fields[0], fields[2], fields[10]
    return bool(own_position == position or (magic == BLOCK_MAGIC and chained == previous_crc))


def blocks_in(buffer: Buffer, position: int) -> Iterator[BlockHeader]:
    """Every block found in `buffer`, which starts at journal `position`, whatever lies between them."""
    for offset in places_in(buffer, position):
        header = block_at(buffer, offset, position + offset)
        if header is not None:
            yield header


def extent_rows(header: BlockHeader, directory: Buffer) -> Rows:
    """A data block's batches as rows of a segment index (`EXTENT_ROW`), in the block's order."""
    return rows_of_blocks([(header, directory)])


def rows_of_blocks(blocks: Iterable[tuple[BlockHeader, Buffer]]) -> Rows:
    """The batches of many blocks, each with its directory, as `EXTENT_ROW` rows, one block after the other.

    All at once, since a segment has thousands of blocks: some array operations for each would keep the interpreter
    from publishing for a hundred milliseconds. A directory that is `bytes` of the right size makes no view, of which
    thousands would have the garbage collector visit everything young in the middle of that."""
    directories: list[Buffer] = []
    starts, counts = [], []
    for header, directory in blocks:
        size = header.batch_count * DIRECTORY_ROW_BYTES
        whole = isinstance(directory, bytes) and len(directory) == size
        directories.append(directory if whole else memoryview(directory)[:size])
        starts.append(offset_of(header.payload_position))
        counts.append(header.batch_count)
    entries = numpy.frombuffer(b"".join(directories), DIRECTORY_ROW)
    rows = numpy.zeros(len(entries), EXTENT_ROW)
    for name in ("queue_id", "base_offset", "max_timestamp", "length", "leader_epoch"):
        rows[name] = entries[name]
    rows["record_count"] = record_counts(entries)
    rows["last_offset"] = entries["base_offset"] + entries["last_offset_delta"]
    rows["position"] = numpy.repeat(numpy.array(starts, numpy.uint64), counts) + entries["position"]
    rows["batch_count"] = 1
    return rows


def sorted_rows(parts: list[Rows]) -> Rows:
    """Rows of many blocks as one array sorted by (queue, offset).

    Joined as bytes: numpy's own joining of structured rows holds the interpreter for tens of microseconds a part."""
    rows = numpy.frombuffer(b"".join(part.data for part in parts), EXTENT_ROW)
    return rows[numpy.lexsort((rows["base_offset"], rows["queue_id"]))]


assert BLOCK_HEADER_BYTES > POSITION_FIELD + 8
