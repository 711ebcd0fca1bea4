"""From where on a queue gets queue segments: so many bytes, or so many records where its topic counts them.

Every piece of a queue *fills* a number of bytes of its segment line: its own length, or more where the topic sets
`segment.records` and the piece has a larger share of these than of the bytes. A segment is full when its pieces fill
the line. So a count never makes a segment larger than its bytes may make it; and pieces fill no more than their share
of the least segment there is (`MergeLines.segment_line(0)`), so that a small count makes no million of tiny files.

Merges cut queues by what their extents fill. Whether a file is full is judged by its bytes and records as a whole:
these fill at least half of what its extents do, so a segment that a merge cut by its count does not count as tiny.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy

from mainstem.model import PARTITION_BITS
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import NEVER, Integers, MergeLines

UNCOUNTED = -1
"""The `segment.records` of a topic that sets none."""


class SegmentTopic(Protocol):
    """The settings of a topic for its segments."""

    @property
    def segment_bytes(self) -> int: ...

    @property
    def segment_records(self) -> int: ...


class _Limits(NamedTuple):
    """Per queue, or per piece of one."""

    lines: Integers
    """In bytes; `NEVER` for a queue that gets no segments."""
    counts: Integers
    """In records; `UNCOUNTED` where bytes alone count."""


class SegmentLines:
    """Tells the segment lines of queues from what their topics ask for. Queues of unknown topics get none."""

    def __init__(self, topics: Mapping[int, SegmentTopic], lines: MergeLines) -> None:
        """`topics`: by their numbers."""
        self._topics = topics
        self._lines = lines
        self._least = lines.segment_line(0)

    def of(self, queue_ids: QueueIds) -> Integers:
        """The line in bytes of each of these queues, as if none counted records."""
        return self._limits(queue_ids).lines

    def fills(self, queue_ids: QueueIds, sizes: Integers, records: Integers) -> Integers:
        """How many bytes of its line each piece of a queue, with so many bytes and records, fills."""
        return self._fills(self._limits(queue_ids), sizes, records) if self._any_counts else sizes

    def of_filled(self, queue_ids: QueueIds, sizes: Integers, fills: Integers) -> Integers:
        """The line in bytes of each of these queues, of which so many bytes fill so much."""
        return self._of_filled(self._limits(queue_ids), sizes, fills)

    def of_files(self, queue_ids: QueueIds, sizes: Integers, records: Integers) -> Integers:
        """The line in bytes of files with so many bytes and records, each of one queue."""
        limits = self._limits(queue_ids)
        return self._of_filled(limits, sizes, self._fills(limits, sizes, records))

    @cached_property
    def _any_counts(self) -> bool:
        return any(topic.segment_records > 0 for topic in self._topics.values())

    def _limits(self, queue_ids: QueueIds) -> _Limits:
        numbers, which = numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS), return_inverse=True)
        topics = [self._topics.get(number) for number in numbers.tolist()]
        lines = [NEVER if topic is None else self._lines.segment_line(topic.segment_bytes) for topic in topics]
        counts = [UNCOUNTED if topic is None else topic.segment_records for topic in topics]
        return _Limits(numpy.array(lines, numpy.int64)[which], numpy.array(counts, numpy.int64)[which])

    def _fills(self, limits: _Limits, sizes: Integers, records: Integers) -> Integers:
        found = sizes.copy()
        counted = numpy.flatnonzero(limits.counts > 0)
        lines, sizes = limits.lines[counted], sizes[counted]
        by_count = -(-records[counted] * lines // limits.counts[counted])
        found[counted] = numpy.clip(by_count, sizes, sizes * lines // self._least)
        return found

    def _of_filled(self, limits: _Limits, sizes: Integers, fills: Integers) -> Integers:
        found = limits.lines.copy()
        dense = numpy.flatnonzero(fills > sizes)
        lines = sizes[dense] * (limits.lines[dense] / fills[dense])
        found[dense] = numpy.maximum(lines.astype(numpy.int64), self._least)
        return found
