"""The segment being written to: where its bytes end, and which whole pages a write to it covers."""

from __future__ import annotations

from typing import NamedTuple

from mainstem.model import Buffer
from mainstem.ports import File
from mainstem.storage.journal.format import FIRST_BLOCK, PAGE_BYTES, SegmentHeader, position_of
from mainstem.storage.journal.framing import joined, last_bytes, size_of


class OpenSegment:
    """A segment and the bytes of its last page that is not full: they are written again with what follows, so
    that every write covers whole pages and none has to be read first."""

    __slots__ = ("_page", "created_ms", "file", "offset", "sequence", "size")

    def __init__(self, sequence: int, file: File, size: int, created_ms: int, offset: int, page: bytes) -> None:
        assert (offset - len(page)) % PAGE_BYTES == 0
        self.sequence = sequence
        self.file = file
        self.size = size
        self.created_ms = created_ms
        self.offset = offset
        self._page = page

    @classmethod
    def begin(cls, header: SegmentHeader, file: File) -> OpenSegment:
        """A new segment: its header goes to the disk with its first block."""
        page = header.pack().ljust(FIRST_BLOCK, b"\0")
        return cls(header.sequence, file, header.size, header.created_ms, FIRST_BLOCK, page)

    @property
    def end(self) -> int:
        """Journal position where the next block goes."""
        return position_of(self.sequence, self.offset)

    def pages(self, buffers: list[Buffer]) -> tuple[int, list[Buffer]]:
        """Byte offset and content of the whole pages that hold `buffers` behind what is there."""
        start = self.offset - len(self._page)
        length = len(self._page) + sum(map(size_of, buffers))
        return start, joined([self._page, *buffers, bytes(-length % PAGE_BYTES)])

    def advance(self, buffers: list[Buffer]) -> None:
        """The buffers have been written."""
        self.offset += sum(map(size_of, buffers))
        partial = self.offset % PAGE_BYTES
        self._page = last_bytes([self._page, *buffers], partial)


class Stretch(NamedTuple):
    """What one write adds to one segment."""

    segment: OpenSegment
    buffers: list[Buffer]
