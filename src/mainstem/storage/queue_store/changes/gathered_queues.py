"""Gathers what files have of compacted queues, of as many queues at a time as memory has room for.

A pass needs all parts of a queue, but of no more than one queue. So where a write group has more than there is room
for, its queues are looked at in ranges of their ids. A range begins somewhere and has no end at first; whenever what
was gathered has no room, the range ends earlier, and what lies behind its end is forgotten. One queue alone is never
cut: it takes what it takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from mainstem.storage.compacting.compact_plan import Parts
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange

FILE_BYTES = 1_000
"""For the objects of each file."""

NO_END = 1 << 64
"""Behind all queues."""


class FileParts(NamedTuple):
    """The sums that a file has of the queues of a range."""

    entry: FileRange
    parts: Parts
    reaches_beyond: bool
    """Whether it has compacted queues outside the range."""


class GatheredQueues:
    """The queues from `first` up to `end`, not included, and what files have of them."""

    def __init__(self, first: int, bytes_max: int) -> None:
        """`bytes_max`: of memory, unless one queue takes more."""
        self.first, self.end = first, NO_END
        self.files: list[FileParts] = []
        """In the order in which they came."""
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._only: int | None = None
        """The only queue that the files have; None: they have several, or that was not looked at."""

    @property
    def is_last(self) -> bool:
        return self.end == NO_END

    def overlaps(self, first_queue: int, last_queue: int) -> bool:
        """Whether a file with queues from the one to the other may have some of the range."""
        return first_queue < self.end and last_queue >= self.first

    def add(self, entry: FileRange, parts: Parts) -> None:
        """Take what a file has of compacted queues. The range may end earlier then."""
        found = self._within(FileParts(entry, parts, reaches_beyond=False))
        if found is None:
            return
        self.files.append(found)
        self.held_bytes += bytes_of(found.parts)
        if {int(found.parts.queue_ids[0]), int(found.parts.queue_ids[-1])} != {self._only}:
            self._only = None
        while self.held_bytes > self._bytes_max and self._only is None:
            self._end_earlier()

    def _end_earlier(self) -> None:
        """Leave out the second half of what there is, or all queues but the first."""
        queue_ids = numpy.sort(numpy.concatenate([file.parts.queue_ids for file in self.files]))
        end = queue_ids[len(queue_ids) // 2]
        if end == queue_ids[0]:
            behind = int(queue_ids.searchsorted(end, side="right"))
            if behind == len(queue_ids):
                self._only = int(end)
                return
            end = queue_ids[behind]
        self.end = int(end)
        self.files = [found for file in self.files if (found := self._within(file)) is not None]
        self.held_bytes = sum(bytes_of(file.parts) for file in self.files)

    def _within(self, file: FileParts) -> FileParts | None:
        """The part of it that lies in the range. Nothing of the rest is kept in memory."""
        queue_ids = file.parts.queue_ids
        begin = int(queue_ids.searchsorted(numpy.uint64(self.first)))
        end = len(queue_ids) if self.is_last else int(queue_ids.searchsorted(numpy.uint64(self.end)))
        if end - begin == len(queue_ids):
            return file if len(queue_ids) else None
        if begin == end:
            return None
        return FileParts(file.entry, file.parts.of(numpy.arange(begin, end)), reaches_beyond=True)


def bytes_of(parts: Parts) -> int:
    """The memory that the sums of a file take."""
    return sum(column.nbytes for column in parts) + FILE_BYTES
