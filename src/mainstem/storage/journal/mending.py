"""A block of the journal looked at, and written once more in its place, on the file itself.

Nothing here goes through handles or caches that others read through: an operator may have put another file in the place
of a damaged one, and what is looked at is what the next start would find.
"""

from __future__ import annotations

from mainstem.model import Buffer
from mainstem.ports import File, Files
from mainstem.storage.errors import FormatError, SegmentGone
from mainstem.storage.journal.block_repair import Neighbours, Twin, whole
from mainstem.storage.journal.blocks import block_at
from mainstem.storage.journal.format import (
    BLOCK_HEADER_BYTES,
    FIRST_BLOCK,
    PAGE_BYTES,
    BlockHeader,
    SegmentHeader,
    offset_of,
    sequence_of,
)
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.segment_files import segment_path
from mainstem.storage.journal.segment_walk import SegmentWalk
from mainstem.storage.journal.stored_block import StoredBlock, StoredPlace, block_of

ENDS_MAX = 512
"""Of the blocks before a damaged one: the journal was durable up to one of the last few when it was written."""


async def look_at(files: Files, journal: Journal, place: StoredPlace) -> StoredBlock:
    """The block at its place. Raises `SegmentGone`, `CorruptJournal` naming the damage, `OSError`."""
    async with journal.kept(sequence_of(place.position)):
        return block_of(place, await _read(files, place))


async def write_whole(files: Files, journal: Journal, place: StoredPlace, twin: Twin) -> bool:
    """Make a damaged block what it was, from a twin that was checked; durable when it returns. False when it cannot be
    told what it was. Raises `SegmentGone`, `CorruptJournal`, `OSError`."""
    async with journal.kept(sequence_of(place.position)):
        return await write_whole_unopened(files, place, twin)


async def write_whole_unopened(files: Files, place: StoredPlace, twin: Twin) -> bool:
    """The same in a journal that nobody has open."""
    sequence = sequence_of(place.position)
    damaged = await _read(files, place)
    try:
        file = await files.open(segment_path(sequence))
    except FileNotFoundError as error:
        raise SegmentGone(f"{segment_path(sequence)} is gone") from error
    try:
        content = whole(place, damaged, twin, await _around(file, place))
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


async def _around(file: File, place: StoredPlace) -> Neighbours:
    """What the blocks before and behind a place say of it."""
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
    following = block_at(
        await file.read(offset + place.length, _head_bytes(behind)), 0, place.position + place.length
    )
    return Neighbours(
        previous_crc,
        following.previous_crc if following is not None else None,
        tuple(ends[-ENDS_MAX:]),
    )


def _head_bytes(header: Buffer) -> int:
    """Of header and directory, as far as the header is one."""
    try:
        found = BlockHeader.unpack(header, 0, "")
    except FormatError:
        return BLOCK_HEADER_BYTES
    return found.payload_position - found.position
