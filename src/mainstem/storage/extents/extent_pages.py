"""The pages of an index: what memory keeps of a large one, so that a queue is found by reading a few kilobytes.

A file with many small queues has an index of tens of megabytes. It is read and checked as a whole once; from then on 20
bytes for each page of 256 rows say which queues the page has, and what its checksum was, so that a look-up reads only
the pages with rows of its queue, and trusts them as much as the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import numpy

from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW, EXTENT_ROW_BYTES
from mainstem.storage.extents.extent_index import ExtentIndex

PAGE_ROWS = 256
"""16 KiB a page: to read and check one takes about as long as to ask for it."""

PAGE_BYTES = PAGE_ROWS * EXTENT_ROW_BYTES

PAGED_BYTES_MIN = 1024 * 1024
"""A look-up reads a smaller index as a whole, and keeps it: that of a queue segment, and of most packed files."""

PAGES_AT_ONCE_MAX = 64
"""A queue with rows in more pages is read long enough to be worth its file's whole index."""


def is_paged(index: ExtentIndex) -> bool:
    """Whether an index is large enough to be read in pages."""
    return index.rows.nbytes > PAGED_BYTES_MIN


class ExtentPages:
    """The pages of the index of one file."""

    __slots__ = ("_checksums", "_firsts", "_row_count", "position", "reads", "where")

    def __init__(self, index: ExtentIndex) -> None:
        self.where = index.where
        self.position = index.position
        """The position of the rows in the file that has them."""
        self.reads = 0
        """How often pages were read since the whole index was."""
        self._row_count = len(index)
        self._firsts = index.rows["queue_id"][::PAGE_ROWS].copy()
        """The first queue of each page."""
        content = index.content
        starts = range(0, len(content), PAGE_BYTES)
        self._checksums = [_checksum(content[start : start + PAGE_BYTES]) for start in starts]

    @property
    def memory_bytes(self) -> int:
        return int(self._firsts.nbytes) + 44 * len(self._checksums)

    @property
    def are_worth_the_whole(self) -> bool:
        """Whether it would have been cheaper to read the whole index, which is one of those that memory keeps."""
        return self.reads >= len(self._checksums) and self._row_count * EXTENT_ROW_BYTES <= PAGED_BYTES_MIN

    def of_queue(self, queue_id: int) -> range:
        """The pages that have all rows of a queue; at least one unless there are none, even if it has none."""
        key = numpy.uint64(queue_id)
        first = max(0, int(self._firsts.searchsorted(key)) - 1)
        return range(first, int(self._firsts.searchsorted(key, side="right")))

    def place(self, pages: range) -> tuple[int, int]:
        """(position, length) of these pages in the file that has them; `pages` are neighbours."""
        start, stop = pages.start * PAGE_BYTES, min(pages.stop * PAGE_BYTES, self._row_count * EXTENT_ROW_BYTES)
        return self.position + start, max(0, stop - start)

    def checked(self, pages: range, content: bytes) -> ExtentIndex:
        """The rows of these pages from the bytes at their place. Raises `FormatError` unless they are what they were
        when the whole index was checked."""
        position, length = self.place(pages)
        found: Sequence[int] = [
            _checksum(memoryview(content)[start : start + PAGE_BYTES]) for start in range(0, len(content), PAGE_BYTES)
        ]
        if len(content) != length or found != self._checksums[pages.start : pages.stop]:
            raise FormatError(f"{self.where}: index rows at {position} are not what they were when the file was opened")
        return ExtentIndex(numpy.frombuffer(content, EXTENT_ROW), self.where, position)


def _checksum(page: memoryview | bytes) -> int:
    return int(google_crc32c.value(bytes(page)))
