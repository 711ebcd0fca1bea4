"""The part of an index that memory keeps after it was read and checked, for as long as the file counts.

Of a run, a filter of about one byte per queue: a reader of a queue in few runs steps over the others without reading a
disk. Of a large index, its pages: a look-up reads those with rows of its queue alone. Both are bounded. A filter for
which there is no room is not kept, so that a reader who asks all runs, one after the other, finds most of the filters
in memory rather than none.
"""

from __future__ import annotations

from typing import NamedTuple

from mainstem.lru import Lru
from mainstem.storage.extents.extent_index import ExtentIndex, QueueFilter
from mainstem.storage.extents.extent_pages import ExtentPages, is_paged
from mainstem.storage.store_files.store_file import FileKind, kind_of

FILTER_BYTES_MAX = 64 * 1024 * 1024
"""For all filters: 500 runs with 100,000 queues each, or 60,000 with a thousand."""

PAGES_BYTES_MAX = 16 * 1024 * 1024
"""For the pages of all indexes: those of 60 million extents."""


SMALL_QUEUES_BYTES_MIN = 128 * 1024
"""The index of a packed file that is read in pages where its queues are small: that of a full one with queues of 64 KiB
or less. A queue has its batches in many such files, and to read and check the index of each costs ten times what the
batches do."""

SMALL_QUEUE_ROWS_MAX = 16
"""Extents of a small queue, on average: a page has those of sixteen queues or more."""


class FileSummary(NamedTuple):
    """Of one file."""

    filter: QueueFilter | None
    """Of a run; the manifest knows the first and the last key of a merged file."""
    pages: ExtentPages | None
    """None: the index is small enough to be read as a whole."""


def summary_of(name: str, index: ExtentIndex) -> FileSummary:
    """The summary of a file. To make it takes time that grows with the rows."""
    kind = kind_of(name)
    return FileSummary(
        QueueFilter(index.queues()[0]) if kind is FileKind.RUN else None,
        ExtentPages(index) if _is_paged(kind, index) else None,
    )


def _is_paged(kind: FileKind, index: ExtentIndex) -> bool:
    if kind is FileKind.SEGMENT or is_paged(index):
        return kind is not FileKind.SEGMENT
    if kind is FileKind.RUN or index.rows.nbytes < SMALL_QUEUES_BYTES_MIN:
        return False
    return len(index) <= SMALL_QUEUE_ROWS_MAX * len(index.queues()[0])


class FileSummaries:
    """By the names of files."""

    def __init__(self) -> None:
        self._filters: dict[str, QueueFilter] = {}
        self._filter_bytes = 0
        self._pages: Lru[str, ExtentPages] = Lru(PAGES_BYTES_MAX, lambda pages: pages.memory_bytes)

    @property
    def held_bytes(self) -> int:
        return self._filter_bytes + self._pages.held

    def lacks(self, name: str, index: ExtentIndex) -> bool:
        """Whether `keep` would keep more of the file than there is."""
        kind = kind_of(name)
        lacks_filter = kind is FileKind.RUN and name not in self._filters and self._filter_bytes < FILTER_BYTES_MAX
        return lacks_filter or (name not in self._pages and _is_paged(kind, index))

    def keep(self, name: str, summary: FileSummary) -> None:
        """Keep of a summary what there is room for."""
        made, pages = summary
        if made is not None and name not in self._filters and self._filter_bytes < FILTER_BYTES_MAX:
            self._filters[name] = made
            self._filter_bytes += made.memory_bytes
        if pages is not None:
            self._pages.put(name, pages)

    def pop(self, name: str) -> None:
        """Forget a file."""
        gone = self._filters.pop(name, None)
        if gone is not None:
            self._filter_bytes -= gone.memory_bytes
        self._pages.pop(name)

    def may_hold(self, name: str, queue_id: int) -> bool:
        """Whether a file may have rows of a queue, as far as memory knows; a "no" is always right."""
        known = self._filters.get(name)
        return known is None or queue_id in known

    def pages(self, name: str) -> ExtentPages | None:
        return self._pages.get(name)
