"""The bytes of a page of files in the manifest's database: `docs/formats.md`, "Pages of the manifest".

A page is written once and never changed; what changes of its files, whether they still count and when retention first
saw them, lies beside it (`PageState`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import google_crc32c
import numpy
import numpy.typing

from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.in_memory.file_pages import FIELDS, WIDTHS, Column, Integers, PackedRows
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange

PAGE_MAGIC = 0x314547415053414D  # "MASPAGE1"
HEADER = struct.Struct("<QIIII")
"""Magic · files · ranges · bytes of names · bytes of retention classes."""
COLUMN = struct.Struct("<qQ")
"""Smallest value · bytes per value."""

RANGE_FIELDS = ("group", "upto", "after", "sequence", "place")
FILE_FIELDS = ("retention_class", *FIELDS)


class PageRanges(NamedTuple):
    """Blocks (after, upto] of write groups that files of a page hold; `places`: the places of the files there."""

    groups: Integers
    uptos: Integers
    afters: Integers
    sequences: Integers
    places: Integers


class PageState(NamedTuple):
    """The changes of the files of a page."""

    alive: numpy.typing.NDArray[numpy.bool_]
    seen: Integers
    """When retention first saw them; `NOT_SEEN`: it has not."""

    def pack(self) -> tuple[bytes, bytes]:
        """A bit per file, lowest first; and a column."""
        return numpy.packbits(self.alive, bitorder="little").tobytes(), _packed([Column.of(self.seen)])

    @classmethod
    def unpack(cls, alive: bytes, seen: bytes, count: int, where: str) -> PageState:
        """Raises `FormatError` naming `where`."""
        if len(alive) != (count + 7) // 8:
            raise FormatError(f"{where}: {len(alive)} bytes do not say of {count} files which count")
        (column,), end = _columns(seen, 0, 1, count, where)
        if end != len(seen):
            raise FormatError(f"{where}: {len(seen)} bytes do not say when {count} files were seen")
        bits = numpy.unpackbits(numpy.frombuffer(alive, numpy.uint8), count=count, bitorder="little")
        return cls(bits.astype(numpy.bool_), column.all(count))


class StoredPage(NamedTuple):
    """A page as it was read."""

    number: int
    rows: PackedRows
    ranges: PageRanges
    """Of all its files, also of those that do not count any more."""
    state: PageState


def pack(rows: PackedRows, ranges: Sequence[tuple[int, FileRange]]) -> bytes:
    """A page; `ranges` are those of its files, each with the file's place."""
    table = numpy.array(
        [(entry.group, entry.upto, entry.after, entry.sequence, place) for place, entry in ranges], numpy.int64
    ).reshape(-1, len(RANGE_FIELDS))
    classes = b"\0".join(name.encode() for name in rows.classes)
    columns = [rows.class_of, *rows.columns, *(Column.of(table[:, at].copy()) for at in range(len(RANGE_FIELDS)))]
    return b"".join([
        HEADER.pack(PAGE_MAGIC, len(rows), len(table), len(rows.names), len(classes)),
        _packed(columns), rows.ends.astype("<u4").tobytes(), rows.names, classes,
    ])  # fmt: skip


def unpack(content: bytes, crc: int, where: str) -> tuple[PackedRows, PageRanges]:
    """The files of a page, and their ranges. Raises `FormatError` naming `where` when it is not what was written."""
    if google_crc32c.value(content) != crc:
        raise FormatError(f"{where} fails its CRC")
    if len(content) < HEADER.size:
        raise FormatError(f"{where}: {len(content)} bytes have no room for its header")
    magic, count, range_count, names_bytes, classes_bytes = HEADER.unpack_from(content)
    if magic != PAGE_MAGIC:
        raise FormatError(f"{where} begins with {magic:#x}")
    (class_of, *columns), end = _columns(content, HEADER.size, len(FILE_FIELDS), count, where)
    ranges, end = _columns(content, end, len(RANGE_FIELDS), range_count, where)
    if len(content) != end + 4 * count + names_bytes + classes_bytes:
        raise FormatError(f"{where}: its {len(content)} bytes are not those of {count} files")
    ends = numpy.frombuffer(content, "<u4", count, end).astype(numpy.uint32)
    end += 4 * count
    names = content[end : end + names_bytes]
    classes = content[end + names_bytes :].decode().split("\0")
    places = ranges[-1].all(range_count)
    if (count and int(ends[-1]) != names_bytes) or (range_count and not 0 <= places.min() <= places.max() < count):
        raise FormatError(f"{where}: its columns do not fit together")
    return PackedRows(names, ends, classes, class_of, columns), PageRanges(*(one.all(range_count) for one in ranges))


def _packed(columns: Iterable[Column]) -> bytes:
    parts: list[bytes] = []
    for column in columns:
        width = 0 if column.values is None else column.values.dtype.itemsize
        parts.append(COLUMN.pack(column.base, width))
        if column.values is not None:
            parts.append(column.values.tobytes())
    return b"".join(parts)


def _columns(content: bytes, at: int, number: int, count: int, where: str) -> tuple[list[Column], int]:
    """So many columns from a place on, and where they end."""
    columns: list[Column] = []
    for _ in range(number):
        if at + COLUMN.size > len(content):
            raise FormatError(f"{where} ends within its columns")
        base, width = COLUMN.unpack_from(content, at)
        at += COLUMN.size
        if width not in WIDTHS or at + width * count > len(content):
            raise FormatError(f"{where} ends within its columns")
        values = numpy.frombuffer(content, f"<u{width}", count, at).copy() if width else None
        columns.append(Column(base, values))
        at += width * count
    return columns, at
