"""Reads a block of the journal from its file, and writes it once more in its place.

The functions open the file by its path, past the journal's handles and caches: an operator may have put another file in
the place of a damaged one, and mending must see what the next start would find.
"""

from __future__ import annotations

from mainstem.model import Buffer
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError, SegmentGone
from mainstem.storage.journal.encoding.blocks import block_at
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    FIRST_BLOCK,
    PAGE_BYTES,
    BlockHeader,
    SegmentHeader,
    offset_of,
    sequence_of,
)
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.mending.block_repair import Neighbours, Twin, whole
from mainstem.storage.journal.segments.segment_files import segment_path
from mainstem.storage.journal.segments.segment_walk import SegmentWalk
from mainstem.storage.journal.stored_block import StoredBlock, StoredPlace, block_of

ENDS_MAX = 512
"""How many blocks before a damaged one are read: the journal was durable up to one of these when it was written."""


async def look_at(files: Files, journal: Journal, place: StoredPlace) -> StoredBlock:
    """Read the block at its place from the file. Raises `SegmentGone`, `CorruptJournal` naming the damage,
    `OSError`."""
    async with journal.kept(sequence_of(place.position)):
        return block_of(place, await _read(files, place))


async def write_whole(files: Files, journal: Journal, place: StoredPlace, twin: Twin) -> bool:
    """Write a damaged block as it was, from a checked twin; durable on return. Returns False when its bytes cannot be
    found. Raises `SegmentGone`, `CorruptJournal`, `OSError`."""
    async with journal.kept(sequence_of(place.position)):
        return await write_whole_unopened(files, place, twin)


async def write_whole_unopened(files: Files, place: StoredPlace, twin: Twin) -> bool:
    """Do the same as `write_whole` in a journal that no process has open. Raises `SegmentGone`, `OSError`."""
    sequence = sequence_of(place.position)
    damaged = await _read(files, place)
    try:
        file = await files.open(segment_path(sequence))
    except FileNotFoundError as error:
        raise SegmentGone(f"{segment_path(sequence)} is gone") from error
    try:
        content = whole(place, damaged, twin, await read_around(file, place))
        if content is None:
            return False
        block_of(place, content)
        await file.write(offset_of(place.position), [content])
        await file.sync()
    finally:
        await file.close()
    return True


async def _read(files: Files, place: StoredPlace) -> Buffer:
    path = segment_path(sequence_of(place.position))
    try:
        file = await files.open(path)
    except FileNotFoundError as error:
        raise SegmentGone(f"{path} is gone") from error
    try:
        return await file.read(offset_of(place.position), place.length)
    finally:
        await file.close()


async def read_around(file: File, place: StoredPlace) -> Neighbours:
    """Read the blocks before and behind a place for what they state about the block there."""
    sequence, offset = sequence_of(place.position), offset_of(place.position)
    walk = SegmentWalk(file, sequence, offset, FIRST_BLOCK, None, offset)
    previous_crc, ends = None, []
    try:
        segment = SegmentHeader.unpack(await file.read(0, PAGE_BYTES), segment_path(sequence))
    except FormatError:
        pass  # only the first blocks of a segment need it
    else:
        ends.append(segment.previous_end)
        previous_crc = segment.previous_crc if offset == FIRST_BLOCK else None
    while (block := await walk.next()) is not None:
        ends.append(block.header.end)
    if walk.offset == offset and offset > FIRST_BLOCK:
        previous_crc = walk.crc
    behind = await file.read(offset + place.length, BLOCK_HEADER_BYTES)
    following = block_at(await file.read(offset + place.length, _head_bytes(behind)), 0, place.position + place.length)
    return Neighbours(
        previous_crc,
        following.previous_crc if following is not None else None,
        tuple(ends[-ENDS_MAX:]),
    )


def _head_bytes(header: Buffer) -> int:
    """Bytes of header and directory together; of the header alone when it cannot be parsed."""
    try:
        found = BlockHeader.unpack(header, 0, "")
    except FormatError:
        return BLOCK_HEADER_BYTES
    return found.payload_position - found.position
