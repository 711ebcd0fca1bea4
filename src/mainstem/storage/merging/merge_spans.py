"""The facts that the choice of a merge needs to know of the spans of a write group: summaries, and rows of sums.

A *span* is the files of a write group that cover the same blocks. Its summary has its totals, and the bytes of its
heavy queues only: each light queue has less than `HEAVY_SHARE` of its span, so what a queue has in a long row of spans
is known to within that share of the row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import NEVER, TINY_SHARE, Integers, MergeLines

HEAVY_SHARE = 1 / 512
"""A summary names at most this many queues (8 KiB), each with this share of its span or more. A queue that fills a
segment of 1 GiB within 32 GiB of runs has 16 times as much of them."""

RUNS, PACKED, FINAL = 0, 1, 2
"""The levels."""


class Fullness(NamedTuple):
    """How the files of a span compare with their lines: that of packed files, or that of a queue's segments if it is
    smaller. Bytes are live ones, `packed_bytes` for each time that they fill the line."""

    bytes: int
    tiny_bytes: int
    """Of the tiny files."""
    tiny_files: int
    large_files: int
    """The other files; those that fill their line several times count as often."""


class SpanSummary(NamedTuple):
    """The facts that the choice needs to know of a span: blocks (`after`, `upto`] of a write group, and only that
    group's bytes where a run has others, too."""

    after: int
    upto: int
    level: int
    """Of its files, the smallest."""
    bytes: int
    """Of batches, dead ones included."""
    dead_bytes: int
    """Of batches that a merge would leave out."""
    queue_count: int
    row_count: int
    """Extents."""
    heavy_queues: QueueIds
    """Ascending; those with `HEAVY_SHARE` of the bytes or more."""
    heavy_bytes: Integers
    file_count: int = 1
    fullness: Fullness | None = None
    """None: its files are alike, and none of them is a segment with a smaller line than packed files have."""

    @property
    def live_bytes(self) -> int:
        return self.bytes - self.dead_bytes


def summarize(
    after: int, upto: int, level: int, queue_ids: QueueIds, sizes: Integers, *, rows: int = 0, dead_bytes: int = 0
) -> SpanSummary:
    """The summary of a span with these queues (ascending) and bytes of each. `rows`: its extents, if more than one per
    queue."""
    total = int(sizes.sum())
    heavy = sizes >= max(1, total * HEAVY_SHARE)
    return SpanSummary(
        after, upto, level, total, dead_bytes, len(queue_ids), max(rows, len(queue_ids)), queue_ids[heavy], sizes[heavy]
    )


def fullness_of(live_bytes: Integers, file_lines: Integers, lines: MergeLines) -> Fullness:
    """The fullness of files with so many live bytes and these lines each (`NEVER`: that of packed files)."""
    return Fullness(*(int(column.sum()) for column in file_fullness(live_bytes, file_lines, lines)))


def file_fullness(
    live_bytes: Integers, file_lines: Integers, lines: MergeLines
) -> tuple[Integers, Integers, Integers, Integers]:
    """The fullness of each of these files, in columns."""
    file_lines = numpy.where(file_lines == NEVER, lines.packed_bytes, file_lines)
    at = numpy.minimum(file_lines, lines.packed_bytes)
    full = (live_bytes * (lines.packed_bytes / at)).astype(numpy.int64)
    tiny = live_bytes * TINY_SHARE <= at
    large = numpy.where(tiny, 0, numpy.maximum(live_bytes // file_lines, 1))
    return full, numpy.where(tiny, full, 0), tiny.astype(numpy.int64), large


SPAN_ROW = numpy.dtype(
    [
        ("level", "<i8"),
        ("bytes", "<i8"),
        ("dead_bytes", "<i8"),
        ("file_count", "<i8"),
        ("full_bytes", "<i8"),  # from here on as in `Fullness`
        ("tiny_bytes", "<i8"),
        ("tiny_files", "<i8"),
        ("large_files", "<i8"),
    ]
)
"""The sums of a span."""

SpanRows = numpy.typing.NDArray[numpy.void]


def row_of(span: SpanSummary, lines: MergeLines) -> tuple[int, ...]:
    found = _fullness(span, lines)
    return span.level, span.bytes, span.dead_bytes, span.file_count, *found


def _fullness(span: SpanSummary, lines: MergeLines) -> Fullness:
    if span.fullness is not None:
        return span.fullness
    size = span.live_bytes
    if size * TINY_SHARE <= span.file_count * lines.packed_bytes:
        return Fullness(size, size, span.file_count, 0)
    return Fullness(size, 0, 0, max(span.file_count, size // lines.packed_bytes))
