"""The journal's bytes: segment header, block header, directory.

A segment `<sequence, 20 digits>.wal` has a fixed size. Its first page holds the segment header; blocks follow
from `FIRST_BLOCK` on, each starting on an 8-byte boundary, none crossing into the next segment. All integers
are little-endian, so that numpy and Arrow read the directory in place on the machines this runs on.

A journal position is `sequence << 32 | byte offset in the segment`: it orders all blocks of a node and stays
valid when the configured segment size changes. A recycled file still holds blocks of its former life; a
block is only real when its own `position` field names the place it is read from, its CRC holds and it
continues the chain (`previous_crc` is the header CRC of the block before it).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Buffer
from mainstem.storage.errors import FormatError

PAGE_BYTES = 4096
"""Writes to the journal start and end on this boundary."""

FIRST_BLOCK = PAGE_BYTES
"""The position of the first block of a segment."""

BLOCK_ALIGNMENT = 8

POSITION_BITS = 32
"""A segment is smaller than 4 GiB, so a byte offset fits below the sequence."""


def position_of(sequence: int, offset: int) -> int:
    return sequence << POSITION_BITS | offset


def sequence_of(position: int) -> int:
    return position >> POSITION_BITS


def offset_of(position: int) -> int:
    return position & 0xFFFFFFFF


def segment_name(sequence: int) -> str:
    return f"{sequence:020d}.wal"


def aligned(size: int, alignment: int = BLOCK_ALIGNMENT) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


# --- segment header -------------------------------------------------------------------------------------

SEGMENT_MAGIC = 0x314C574D  # "MWL1"
SEGMENT_HEADER = struct.Struct("<QIIQQIIq")
"""sequence (the generation, first so that a reader can check it alone) · magic · format version ·
segment size · end position of the block before the first one · that block's header CRC · CRC32C of all
other fields · creation time, ms."""
SEGMENT_VERSION = 1


class SegmentHeader(NamedTuple):
    sequence: int
    size: int
    previous_end: int
    """Journal position right behind the last block of the previous segment (0: there is none)."""
    previous_crc: int
    created_ms: int

    def pack(self) -> bytes:
        crc = crc32c(self._pack(0))
        return self._pack(crc)

    def _pack(self, crc: int) -> bytes:
        return SEGMENT_HEADER.pack(
            self.sequence,
            SEGMENT_MAGIC,
            SEGMENT_VERSION,
            self.size,
            self.previous_end,
            self.previous_crc,
            crc,
            self.created_ms,
        )

    @classmethod
    def unpack(cls, page: Buffer, where: str) -> SegmentHeader:
        """Raises `FormatError` naming `where` unless the page starts with a whole, valid header."""
        if len(page) < SEGMENT_HEADER.size:
            raise FormatError(f"{where}: segment header is cut short at {len(page)} bytes")
        sequence, magic, version, size, end, previous_crc, crc, created_ms = SEGMENT_HEADER.unpack_from(page)
        if magic != SEGMENT_MAGIC:
            raise FormatError(f"{where}: not a journal segment (magic {magic:#010x})")
        if version != SEGMENT_VERSION:
            raise FormatError(f"{where}: segment format {version}, this version reads {SEGMENT_VERSION}")
        header = cls(sequence, size, end, previous_crc, created_ms)
        if crc32c(header._pack(0)) != crc:
            raise FormatError(f"{where}: segment header fails its CRC")
        return header


# --- block header ---------------------------------------------------------------------------------------

BLOCK_MAGIC = 0x314B424D  # "MBK1"
BLOCK_VERSION = 1
BLOCK_HEADER = struct.Struct("<IIIBBHIIIIQQQQqII")
BLOCK_HEADER_BYTES = BLOCK_HEADER.size
assert BLOCK_HEADER_BYTES == 80
_UNCHECKED = struct.Struct("<II")
_CHECKED = struct.Struct("<IBBHIIIIQQQQqII")
"""The block header in two parts: magic and CRC, and the fields that the CRC covers."""
assert _UNCHECKED.size + _CHECKED.size == BLOCK_HEADER_BYTES

KIND_DATA = 0
KIND_NO_OP = 1
KIND_MEMBERSHIP = 2
KIND_CONTROL = 3
KINDS = frozenset({KIND_DATA, KIND_NO_OP, KIND_MEMBERSHIP, KIND_CONTROL})


class BlockHeader(NamedTuple):
    """One block's header. CRC32C covers everything after the CRC field, and the directory."""

    kind: int
    group: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    length: int
    """The whole block: header, directory, payload and padding to 8 bytes."""
    batch_count: int
    """Rows of the directory; 0 for every kind but data."""
    payload_length: int
    payload_crc: int
    """CRC32C of the payload for kinds other than data; 0 for data, whose batches carry their own."""
    position: int
    durable_position: int
    """Every block that ends at or below this journal position was durable when this block was written."""
    previous_crc: int
    created_ms: int
    crc: int = 0

    @property
    def directory_position(self) -> int:
        return self.position + BLOCK_HEADER_BYTES

    @property
    def payload_position(self) -> int:
        return self.position + BLOCK_HEADER_BYTES + self.batch_count * DIRECTORY_ROW_BYTES

    @property
    def end(self) -> int:
        return self.position + self.length

    def pack(self, directory: Buffer) -> tuple[bytes, int]:
        """The header's bytes and its CRC."""
        return pack_header(*self[:-1], directory)

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int, where: str) -> BlockHeader:
        """Parse the header at `offset` of `buffer`, without its CRC check (see `verify`).

        Raises `FormatError` naming `where` when there is no block header or its lengths do not add up."""
        if len(buffer) - offset < BLOCK_HEADER_BYTES:
            raise FormatError(f"{where}: block header is cut short")
        (
            magic,
            crc,
            previous_crc,
            version,
            kind,
            _flags,
            length,
            batch_count,
            group,
            payload_crc,
            position,
            durable,
            term,
            index,
            created_ms,
            payload_length,
            _reserved,
        ) = BLOCK_HEADER.unpack_from(buffer, offset)
        if magic != BLOCK_MAGIC:
            raise FormatError(f"{where}: no block here (magic {magic:#010x})")
        if version != BLOCK_VERSION or kind not in KINDS:
            raise FormatError(f"{where}: block format {version}, kind {kind} is unknown")
        content = BLOCK_HEADER_BYTES + batch_count * DIRECTORY_ROW_BYTES + payload_length
        if length != aligned(content):
            raise FormatError(f"{where}: block length {length} does not match its content of {content} bytes")
        return cls(
            kind,
            group,
            term,
            index,
            length,
            batch_count,
            payload_length,
            payload_crc,
            position,
            durable,
            previous_crc,
            created_ms,
            crc,
        )

    def verify(self, buffer: Buffer, offset: int) -> bool:
        """Whether the CRC holds over header and directory, both at `offset` of `buffer`."""
        end = offset + BLOCK_HEADER_BYTES + self.batch_count * DIRECTORY_ROW_BYTES
        return len(buffer) >= end and crc32c(memoryview(buffer)[offset + 8 : end]) == self.crc


def pack_header(
    kind: int,
    group: int,
    term: int,
    index: int,
    length: int,
    batch_count: int,
    payload_length: int,
    payload_crc: int,
    position: int,
    durable_position: int,
    previous_crc: int,
    created_ms: int,
    directory: Buffer,
) -> tuple[bytes, int]:
    """The bytes of a block's header and its CRC, from the fields of `BlockHeader`."""
    checked = _CHECKED.pack(
        previous_crc,
        BLOCK_VERSION,
        kind,
        0,
        length,
        batch_count,
        group,
        payload_crc,
        position,
        durable_position,
        term,
        index,
        created_ms,
        payload_length,
        0,
    )
    crc = crc32c(directory, crc32c(checked))
    return _UNCHECKED.pack(BLOCK_MAGIC, crc) + checked, crc


# --- directory ------------------------------------------------------------------------------------------

DIRECTORY_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("base_offset", "<i8"),
        ("max_timestamp", "<i8"),
        ("producer_id", "<i8"),
        ("position", "<u4"),  # of the batch, from the start of the block's payload
        ("length", "<u4"),  # of the whole batch, bytes
        ("last_offset_delta", "<i4"),
        ("record_count", "<i4"),
        ("base_sequence", "<i4"),
        ("producer_epoch", "<i2"),
        ("attributes", "<i2"),
        ("leader_epoch", "<i4"),
        ("crc", "<u4"),  # the batch's own CRC32C field
    ]
)
DIRECTORY_ROW_BYTES = DIRECTORY_ROW.itemsize
assert DIRECTORY_ROW_BYTES == 64
DIRECTORY_STRUCT = struct.Struct("<QqqqIIiiihhiI")
"""The same row for one-by-one packing."""
assert DIRECTORY_STRUCT.size == DIRECTORY_ROW_BYTES
