"""The index of aborted transactions, in every file of the queue store of format version 2: empty so far, and checked.

It lies between the index rows and the footer: rows of `ABORTED_ROW`, sorted by (queue, first offset), and a frame like
the footer (`ABORTED_MAGIC`) that says where they begin and how many they are. A file of version 1 has nothing there. No
batch of this version is part of a transaction, so whatever has rows here was written by a later one: it is refused, as
readers would be given records that never were committed.
"""

from __future__ import annotations

import numpy

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

SECTION_BYTES = FRAME_BYTES
"""Of the index without a row."""


def empty_section(position: int, name_crc: int) -> bytes:
    """The index of a file without an aborted transaction, whose index rows end at `position`."""
    return FileFrame(ABORTED_MAGIC, rows_position=position, name_crc=name_crc, version=ABORTED_VERSION).pack()


def fits(footer: FileFrame, size: int) -> bool:
    """Whether a file with this footer may have `size` bytes between its index rows and that."""
    if footer.version < ABORTED_VERSION:
        return size == 0
    return size >= SECTION_BYTES and (size - SECTION_BYTES) % ABORTED_ROW_BYTES == 0


def check_section(frame: Buffer, footer: FileFrame, position: int, size: int, where: str) -> None:
    """Check the section of `size` bytes from `position` on, whose last 64 bytes are `frame`. Raises `FormatError`
    naming `where`."""
    where = f"{where}: aborted transactions"
    found = FileFrame.unpack(frame, ABORTED_MAGIC, where)
    if found.version != ABORTED_VERSION or found.name_crc != footer.name_crc:
        raise FormatError(f"{where}: these are another file's")
    if found.rows_position != position or found.row_count * ABORTED_ROW_BYTES + SECTION_BYTES != size:
        raise FormatError(
            f"{where}: {found.row_count} rows from {found.rows_position} on, where {size} bytes from {position} on are"
        )
    if found.row_count or found.rows_crc:
        raise FormatError(f"{where}: {found.row_count} of them, and this version serves no transactions")
