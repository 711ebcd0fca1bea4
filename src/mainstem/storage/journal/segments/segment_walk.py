"""Walks one segment of the journal block by block, and reads no more than headers, directories and commands."""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c

from mainstem.model import Buffer
from mainstem.ports import File
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.blocks import block_at
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    BlockHeader,
    position_of,
)

WINDOW_BYTES = 256 * 1024
"""Bytes read at once. Each read lets the event loop run, so this also bounds how long a walk holds it: some 3,000
blocks at most, about 15 ms. Payloads longer than this are never read at all."""


class Block(NamedTuple):
    """A block as found: `payload` is empty for data blocks, whose batches stay where they are."""

    header: BlockHeader
    directory: bytes
    payload: bytes


class SegmentWalk:
    """Yields the blocks of a segment, one after the other. `offset` is where the next block starts. Once `next` has
    returned None, it is where no block lies, and `fault` says why. `crc` is the last block's, for the chain."""

    def __init__(
        self, file: File, sequence: int, size: int, offset: int, crc: int | None, end: int | None = None
    ) -> None:
        self._file = file
        self._sequence = sequence
        self._end = size if end is None else end
        self._window: bytes = b""
        self._window_offset = 0
        self.offset = offset
        self.crc = crc
        self.fault = ""

    async def next(self) -> Block | None:
        """The next block that is whole, in its place and continues the chain. A `crc` of None (the walk
        starts in the middle) lets the first block pass unchained."""
        if self.offset + BLOCK_HEADER_BYTES > self._end:
            return self._ended("the segment's blocks end here")
        place = position_of(self._sequence, self.offset)
        head = await self._read(self.offset, BLOCK_HEADER_BYTES)
        try:
            header = BlockHeader.unpack(head, 0, "")
        except FormatError as error:
            return self._ended(str(error).removeprefix(": "))
        if header.position != place:
            return self._ended("what lies here is of the segment's former life or was moved")
        if self.offset + header.length > self._end:
            return self._ended(f"a block of {header.length} bytes does not fit here")
        directory_end = BLOCK_HEADER_BYTES + header.batch_count * DIRECTORY_ROW_BYTES
        head = await self._read(self.offset, directory_end)
        if block_at(head, 0, place) is None:
            return self._ended("the block's header or directory fails its CRC")
        if self.crc is not None and header.previous_crc != self.crc:
            return self._ended("the block does not continue the chain")
        payload = b""
        if header.kind != KIND_DATA:
            payload = bytes(await self._read(self.offset + directory_end, header.payload_length))
            if len(payload) != header.payload_length or google_crc32c.value(payload) != header.payload_crc:
                return self._ended("the block's payload fails its CRC")
        self.offset += header.length
        self.crc = header.crc
        return Block(header, bytes(memoryview(head)[BLOCK_HEADER_BYTES:directory_end]), payload)

    def _ended(self, fault: str) -> Block | None:
        self.fault = fault
        return None

    async def _read(self, offset: int, length: int) -> Buffer:
        """`length` bytes at `offset`, fewer at the end of the file, through the window."""
        start = offset - self._window_offset
        if not 0 <= start <= len(self._window) - length:
            self._window = await self._file.read(offset, max(length, WINDOW_BYTES))
            self._window_offset = offset
            start = 0
        return memoryview(self._window)[start : start + length]
