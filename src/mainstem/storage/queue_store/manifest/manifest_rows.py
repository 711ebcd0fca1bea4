"""The bytes of the manifest's copy on disk 2: what the manifest says, or what changed in it, as rows.

The copy is a sequence of files that are written once, each under a number that no other has:

    <first change, 20 digits>.changes   the changes of the manifest from this one on, in their order
    <last change, 20 digits>.image      all that the manifest said when this was its last change

A file is a header of 64 bytes and pages, each a u32 and as many bytes of msgpack, an array of rows. A row stands for a
fact and names what it is about, so that rows of changes that an image has already may be applied to it once more.
"""

from __future__ import annotations

import enum
import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import msgspec

from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.store_files.store_file import StoreFile

COPY_DIRECTORY = "manifest"
CHANGES_SUFFIX = ".changes"
IMAGE_SUFFIX = ".image"

COPY_MAGIC = 0x3153524D534D  # "MSMRS1"
COPY_VERSION = 1
HEADER = struct.Struct("<QII16sQQQII")
"""Magic · version · kind · identity of the store · first and last change · bytes behind the header · CRC32C of these ·
CRC32C of the header's other fields."""
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 64

PAGE_ROWS = 512
"""Rows of a page: making one takes the event loop less than a millisecond."""


class CopyKind(enum.IntEnum):
    IMAGE = 1
    CHANGES = 2


class FileRow(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A file, as the manifest describes it: the fields of `StoreFile` in their order. One that no range names is
    forgotten."""

    values: tuple[str | int, ...]

    @classmethod
    def of(cls, file: StoreFile) -> FileRow:
        return cls(msgspec.structs.astuple(file))

    def file(self) -> StoreFile:
        return msgspec.convert(dict(zip(StoreFile.__struct_fields__, self.values, strict=False)), StoreFile)


class RangeRow(msgspec.Struct, frozen=True, array_like=True, tag="range"):
    """A file counts for blocks (after, upto] of a write group."""

    sequence: int
    group: int
    after: int
    upto: int
    name: str

    def range(self) -> FileRange:
        return FileRange(self.sequence, self.group, self.after, self.upto, self.name)


class GoneRow(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    """The range of this sequence does not count any more."""

    sequence: int


class PositionRow(msgspec.Struct, frozen=True, array_like=True, tag="position"):
    """How far a write group is split; see `WriteGroupPosition`."""

    group: int
    position: int
    applied_index: int


class DroppedRow(msgspec.Struct, frozen=True, array_like=True, tag="dropped"):
    """Retention dropped a file of this name."""

    name: str


class RecalledRow(msgspec.Struct, frozen=True, array_like=True, tag="recalled"):
    """A file of this name does not count as dropped any more."""

    name: str


class SeenRow(msgspec.Struct, frozen=True, array_like=True, tag="seen"):
    """When retention first saw a file, by the agreed time."""

    name: str
    seen_ms: int


class SchemaRow(msgspec.Struct, frozen=True, array_like=True, tag="schema"):
    """The version of the manifest's schema."""

    version: int


Row = FileRow | RangeRow | GoneRow | PositionRow | DroppedRow | RecalledRow | SeenRow | SchemaRow

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Row])


class CopyHeader(NamedTuple):
    """The content of a file of the copy."""

    kind: CopyKind
    identity: uuid.UUID
    first: int
    """Of changes: the first. Of an image: the last change before it was begun, from which on it may lack some that were
    made meanwhile, or have them."""
    last: int
    """Of changes: the last. Of an image: the last one that it may have."""
    size: int
    """Bytes behind the header."""
    crc: int
    """CRC32C of these."""

    def pack(self) -> bytes:
        fields = (COPY_MAGIC, COPY_VERSION, self.kind, self.identity.bytes, *self[2:], 0)
        body = HEADER.pack(*fields)[:-4]
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "little")

    @classmethod
    def unpack(cls, buffer: bytes, where: str) -> CopyHeader:
        """Raises `FormatError` naming `where`."""
        if len(buffer) != HEADER_BYTES:
            raise FormatError(f"{where}: it is cut short at byte {len(buffer)}")
        magic, version, kind, identity, first, last, size, crc, own = HEADER.unpack(buffer)
        if magic != COPY_MAGIC or google_crc32c.value(buffer[:-4]) != own:
            raise FormatError(f"{where}: its header is damaged")
        if version != COPY_VERSION:
            raise FormatError(f"{where}: format {version}, this version reads {COPY_VERSION}")
        return cls(CopyKind(kind), uuid.UUID(bytes=identity), first, last, size, crc)

    @property
    def path(self) -> str:
        return image_path(self.last) if self.kind is CopyKind.IMAGE else changes_path(self.first)


def changes_path(first: int) -> str:
    return f"{COPY_DIRECTORY}/{first:020d}{CHANGES_SUFFIX}"


def image_path(last: int) -> str:
    return f"{COPY_DIRECTORY}/{last:020d}{IMAGE_SUFFIX}"


def numbers(names: Iterable[str], suffix: str) -> list[int]:
    """The numbers of the files of one kind among these names, in their order."""
    bare = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(digits) for digits in bare if len(digits) == 20 and digits.isdecimal())


def pages(rows: Sequence[Row]) -> Iterator[bytes]:
    """Rows as pages."""
    for first in range(0, len(rows), PAGE_ROWS):
        body = _encoder.encode(rows[first : first + PAGE_ROWS])
        yield len(body).to_bytes(4, "little") + body


def rows_in(body: bytes, header: CopyHeader) -> Iterator[Row]:
    """The rows of a file, of which this is all behind the header. Raises `FormatError`."""
    if len(body) != header.size or google_crc32c.value(body) != header.crc:
        raise FormatError(f"{header.path}: it is damaged, or cut short")
    place = 0
    while place < len(body):
        size = int.from_bytes(body[place : place + 4], "little")
        try:
            yield from _decoder.decode(body[place + 4 : place + 4 + size])
        except msgspec.MsgspecError as error:
            raise FormatError(f"{header.path}: the page at {HEADER_BYTES + place} cannot be read: {error}") from error
        place += 4 + size


def new_rows(entries: Iterable[FileRange], files: Iterable[StoreFile]) -> list[Row]:
    """The rows of ranges that came, and of the files that they name."""
    return [*map(FileRow.of, files), *(RangeRow(*entry) for entry in entries)]
