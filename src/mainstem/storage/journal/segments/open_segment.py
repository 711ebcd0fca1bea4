"""Tracks the segment being written to: where its bytes end, and which whole pages a write to it covers."""

from __future__ import annotations

from mainstem.model import Buffer
from mainstem.ports import File
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, PAGE_BYTES, SegmentHeader, position_of
from mainstem.storage.journal.encoding.framing import joined, last_bytes


class OpenSegment:
    """A segment and the bytes of its last, partly filled page. These bytes are written again with the next blocks, so
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

    def pages(self, buffers: list[Buffer], length: int) -> tuple[int, int, list[Buffer]]:
        """Byte offset, length and content of the whole pages that hold `buffers`, `length` bytes in all, behind the
        segment's end."""
        used = len(self._page) + length
        padding = -used % PAGE_BYTES
        pages = joined([self._page, *buffers, bytes(padding)], used + padding)
        return self.offset - len(self._page), used + padding, pages

    def advance(self, pages: list[Buffer], length: int) -> None:
        """The pages have been written, and in them `length` bytes that are new."""
        self.offset += length
        used = self.offset % PAGE_BYTES
        last = pages[0]
        if len(pages) == 1 and isinstance(last, bytes):  # a small write: no views needed
            start = len(last) - PAGE_BYTES
            self._page = last[start : start + used]
        else:
            self._page = last_bytes(pages, PAGE_BYTES)[:used]


class SegmentWrite:
    """The buffers that one write adds to one segment."""

    __slots__ = ("buffers", "length", "segment")

    def __init__(self, segment: OpenSegment) -> None:
        self.segment = segment
        self.buffers: list[Buffer] = []
        self.length = 0
        """Bytes in all of the buffers."""
