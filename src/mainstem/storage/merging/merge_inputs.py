"""The files that a merge reads: their indexes, checked as a whole, and the rows of a range of queues.

Indexes are read in pieces of `PIECE_ROWS`, so that memory depends neither on how many files there are nor on how large
they are. A merge is measured once (`merge_measure.py`), which reads every index from its first row to its last and
checks its CRC; it notes for each task which rows of which file are the task's, with a CRC of just these (`RowRange`).
So a task reads no more than that, and checks all of it.

Files lie on a disk, or they are objects of a shared store: an `InputReader` makes the difference.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NamedTuple, Protocol

import msgspec
import numpy

from mainstem.kernel import crc32c
from mainstem.lru import Lru
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import (
    ABORTED_ROW_BYTES,
    AbortedRows,
    check_section,
    checked_rows,
    fits,
    no_rows,
)
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

WINDOW_BYTES_MAX = 8 << 20
"""Bytes read, checked and written at a time at the most: then all inputs have given enough to be worth their calls…"""

WINDOW_BYTES_MIN = 1 << 20
"""…and of few inputs: as much as a processor still has in its cache when it checks, copies and writes what it has read.
A window is over in a few milliseconds, in which commits beside it are late."""

INPUT_BYTES = 16 << 10
"""Bytes that each input gives to a window, on average, with up to five hundred of them: with fewer, calls cost more
than the bytes that they read."""

PIECE_ROWS = 1 << 16
"""Rows read at once: 4 MiB."""

TAIL_BYTES = 2 * FRAME_BYTES
"""The end of a file's index: the frame of the index of aborted transactions, if it has one, and the footer."""

OPEN_FILES_MAX = 256
"""Inputs that a task has open at a time; others are opened again. Systems allow 1,024 files as a rule."""

ASKED_BYTES = 128 << 10
"""Bytes asked of the disk at once, where the page cache lacks them: a commit of the journal waits for the read before
it. A window of 8 MiB keeps a disk of 1 GB/s busy for eight milliseconds."""


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
    """Of its batches: absolute, or the object's in a shared store."""
    index_path: str
    """Of its index: the same file, or the one beside a queue segment."""

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


class InputPiece(NamedTuple):
    """A piece of a file that is to be read."""

    path: str
    position: int
    into: memoryview
    """All of it is filled."""


class InputReader(Protocol):
    """Reads inputs: of a disk (`OpenInputs`), or of a shared store. Raises OSError or what an object store reports when
    they cannot be read."""

    def tail(self, path: str, size: int) -> tuple[int, bytes]:
        """The size of a file, and its last `size` bytes, or all of a smaller one."""
        ...

    def read(self, pieces: Sequence[InputPiece]) -> None:
        """Read all of these pieces, in any order. Raises `InputEnds`."""
        ...

    def window_bytes(self, inputs: int) -> int:
        """How many bytes of so many inputs are best read at a time."""
        ...


class InputEnds(FormatError):
    """A file ends before a piece does that was to be read of it, or is not there at all."""

    def __init__(self, message: str, number: int) -> None:
        """`number`: of the piece among those that were to be read."""
        super().__init__(message)
        self.number = number


class OpenInputs:
    """`InputReader` of files of a disk, a bounded number of which are open at a time. Use as a context manager."""

    def __init__(self, open_files_max: int = OPEN_FILES_MAX) -> None:
        self._descriptors: Lru[str, int] = Lru(open_files_max, let_go=os.close)

    def __enter__(self) -> OpenInputs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def descriptor(self, path: str) -> int:
        """Open for reading; valid until the next call. Raises OSError."""
        found = self._descriptors.get(path)
        if found is not None:
            return found
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._descriptors.put(path, descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead: what is read is asked for whole
        return descriptor

    def tail(self, path: str, size: int) -> tuple[int, bytes]:
        return tail_of(self.descriptor(path), size, path)

    def read(self, pieces: Sequence[InputPiece]) -> None:
        for number, (path, position, into) in enumerate(pieces):
            try:
                read_exactly(self.descriptor(path), into, position, path)
            except FormatError as error:
                raise InputEnds(str(error), number) from error

    def window_bytes(self, inputs: int) -> int:
        return min(max(WINDOW_BYTES_MIN, inputs * INPUT_BYTES), WINDOW_BYTES_MAX)

    def close(self) -> None:
        self._descriptors.clear()


def read_exactly(descriptor: int, buffer: memoryview, position: int, where: str) -> None:
    """Fill the buffer from this position of a file, `ASKED_BYTES` at a time. Raises `FormatError` naming `where` when
    the file is shorter."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done : done + ASKED_BYTES]], position + done)
        if not count:
            raise FormatError(f"{where}: ends at {position + done}, where {len(buffer) - done} more bytes should be")
        done += count


def tail_of(descriptor: int, size: int, where: str) -> tuple[int, bytes]:
    """The size of an open file, and its last bytes (`InputReader.tail`)."""
    whole = os.fstat(descriptor).st_size
    content = bytearray(min(whole, size))
    read_exactly(descriptor, memoryview(content), whole - len(content), where)
    return whole, bytes(content)


def index_pieces(file: InputFile, reader: InputReader | None = None) -> Iterator[Rows]:
    """All rows of a file's index, in pieces. Without a `reader` the file is one of a disk. Raises `InputDamaged`, at
    the latest behind the last piece, when they are not those that were written; what the reader raises."""
    with _reading(file, reader) as opened:
        frame = _footer(opened, file)
        crc = 0
        for first in range(0, frame.row_count, PIECE_ROWS):
            rows = _rows(opened, file, frame, first, min(PIECE_ROWS, frame.row_count - first))
            crc = crc32c(rows.view(numpy.uint8).data, crc)
            yield rows
        if crc != frame.rows_crc:
            raise FormatError(f"{file.index_path}: index at {frame.rows_position} fails its CRC")


def read_aborted(file: InputFile, reader: InputReader | None = None) -> AbortedRows:
    """The index of aborted transactions of a file. Raises as `index_pieces`."""
    with _reading(file, reader) as opened:
        size, tail = opened.tail(file.index_path, TAIL_BYTES)
        frame = checked_footer(size, tail, file)
        position = frame.rows_position + frame.row_count * EXTENT_ROW_BYTES
        behind_rows = size - FRAME_BYTES - position
        if not behind_rows:
            return no_rows()
        section = check_section(tail[:FRAME_BYTES], frame, position, behind_rows, file.index_path)
        content = bytearray(section.row_count * ABORTED_ROW_BYTES)
        if content:
            opened.read([InputPiece(file.index_path, position, memoryview(content))])
        return checked_rows(section, bytes(content), file.index_path)


def read_rows(file: InputFile, chosen: RowRange, reader: InputReader | None = None) -> Rows:
    """These rows of a file's index. Raises `InputDamaged` when they are not what they were; what the reader raises."""
    with _reading(file, reader) as opened:
        frame = _footer(opened, file)
        if chosen.first + chosen.count > frame.row_count:
            raise FormatError(f"{file.index_path}: has {frame.row_count} index rows, and had more")
        rows = _rows(opened, file, frame, chosen.first, chosen.count)
        if crc32c(rows.view(numpy.uint8).data) != chosen.crc:
            raise FormatError(f"{file.index_path}: index rows {chosen.first} to {chosen.first + chosen.count} changed")
        return rows


@contextmanager
def _reading(file: InputFile, reader: InputReader | None) -> Iterator[InputReader]:
    """Reads the file's index. An error in its bytes is the input's damage."""
    with ExitStack() as stack:
        if reader is None:
            reader = stack.enter_context(OpenInputs())
        try:
            yield reader
        except InputDamaged:
            raise
        except FormatError as error:
            raise InputDamaged(str(error), file.name) from error


def footer_of(descriptor: int, file: InputFile) -> FileFrame:
    """The footer of a file's index, which `descriptor` is of. Raises `FormatError` where it cannot be."""
    return checked_footer(*tail_of(descriptor, TAIL_BYTES, file.index_path), file)


def _footer(reader: InputReader, file: InputFile) -> FileFrame:
    return checked_footer(*reader.tail(file.index_path, TAIL_BYTES), file)


def checked_footer(size: int, tail: bytes, file: InputFile) -> FileFrame:
    """The footer of a file's index of this size, whose last `TAIL_BYTES` are `tail`. Raises `FormatError` where it
    cannot be."""
    where = file.index_path
    if size < 2 * FRAME_BYTES:
        raise FormatError(f"{where}: {size} bytes have no room for header and footer")
    magic = INDEX_MAGIC if file.has_index_beside else RUN_MAGIC
    frame = FileFrame.unpack(tail[FRAME_BYTES:], magic, f"{where}: footer at {size - FRAME_BYTES}")
    if frame.name_crc not in (0, name_crc_of(file.name)):
        raise FormatError(f"{where}: this is another file's index")
    rows_end = frame.rows_position + frame.row_count * EXTENT_ROW_BYTES
    behind_rows = size - FRAME_BYTES - rows_end
    if not fits(frame, behind_rows):
        raise FormatError(f"{where}: {frame.row_count} index rows from {frame.rows_position} on do not fit its size")
    if behind_rows:
        check_section(tail[:FRAME_BYTES], frame, rows_end, behind_rows, where)
    return frame


def _rows(reader: InputReader, file: InputFile, frame: FileFrame, first: int, count: int) -> Rows:
    rows = numpy.empty(count, EXTENT_ROW)
    if count:
        place = frame.rows_position + first * EXTENT_ROW_BYTES
        reader.read([InputPiece(file.index_path, place, rows.view(numpy.uint8).data)])
    return rows
