"""`<write_dir>/scrubbed` says how far the scrubber has come, so that a node that restarts often goes on where it was.

One record of 64 bytes, written over the one before:

    magic (8 bytes) · salt u64 · pass began i64 · position u64 · last pass began i64 · last pass ended i64 · zeros ·
    CRC32C of the other fields u32     (little-endian; times in ms, 0: none)

It is the only copy, and nothing depends on it: where it is missing or damaged, the scrubber begins anew.
"""

from __future__ import annotations

import logging
import struct
from typing import NamedTuple

from mainstem.kernel import crc32c
from mainstem.ports import Files

NAME = "scrubbed"
MAGIC = b"MSSCRUB1"
RECORD = struct.Struct("<8sQqQqq12xI")
assert RECORD.size == 64

FULL = 1 << 32
"""Positions lie below this; at it, a pass is over."""

log = logging.getLogger(__name__)


class ScrubRecord(NamedTuple):
    """The present pass over all files, and the last that was finished."""

    salt: int
    """Goes into the checksums of names that put the files in order, so that nodes have orders of their own."""
    began_ms: int
    position: int = 0
    """The files before it are read."""
    last_began_ms: int = 0
    last_ended_ms: int = 0
    """0: no pass was finished yet."""

    def pack(self) -> bytes:
        body = RECORD.pack(MAGIC, *self, 0)[:-4]
        return body + crc32c(body).to_bytes(4, "little")

    @classmethod
    def unpack(cls, content: bytes) -> ScrubRecord | None:
        """None when the bytes are no whole record."""
        if len(content) != RECORD.size:
            return None
        magic, *fields, crc = RECORD.unpack(content)
        if magic != MAGIC or crc != crc32c(content[:-4]):
            return None
        return cls(*fields)


async def load(files: Files) -> ScrubRecord | None:
    """The record; None when there is none that can be read."""
    try:
        file = await files.open(NAME)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("%s cannot be read, the search for rot begins anew: %s", NAME, error)
        return None
    try:
        record = ScrubRecord.unpack(bytes(await file.read(0, RECORD.size)))
    except OSError as error:
        log.warning("%s cannot be read, the search for rot begins anew: %s", NAME, error)
        return None
    finally:
        await file.close()
    if record is None:
        log.warning("%s is damaged, the search for rot begins anew", NAME)
    return record


async def save(files: Files, record: ScrubRecord) -> None:
    """Write the record, durably. Raises OSError."""
    file = await files.open(NAME, create=True)
    try:
        await file.write(0, [record.pack()], sync=True)
    finally:
        await file.close()
