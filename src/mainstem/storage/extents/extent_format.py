"""The bytes of a run, and of every index over batches sorted by (queue, offset).

A run holds the batches of one slice and one retention class, sorted by (queue, offset):

    header (64 bytes) · batches · index (rows of `EXTENT_ROW`) · aborted transactions · footer (64 bytes)

The index of aborted transactions (`aborted.py`) is there from format version 2 on.
An index row describes an extent: contiguous bytes of consecutive batches of one queue, cut at `EXTENT_BYTES` so that
a reader who finds an offset by binary search has little to skip. A sealed journal segment has an index of the same
rows (one batch per extent) in a file of its own, header · rows · footer, whose positions point into the segment.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import google_crc32c
import numpy

from mainstem.model import Buffer
from mainstem.storage.errors import FormatError

EXTENT_BYTES = 64 * 1024
"""An extent of a run is closed once it holds this much: the most a lookup reads in vain, and a small index
(64 bytes per 64 KiB) for queues with much data."""

EXTENT_ROW = numpy.dtype(
    [
        ("queue_id", "<u8"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp", "<i8"),
        ("position", "<u8"),  # byte offset in the file the index describes
        ("length", "<u4"),  # bytes of all its batches
        ("batch_count", "<u4"),
        ("record_count", "<u4"),
        ("crc", "<u4"),  # CRC32C of the extent; 0 in a segment index (the batch has its own)
        ("leader_epoch", "<i4"),  # of the last batch
        ("flags", "<u4"),  # TRANSACTIONAL, or 0
    ]
)
EXTENT_ROW_BYTES = EXTENT_ROW.itemsize
assert EXTENT_ROW_BYTES == 64

TRANSACTIONAL = 1
"""Flag of an extent, also of a batch that is described to a writer: it has batches of transactions, or had when it was
written first. Without it there are none."""

RUN_MAGIC = 0x314E5552534D  # "MSRUN1"
INDEX_MAGIC = 0x315844494D53  # "SMIDX1"
FORMAT_VERSION = 1
ABORTED_VERSION = 2
"""Of files of the queue store that have an index of aborted transactions, from `FeatureLevel.MERGED` on."""
FRAME = struct.Struct("<QIIQQQqqII")
"""Header and footer alike: magic · format version · CRC32C of the index rows · position of the first index
row · number of index rows · bytes of batches · smallest and largest `max_timestamp` (ms; -1 when empty) ·
CRC32C of the run's name · CRC32C of the frame's other fields. In the header, counts and positions are 0, and so is
the name's; in footers of indexes and of runs of earlier versions, too."""
FRAME_BYTES = FRAME.size
assert FRAME_BYTES == 64


class FileFrame(NamedTuple):
    """Header or footer of a run (`RUN_MAGIC`) or of a segment index (`INDEX_MAGIC`)."""

    magic: int
    rows_crc: int = 0
    rows_position: int = 0
    row_count: int = 0
    batch_bytes: int = 0
    min_timestamp: int = -1
    max_timestamp: int = -1
    name_crc: int = 0
    """CRC of the run's name; 0: not stated. In the footer of a segment's index: the segment's
    `index_files.identity_of`."""
    version: int = FORMAT_VERSION

    def pack(self) -> bytes:
        body = FRAME.pack(
            self.magic,
            self.version,
            self.rows_crc,
            self.rows_position,
            self.row_count,
            self.batch_bytes,
            self.min_timestamp,
            self.max_timestamp,
            self.name_crc,
            0,
        )[:-4]
        crc: int = google_crc32c.value(body)
        return body + crc.to_bytes(4, "little")

    @classmethod
    def unpack(cls, buffer: Buffer, magic: int, where: str) -> FileFrame:
        """Raises `FormatError` naming `where` unless the 64 bytes are a valid frame with this magic."""
        if len(buffer) != FRAME_BYTES:
            raise FormatError(f"{where}: frame is cut short at {len(buffer)} of {FRAME_BYTES} bytes")
        found, version, rows_crc, position, count, size, low, high, name_crc, crc = FRAME.unpack(buffer)
        if found != magic:
            raise FormatError(f"{where}: magic {found:#x} where {magic:#x} is expected")
        if not FORMAT_VERSION <= version <= ABORTED_VERSION:
            raise FormatError(f"{where}: format {version}, this version reads {FORMAT_VERSION} to {ABORTED_VERSION}")
        if google_crc32c.value(bytes(buffer[:-4])) != crc:
            raise FormatError(f"{where}: frame fails its CRC")
        return cls(found, rows_crc, position, count, size, low, high, name_crc, version)


def name_crc_of(name: str) -> int:
    """The CRC of a run's name, as its footer states it."""
    crc: int = google_crc32c.value(name.encode())
    return crc
