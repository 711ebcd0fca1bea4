"""The index of aborted transactions, in every file of the queue store of format version 2.

It lies between the index rows and the footer: rows of `ABORTED_ROW`, sorted by (queue, last offset), and a frame like
the footer (`ABORTED_MAGIC`) that says where they begin, how many they are, and their CRC. A file of version 1 has
nothing there.

A transaction's row is in the file that has the transaction's marker, whatever files its batches are in. So a reader of
batches asks their file and those behind it, up to the first row whose last stable offset lies behind the batches: all
transactions before that offset had ended by then. That every file with a marker has such a row, the last marker of a
queue in a file has one without a producer (`NO_PRODUCER`), unless it has one of its own. These rows name no
transaction.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import google_crc32c
import numpy
import numpy.typing

from mainstem.model import Buffer
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import ABORTED_VERSION, FRAME_BYTES, FileFrame

ABORTED_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("producer_id", "<i8"),
        ("first_offset", "<i8"),
        ("last_offset", "<i8"),
        ("last_stable_offset", "<i8"),
    ]
)
ABORTED_ROW_BYTES = ABORTED_ROW.itemsize
assert ABORTED_ROW_BYTES == 40

ABORTED_MAGIC = 0x31544241534D  # "MSABT1"

NO_PRODUCER = -1
"""In a row that says how far transactions have ended, and names none."""

COPIED_ROWS_MAX = 1_000
"""A column of rows is no array of its own, and numpy's search copies it as a whole: a microsecond for so many. Among
more, Python's search is faster."""

SECTION_BYTES = FRAME_BYTES
"""Of the index without a row."""

AbortedRows = numpy.typing.NDArray[numpy.void]
"""A one-dimensional array of `ABORTED_ROW`, sorted by (queue, last offset)."""


def no_rows() -> AbortedRows:
    return numpy.zeros(0, ABORTED_ROW)


def section_of(rows: AbortedRows, position: int, name_crc: int) -> bytes:
    """The index of a file whose index rows end at `position`."""
    content = rows.tobytes()
    frame = FileFrame(
        ABORTED_MAGIC,
        google_crc32c.value(content),
        rows_position=position,
        row_count=len(rows),
        name_crc=name_crc,
        version=ABORTED_VERSION,
    )
    return content + frame.pack()


def fits(footer: FileFrame, size: int) -> bool:
    """Whether a file with this footer may have `size` bytes between its index rows and that."""
    if footer.version < ABORTED_VERSION:
        return size == 0
    return size >= SECTION_BYTES and (size - SECTION_BYTES) % ABORTED_ROW_BYTES == 0


def check_section(frame: Buffer, footer: FileFrame, position: int, size: int, where: str) -> FileFrame:
    """The frame of the section of `size` bytes from `position` on, whose last 64 bytes are `frame`. Raises
    `FormatError` naming `where`."""
    where = f"{where}: aborted transactions"
    found = FileFrame.unpack(frame, ABORTED_MAGIC, where)
    if found.version != ABORTED_VERSION or found.name_crc != footer.name_crc:
        raise FormatError(f"{where}: these are another file's")
    if found.rows_position != position or found.row_count * ABORTED_ROW_BYTES + SECTION_BYTES != size:
        raise FormatError(
            f"{where}: {found.row_count} rows from {found.rows_position} on, where {size} bytes from {position} on are"
        )
    return found


def checked_rows(frame: FileFrame, content: bytes, where: str) -> AbortedRows:
    """The rows of a section with this frame from their bytes. Raises `FormatError` naming `where`."""
    where = f"{where}: aborted transactions at {frame.rows_position}"
    if len(content) != frame.row_count * ABORTED_ROW_BYTES or google_crc32c.value(content) != frame.rows_crc:
        raise FormatError(f"{where}: their rows fail their CRC")
    rows = numpy.frombuffer(content, ABORTED_ROW)
    queue_ids, last = rows["queue_id"], rows["last_offset"]
    bad = (last < 0) | (rows["first_offset"] > last) | (rows["last_stable_offset"] > last + 1)
    bad |= (rows["producer_id"] == NO_PRODUCER) != (rows["first_offset"] < 0)
    bad[1:] |= (queue_ids[1:] < queue_ids[:-1]) | ((queue_ids[1:] == queue_ids[:-1]) & (last[1:] <= last[:-1]))
    if bad.any():
        raise FormatError(f"{where}: row {int(bad.argmax())} is out of order, or names offsets that cannot be")
    return rows


def joined_rows(pieces: Sequence[AbortedRows]) -> AbortedRows:
    """The rows of several files, or of several slices of a log, as those of one: each once, and of each queue the
    newest one at most that names no transaction."""
    rows = numpy.concatenate([no_rows(), *pieces])
    rows = rows[numpy.lexsort((rows["producer_id"] == NO_PRODUCER, rows["last_offset"], rows["queue_id"]))]
    keep = numpy.ones(len(rows), numpy.bool_)
    same_queue = rows["queue_id"][1:] == rows["queue_id"][:-1]
    keep[1:] = ~(same_queue & (rows["last_offset"][1:] == rows["last_offset"][:-1]))
    rows = rows[keep]
    is_last = numpy.ones(len(rows), numpy.bool_)
    is_last[:-1] = rows["queue_id"][1:] != rows["queue_id"][:-1]
    joined: AbortedRows = rows[is_last | (rows["producer_id"] != NO_PRODUCER)]
    return joined


def rows_within(rows: AbortedRows, extents: numpy.typing.NDArray[numpy.void]) -> AbortedRows:
    """Those of the rows whose last offset is in one of these extents (`EXTENT_ROW`, sorted by queue and offset)."""
    if not len(rows) or not len(extents):
        return rows[:0]
    queue_ids = numpy.concatenate((rows["queue_id"], extents["queue_id"]))
    last_offsets = numpy.concatenate((rows["last_offset"], extents["last_offset"]))
    is_extent = numpy.arange(len(queue_ids)) >= len(rows)
    order = numpy.lexsort((is_extent, last_offsets, queue_ids))
    before = numpy.empty(len(order), numpy.int64)
    before[order] = numpy.cumsum(is_extent[order])
    at = before[: len(rows)]
    """Per row, the first extent that does not end before it."""
    found = numpy.minimum(at, len(extents) - 1)
    inside = (at < len(extents)) & (extents["queue_id"][found] == rows["queue_id"])
    kept: AbortedRows = rows[inside & (extents["base_offset"][found] <= rows["last_offset"])]
    return kept


def of_queue(rows: AbortedRows, queue_id: int) -> AbortedRows:
    """The rows of one queue."""
    queue_ids, key = rows["queue_id"], numpy.uint64(queue_id)
    if len(rows) > COPIED_ROWS_MAX:
        return rows[bisect_left(queue_ids, key) : bisect_right(queue_ids, key)]
    return rows[int(queue_ids.searchsorted(key)) : int(queue_ids.searchsorted(key, side="right"))]


def first_behind(rows: AbortedRows, offset: int) -> int:
    """The first of one queue's rows whose last offset is not before an offset; how many there are: none."""
    last_offsets = rows["last_offset"]
    if len(rows) > COPIED_ROWS_MAX:
        return bisect_left(last_offsets, offset)
    return int(last_offsets.searchsorted(offset))
