"""Pages of files as the manifest keeps them in memory: a column per field, as narrow as the page's values allow.

A file described by a Python object takes about a kilobyte, in a page about a hundred bytes. So many files are described
by objects while their page is filled, and by columns from then on; an object is made for whoever asks. The content of a
page never changes, so a holder of an older picture of the manifest may go on reading it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy
import numpy.typing

from mainstem.storage.store_files.store_file import (
    JOINED_SUFFIX,
    MANY_GROUPS,
    PACK_SUFFIX,
    RUN_SUFFIX,
    SEGMENT_SUFFIX,
    FileKind,
    StoreFile,
)

Integers = numpy.typing.NDArray[numpy.int64]
Narrow = numpy.typing.NDArray[numpy.unsignedinteger]

FIELDS = (
    "bytes",
    "batch_bytes",
    "batch_count",
    "record_count",
    "queue_count",
    "min_timestamp",
    "max_timestamp",
    "level",
    "group",
    "first_queue",
    "last_queue",
    "first_offset",
    "clean_ms",
    "horizon_ms",
)
"""The numbers that describe a file, in the order of their columns."""
assert set(StoreFile.__struct_fields__) == {"name", "retention_class", *FIELDS}

KIND_LETTERS = {
    FileKind.RUN: ord(RUN_SUFFIX[-1]), FileKind.PACKED: ord(PACK_SUFFIX[-1]), FileKind.SEGMENT: ord(SEGMENT_SUFFIX[-1])
}  # fmt: skip
"""Names of a kind of files end in a letter of their own."""
assert JOINED_SUFFIX[-1] == SEGMENT_SUFFIX[-1], "both are queue segments"

WIDTHS = (0, 1, 2, 4, 8)
"""Bytes per value that a column may have; 0: all values are the same."""

_WRAP = (1 << 64) - 1
_PLACES = {field: place for place, field in enumerate(FIELDS)}
_GROUP, _FIRST_QUEUE, _LAST_QUEUE, _FIRST_OFFSET = map(
    FIELDS.index, ("group", "first_queue", "last_queue", "first_offset")
)


class FileRows(Protocol):
    """Files by their places in a page."""

    def __len__(self) -> int: ...

    def name(self, at: int) -> str: ...

    def file(self, at: int) -> StoreFile: ...

    def is_merged(self, at: int) -> bool: ...

    def key(self, at: int) -> tuple[int, int]:
        """(first queue, first offset) of a merged file."""

    def last_queue(self, at: int) -> int: ...

    def value(self, field: str, at: int) -> int: ...

    def column(self, field: str) -> Integers:
        """The values of a field, one per place."""

    def kinds(self) -> numpy.typing.NDArray[numpy.uint8]:
        """Of each name the last letter (`KIND_LETTERS`)."""

    def in_classes(self, chosen: Callable[[str], bool]) -> numpy.typing.NDArray[numpy.bool_]:
        """Whether each file is of one of the retention classes that are chosen."""


class OpenRows:
    """Files that are added one by one."""

    def __init__(self) -> None:
        self._files: list[StoreFile] = []

    def __len__(self) -> int:
        return len(self._files)

    def append(self, file: StoreFile) -> None:
        self._files.append(file)

    def name(self, at: int) -> str:
        return self._files[at].name

    def file(self, at: int) -> StoreFile:
        return self._files[at]

    def is_merged(self, at: int) -> bool:
        return self._files[at].is_merged

    def key(self, at: int) -> tuple[int, int]:
        return self._files[at].first_queue, self._files[at].first_offset

    def last_queue(self, at: int) -> int:
        return self._files[at].last_queue

    def value(self, field: str, at: int) -> int:
        value: int = getattr(self._files[at], field)
        return value

    def column(self, field: str) -> Integers:
        return numpy.array([getattr(file, field) for file in self._files], numpy.int64)

    def kinds(self) -> numpy.typing.NDArray[numpy.uint8]:
        return numpy.array([ord(file.name[-1]) for file in self._files], numpy.uint8)

    def in_classes(self, chosen: Callable[[str], bool]) -> numpy.typing.NDArray[numpy.bool_]:
        return numpy.array([chosen(file.retention_class) for file in self._files], numpy.bool_)

    def packed(self) -> PackedRows:
        return PackedRows.of(self._files)


class Column:
    """Integers of 64 bits, as what each is above the smallest of them."""

    __slots__ = ("base", "values")

    def __init__(self, base: int, values: Narrow | None) -> None:
        """`values` None: all are the same as `base`."""
        self.base = base
        self.values = values

    @classmethod
    def of(cls, values: Integers) -> Column:
        base = int(values.min()) if len(values) else 0
        above = values.view(numpy.uint64) - numpy.uint64(base & _WRAP)
        most = int(above.max()) if len(values) else 0
        width = next(width for width in WIDTHS if most < 1 << (8 * width))
        return cls(base, above.astype(f"<u{width}") if width else None)

    def value(self, at: int) -> int:
        return self.base if self.values is None else self.base + int(self.values[at])

    def all(self, count: int) -> Integers:
        if self.values is None:
            return numpy.full(count, self.base, numpy.int64)
        return (self.values.astype(numpy.uint64) + numpy.uint64(self.base & _WRAP)).view(numpy.int64)


class PackedRows:
    """Files in columns."""

    __slots__ = ("class_of", "classes", "columns", "ends", "names")

    def __init__(
        self,
        names: bytes,
        ends: numpy.typing.NDArray[numpy.uint32],
        classes: Sequence[str],
        class_of: Column,
        columns: Sequence[Column],
    ) -> None:
        """`names`: all of them, in UTF-8, one behind the other; `ends`: where each ends. `class_of`: the place of each
        file's retention class among `classes`. `columns`: one per field, in the order of `FIELDS`."""
        self.names = names
        self.ends = ends
        self.classes = tuple(classes)
        self.class_of = class_of
        self.columns = tuple(columns)

    @classmethod
    def of(cls, files: Sequence[StoreFile]) -> PackedRows:
        names = [file.name.encode() for file in files]
        classes = {file.retention_class: 0 for file in files}
        for place, name in enumerate(classes):
            classes[name] = place
        return cls(
            b"".join(names),
            numpy.cumsum([len(name) for name in names], dtype=numpy.uint32),
            list(classes),
            Column.of(numpy.array([classes[file.retention_class] for file in files], numpy.int64)),
            [Column.of(numpy.array([getattr(file, field) for file in files], numpy.int64)) for field in FIELDS],
        )

    def __len__(self) -> int:
        return len(self.ends)

    def encoded_name(self, at: int) -> bytes:
        return self.names[int(self.ends[at - 1]) if at else 0 : int(self.ends[at])]

    def encoded_names(self) -> list[bytes]:
        ends = self.ends.tolist()
        return [self.names[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def name(self, at: int) -> str:
        return self.encoded_name(at).decode()

    def file(self, at: int) -> StoreFile:
        values = {field: column.value(at) for field, column in zip(FIELDS, self.columns, strict=True)}
        return StoreFile(name=self.name(at), retention_class=self.classes[self.class_of.value(at)], **values)

    def is_merged(self, at: int) -> bool:
        return self.columns[_GROUP].value(at) != MANY_GROUPS

    def key(self, at: int) -> tuple[int, int]:
        return self.columns[_FIRST_QUEUE].value(at), self.columns[_FIRST_OFFSET].value(at)

    def last_queue(self, at: int) -> int:
        return self.columns[_LAST_QUEUE].value(at)

    def value(self, field: str, at: int) -> int:
        return self.columns[_PLACES[field]].value(at)

    def column(self, field: str) -> Integers:
        return self.columns[_PLACES[field]].all(len(self))

    def kinds(self) -> numpy.typing.NDArray[numpy.uint8]:
        """Of each name the last letter (`KIND_LETTERS`)."""
        letters: numpy.typing.NDArray[numpy.uint8] = numpy.frombuffer(self.names, numpy.uint8)[self.ends - 1]
        return letters

    def in_classes(self, chosen: Callable[[str], bool]) -> numpy.typing.NDArray[numpy.bool_]:
        flags = numpy.array([chosen(name) for name in self.classes], numpy.bool_)
        return flags[self.class_of.all(len(self))]
