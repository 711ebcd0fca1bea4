"""Uploads a merged file to an object store, under another name.

A file states the CRC of its name: in its footer and its index of aborted transactions, and a queue segment in those of
its `.extents`. So these frames are written anew; everything else goes up as it lies on the disk. A queue segment goes
up as one object where its new name says so (`joined_segment.py`): its extents lie behind a header there, so that their
rows are written anew, too. Nothing goes up unchecked: each extent is compared with its CRC while it is copied into the
part that is uploaded, and the index with its own. Kafka's two indexes have none, and are made anew from the batches
where they go up.

A plain function over a file and a store. Nothing counts by it: whoever asked for it compares sizes, and has the log of
the write group say that the file counts. It may be played twice, or die anywhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy
import numpy.typing

from mainstem.kernel import crc32c, gather_extents, walk_batches
from mainstem.model import Buffer
from mainstem.ports import ObjectInfo, ObjectStore
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.aborted import section_of
from mainstem.storage.extents.extent_format import (
    ABORTED_VERSION,
    EXTENT_ROW_BYTES,
    FRAME_BYTES,
    INDEX_MAGIC,
    RUN_MAGIC,
    FileFrame,
    name_crc_of,
)
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.merging.merge_inputs import (
    InputDamaged,
    InputFile,
    footer_of,
    index_pieces,
    read_aborted,
    read_exactly,
)
from mainstem.storage.object_stores.errors import ObjectExists
from mainstem.storage.store_files.allowance import Allowance, unlimited
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, IndexEntries
from mainstem.storage.store_files.store_file import (
    FileKind,
    has_index_beside,
    kind_of,
    segment_key,
    segment_name,
)

WINDOW_BYTES = 2 << 20
"""Bytes read, checked and handed to the store at a time, unless one extent is larger: as many as a node allows its
splitter at a time, so that the work comes as evenly as the allowance does."""


class UploadShort(StorageError):
    """The store has not as many bytes as it was sent."""


ONE_REQUEST_BYTES = 8 << 20
"""Objects up to this size are written in one request, where parts would take three."""

Pieces = Callable[[], Iterator[bytes | memoryview]]
"""Begins an object anew, and yields what it has, in pieces."""


def remote_name(name: str, unique: str, *, joined: bool = False) -> str:
    """The name that a merged file gets in the remote tier. `unique`: no other file ever has it. `joined`: a queue
    segment is to be one object. Raises `StorageError` for what is no file's name."""
    if kind_of(name) is not FileKind.SEGMENT:
        stem, _, suffix = name.rpartition(".")
        return f"{stem.rpartition('-')[0] or stem}-{unique}.{suffix}"
    topic, partition, base_offset = segment_key(name)
    return segment_name(topic, partition, unique, base_offset, joined=joined)


async def upload(
    store: ObjectStore, source: InputFile, name: str, objects: Sequence[str], allow: Allowance = unlimited
) -> None:
    """Upload a file as `name`, with what lies beside it. `objects`: the names of its objects, in the order of
    `paths_of`; no other writer chooses them. `allow` is asked for each window that is read.

    Raises `InputDamaged` where the file is not what was written, `ObjectStoreError`, `UploadShort`, OSError; the store
    may have some of the objects then."""
    size = await asyncio.to_thread(os.path.getsize, source.path)
    if not source.has_index_beside:
        (whole,) = objects
        await _send(store, whole, size, lambda: _packed(source, name, allow))
        return
    if not has_index_beside(name):
        (whole,) = objects
        size += await asyncio.to_thread(os.path.getsize, source.index_path)
        await _send(store, whole, size, lambda: _joined(source, name, allow))
        return
    log, extents, offset_index, time_index = objects
    entries = _Entries()
    await _send(store, log, size, lambda: _segment(source, entries, allow))
    size = await asyncio.to_thread(os.path.getsize, source.index_path)
    await _send(store, extents, size, lambda: _extents(source, name))
    made = entries.made
    assert made is not None
    for beside, content in ((offset_index, made.offset_index()), (time_index, made.time_index())):
        await _send(store, beside, len(content), partial(iter, (content,)))


class _Entries:
    """The entries of Kafka's indexes, of the last time that a segment was read."""

    def __init__(self) -> None:
        self.made: IndexEntries | None = None


async def _send(store: ObjectStore, name: str, size: int, pieces: Pieces) -> None:
    """Write an object of this size, and see that the store has as many bytes as were sent. Pieces are made beside the
    event loop."""
    if size <= ONE_REQUEST_BYTES:
        content = await asyncio.to_thread(lambda: b"".join(pieces()))
        try:
            _check_sent(name, await store.write(name, content), len(content))
        except ObjectExists:  # the same task was played before: what it wrote has to be whole
            pass
        else:
            return
    sent = 0

    async def parts() -> AsyncIterator[Buffer]:
        nonlocal sent
        sent = 0
        left = pieces()  # it closes its file with its end, or when it is let go
        while (piece := await asyncio.to_thread(next, left, None)) is not None:
            sent += len(piece)
            yield piece

    _check_sent(name, await store.write_parts(name, parts), sent)


def _check_sent(name: str, info: ObjectInfo, sent: int) -> None:
    if info.size_bytes != sent:
        raise UploadShort(f"{name} has {info.size_bytes} bytes in the store, {sent} were sent; nothing counts")


def _packed(source: InputFile, name: str, allow: Allowance) -> Iterator[bytes | memoryview]:
    with _opened(source, source.path) as (descriptor, size):
        footer = footer_of(descriptor, source)
        yield _header(descriptor, source.path, RUN_MAGIC)
        end = FRAME_BYTES
        for content, _rows in _windows(descriptor, source, FRAME_BYTES, allow):
            end += len(content)
            yield content
        if end != footer.rows_position:
            raise FormatError(f"{source.path}: extents up to {end}, where the index begins at {footer.rows_position}")
        written = 0
        for piece in _index(source, footer, name):
            written += len(piece)
            yield piece
        assert size == end + written, "as `footer_of` says"


def _segment(source: InputFile, entries: _Entries, allow: Allowance) -> Iterator[bytes | memoryview]:
    made: IndexEntries | None = None
    with _opened(source, source.path) as (descriptor, size):
        at = 0
        for content, rows in _windows(descriptor, source, 0, allow):
            if made is None:
                made = IndexEntries(int(rows["base_offset"][0]))
            made.add(_batches(content, rows, source), at)
            at += len(content)
            yield content
        if at != size or made is None:
            raise FormatError(f"{source.path}: has {size} bytes, its index describes {at}")
    entries.made = made


def _joined(source: InputFile, name: str, allow: Allowance) -> Iterator[bytes | memoryview]:
    """A segment, and behind it what lies beside it."""
    with _opened(source, source.index_path) as (descriptor, _size):
        footer = footer_of(descriptor, source)
        _header(descriptor, source.index_path, INDEX_MAGIC)
    yield FileFrame(RUN_MAGIC, version=footer.version).pack()
    with _opened(source, source.path) as (descriptor, size):
        at = 0
        for content, _rows in _windows(descriptor, source, 0, allow):
            at += len(content)
            yield content
        if not at == size == footer.batch_bytes:
            raise FormatError(f"{source.path}: has {size} bytes, its index describes {at}")
    crc = 0
    for rows in index_pieces(source):
        moved = rows.copy()
        moved["position"] += numpy.uint64(FRAME_BYTES)
        piece = moved.tobytes()
        crc = crc32c(piece, crc)
        yield piece
    yield _tail(source, footer._replace(magic=RUN_MAGIC, rows_crc=crc, rows_position=FRAME_BYTES + size), name)


def _extents(source: InputFile, name: str) -> Iterator[bytes | memoryview]:
    with _opened(source, source.index_path) as (descriptor, _size):
        footer = footer_of(descriptor, source)
        yield _header(descriptor, source.index_path, INDEX_MAGIC)
        yield from _index(source, footer, name)


def _index(source: InputFile, footer: FileFrame, name: str) -> Iterator[bytes | memoryview]:
    """Rows as they are, and behind them what states the file's name."""
    for rows in index_pieces(source):
        yield rows.tobytes()
    yield _tail(source, footer, name)


def _tail(source: InputFile, footer: FileFrame, name: str) -> bytes:
    name_crc = name_crc_of(name)
    section = b""
    if footer.version >= ABORTED_VERSION:
        rows_end = footer.rows_position + footer.row_count * EXTENT_ROW_BYTES
        section = section_of(read_aborted(source), rows_end, name_crc)
    return section + footer._replace(name_crc=name_crc).pack()


def _windows(descriptor: int, source: InputFile, position: int, allow: Allowance) -> Iterator[tuple[memoryview, Rows]]:
    """All extents, which follow each other from `position` on, checked, and the rows that describe them."""
    read = numpy.empty(0, numpy.uint8)
    for rows in index_pieces(source):
        first = 0
        ends = numpy.cumsum(rows["length"], dtype=numpy.int64)
        while first < len(rows):
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(ends.searchsorted(done + WINDOW_BYTES, side="right")))
            part = rows[first:last]
            size = int(ends[last - 1]) - done
            allow(size)
            if size > len(read):
                read = numpy.empty(max(size, WINDOW_BYTES), numpy.uint8)
            read_exactly(descriptor, read.data[:size], position, source.path)
            yield _checked(read, part, position, source), part
            position += size
            first = last


def _checked(read: numpy.typing.NDArray[numpy.uint8], rows: Rows, position: int, source: InputFile) -> memoryview:
    """A copy of these extents, each of which has its CRC. `read` has what lies from `position` on."""
    lengths = rows["length"].astype(numpy.int64)
    starts = numpy.cumsum(lengths) - lengths
    apart = numpy.flatnonzero(rows["position"].astype(numpy.int64) != starts + position)
    if len(apart):
        raise FormatError(
            f"{source.path}: the extent at {rows['position'][apart[0]]} does not follow the one before it"
        )
    content = numpy.empty(int(lengths.sum()), numpy.uint8)
    crcs = rows["crc"].astype(numpy.int64)
    damaged = gather_extents(read.data, starts.data, lengths.data, crcs.data, content.data)
    if damaged >= 0:
        row = rows[damaged]
        raise InputDamaged(
            f"{source.path}: the extent at {row['position']} ({row['length']} bytes, queue {row['queue_id']:#x}, "
            f"offsets {row['base_offset']} to {row['last_offset']}) fails its CRC; it is uploaded once it is mended",
            source.name,
            int(row["position"]),
        )
    return content.data


def _batches(content: memoryview, rows: Rows, source: InputFile) -> numpy.typing.NDArray[numpy.int64]:
    count = int(rows["batch_count"].sum(dtype=numpy.int64))
    batches = numpy.empty((count, len(BATCH_FIELDS)), numpy.int64)
    found = walk_batches(content, batches.data.cast("B"))
    if found != count:
        raise FormatError(
            f"{source.path}: from offset {rows[0]['base_offset']} on it has not the {count} batches of its index"
        )
    return batches


def _header(descriptor: int, path: str, magic: int) -> bytes:
    header = bytearray(FRAME_BYTES)
    read_exactly(descriptor, memoryview(header), 0, path)
    FileFrame.unpack(bytes(header), magic, f"{path}: header")
    return bytes(header)


@contextmanager
def _opened(source: InputFile, path: str) -> Iterator[tuple[int, int]]:
    """A descriptor, and the size. An error in the bytes is the file's damage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead: the disk is asked for small pieces
        yield descriptor, os.fstat(descriptor).st_size
    except InputDamaged:
        raise
    except FormatError as error:
        raise InputDamaged(str(error), source.name) from error
    finally:
        os.close(descriptor)
