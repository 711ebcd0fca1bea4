"""Reads one whole block back from the journal and returns it only if it passes every check."""

from __future__ import annotations

from typing import NamedTuple

import numpy

from mainstem.kernel import crc32c, first_damaged
from mainstem.model import Buffer
from mainstem.storage.errors import CorruptJournal, FormatError
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    BlockHeader,
    offset_of,
    segment_name,
    sequence_of,
)
from mainstem.storage.journal.encoding.framing import BlockToWrite
from mainstem.storage.journal.journal import Journal


def payload_fault(header: BlockHeader, directory: Buffer, payload: Buffer) -> str | None:
    """Describe the fault of a block's payload; None when it is sound. About as fast as memory is read."""
    if len(payload) != header.payload_length:
        return f"its payload ends after {len(payload)} of {header.payload_length} bytes"
    if header.kind != KIND_DATA:
        return None if crc32c(payload) == header.payload_crc else "its payload fails its CRC"
    rows = numpy.frombuffer(directory, DIRECTORY_ROW, header.batch_count)
    starts, lengths, base_offsets, leader_epochs = (
        rows[name].astype(numpy.int64) for name in ("position", "length", "base_offset", "leader_epoch")
    )
    damaged = first_damaged(payload, starts.data, lengths.data, base_offsets.data, leader_epochs.data)
    return None if damaged < 0 else f"the batch at byte {starts[damaged]} of its payload is not what was written"


class StoredPlace(NamedTuple):
    """The place of a block in the journal, and the term and index that must lie there."""

    group: int
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is never called
    position: int
    length: int

    def __str__(self) -> str:
        where = f"{segment_name(sequence_of(self.position))} at byte {offset_of(self.position)}"
        return f"{where}: block {self.index} of write group {self.group}"


class StoredBlock(NamedTuple):
    header: BlockHeader
    directory: memoryview
    payload: memoryview

    def to_write(self) -> BlockToWrite:
        header = self.header
        return BlockToWrite(
            header.kind,
            header.group,
            header.term,
            header.index,
            self.directory,
            header.batch_count,
            (self.payload,),
            header.created_ms,
        )


async def read_block(journal: Journal, place: StoredPlace) -> StoredBlock:
    """Read the block at its place. Raises `SegmentGone` when its segment was recycled, `CorruptJournal` naming the
    place when other bytes than the written ones lie there, `StorageError` when the disk cannot be read."""
    return block_of(place, await journal.read(place.position, place.length))


def block_of(place: StoredPlace, content: Buffer) -> StoredBlock:
    """The bytes at a place as the block that was written there. Raises `CorruptJournal`."""
    try:
        header = BlockHeader.unpack(content, 0, str(place))
    except FormatError as error:
        raise _damaged(place, str(error).removeprefix(f"{place}: ")) from error
    if header.position != place.position or not header.verify(content, 0):
        raise _damaged(place, "its header or directory fails its CRC")
    if (header.group, header.term, header.index) != (place.group, place.term, place.index):
        raise _damaged(place, f"block {header.index} of term {header.term} lies there, not one of term {place.term}")
    view = memoryview(content)
    directory_end = BLOCK_HEADER_BYTES + header.batch_count * DIRECTORY_ROW_BYTES
    directory = view[BLOCK_HEADER_BYTES:directory_end]
    payload = view[directory_end : directory_end + header.payload_length]
    fault = payload_fault(header, directory, payload)
    if fault is not None:
        raise _damaged(place, fault)
    return StoredBlock(header, directory, payload)


def _damaged(place: StoredPlace, fault: str) -> CorruptJournal:
    return CorruptJournal(f"{place}: {fault}; restore the segment, or have another node lead", [place.group])
