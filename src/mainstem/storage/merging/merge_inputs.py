"""The files that a merge reads: their indexes, checked as a whole, and the rows of a range of queues.

Indexes are read in pieces of `PIECE_ROWS`, so that memory depends neither on how many files there are nor on how large
they are. A merge is measured once (`merge_measure.py`), which reads every index from its first row to its last and
checks its CRC; it notes for each task which rows of which file are the task's, with a CRC of just these (`RowRange`).
So a task reads no more than that, and checks all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy

from mainstem.kernel import crc32c
from mainstem.lru import Lru
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import check_section, fits
from mainstem.storage.extents.extent_format import (
    EXTENT_ROW,
    EXTENT_ROW_BYTES,
    FRAME_BYTES,
    INDEX_MAGIC,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.extents.extent_index import Rows

PIECE_ROWS = 1 << 16
"""Rows read at once: 4 MiB."""

OPEN_FILES_MAX = 256
"""Inputs that a task has open at a time; others are opened again. Systems allow 1,024 files as a rule."""


class InputDamaged(FormatError):
    """Bytes of an input are not what was written; nothing of the merge may count."""

    def __init__(self, message: str, name: str, position: int = -1) -> None:
        """`name`: the input's. `position`: of the damaged extent in it; -1: it is its index that is damaged."""
        super().__init__(message)
        self.name = name
        self.position = position


class InputFile(msgspec.Struct, frozen=True):
    """A file that a merge reads."""

    name: str
    """As the manifest has it."""
    path: str
    """Absolute, of its batches."""
    index_path: str
    """Absolute, of its index: the same file, or the one beside a queue segment."""

    @property
    def has_index_beside(self) -> bool:
        return self.path != self.index_path


class RowRange(msgspec.Struct, frozen=True, array_like=True):
    """Some rows of an input's index."""

    input: int
    """Its number among the merge's inputs."""
    first: int
    count: int
    crc: int


class OpenInputs:
    """Descriptors of inputs, a bounded number of them open at a time. Close it."""

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._descriptors: Lru[str, int] = Lru(open_files_max, let_go=os.close)

    def descriptor(self, path: str) -> int:
        """Open for reading; valid until the next call. Raises OSError."""
        found = self._descriptors.get(path)
        if found is not None:
            return found
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.put(path, descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead: what is read is asked for whole
        return descriptor

    def close(self) -> None:
        self._descriptors.clear()


def read_exactly(descriptor: int, buffer: memoryview, position: int, where: str) -> None:
    """Fill the buffer from this position of a file. Raises `FormatError` naming `where` when the file is shorter."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], position + done)
        if not count:
            raise FormatError(f"{where}: ends at {position + done}, where {len(buffer) - done} more bytes should be")
        done += count


def index_pieces(file: InputFile) -> Iterator[Rows]:
    """All rows of a file's index, in pieces. Raises `InputDamaged`, at the latest behind the last piece, when they
    are not those that were written; OSError."""
    with _opened(file) as descriptor:
        frame = footer_of(descriptor, file)
        crc = 0
        for first in range(0, frame.row_count, PIECE_ROWS):
            rows = _rows(descriptor, file, frame, first, min(PIECE_ROWS, frame.row_count - first))
            crc = crc32c(rows.view(numpy.uint8).data, crc)
            yield rows
        if crc != frame.rows_crc:
            raise FormatError(f"{file.index_path}: index at {frame.rows_position} fails its CRC")


def read_rows(file: InputFile, chosen: RowRange) -> Rows:
    """These rows of a file's index. Raises `InputDamaged` when they are not what they were; OSError."""
    with _opened(file) as descriptor:
        frame = footer_of(descriptor, file)
        if chosen.first + chosen.count > frame.row_count:
            raise FormatError(f"{file.index_path}: has {frame.row_count} index rows, and had more")
        rows = _rows(descriptor, file, frame, chosen.first, chosen.count)
        if crc32c(rows.view(numpy.uint8).data) != chosen.crc:
            raise FormatError(f"{file.index_path}: index rows {chosen.first} to {chosen.first + chosen.count} changed")
        return rows


@contextmanager
def _opened(file: InputFile) -> Iterator[int]:
    """The index's descriptor. What is wrong with it is the input's damage."""
    descriptor = os.open(file.index_path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    except InputDamaged:
        raise
    except FormatError as error:
        raise InputDamaged(str(error), file.name) from error
    finally:
        os.close(descriptor)


def footer_of(descriptor: int, file: InputFile) -> FileFrame:
    """The footer of a file's index, which `descriptor` is of. Raises `FormatError` where it cannot be."""
    size = os.fstat(descriptor).st_size
    where = file.index_path
    if size < 2 * FRAME_BYTES:
        raise FormatError(f"{where}: {size} bytes have no room for header and footer")
    magic = INDEX_MAGIC if file.has_index_beside else RUN_MAGIC
    tail = bytearray(2 * FRAME_BYTES)
    read_exactly(descriptor, memoryview(tail), size - len(tail), where)
    frame = FileFrame.unpack(bytes(tail[FRAME_BYTES:]), magic, f"{where}: footer at {size - FRAME_BYTES}")
    if frame.name_crc not in (0, name_crc_of(file.name)):
        raise FormatError(f"{where}: this is another file's index")
    rows_end = frame.rows_position + frame.row_count * EXTENT_ROW_BYTES
    behind_rows = size - FRAME_BYTES - rows_end
    if not fits(frame, behind_rows):
        raise FormatError(f"{where}: {frame.row_count} index rows from {frame.rows_position} on do not fit its size")
    if behind_rows:
        check_section(bytes(tail[:FRAME_BYTES]), frame, rows_end, behind_rows, where)
    return frame


def _rows(descriptor: int, file: InputFile, frame: FileFrame, first: int, count: int) -> Rows:
    rows = numpy.empty(count, EXTENT_ROW)
    if count:
        place = frame.rows_position + first * EXTENT_ROW_BYTES
        read_exactly(descriptor, rows.view(numpy.uint8).data, place, file.index_path)
    return rows
