"""Finds the runs that have waited for so long that they are merged however few they are.

Neither the remote tier nor a compaction takes runs, so what a write group has in runs stays as it is until that is
enough to merge; a write group that nobody writes to any more never has enough. A run is as old as this node has seen
it: what batches say of their age is what clients say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.merging.merge_outputs import STAYING
from mainstem.storage.merging.merge_spans import RUNS, SpanRows
from mainstem.storage.queue_store.manifest.in_memory.file_table import NOT_SEEN
from mainstem.storage.queue_store.manifest.in_memory.span_lists import Chunk, Pages, SpanList
from mainstem.storage.store_files.store_file import COMPACTED_CLASS, moves

NEVER_AGED = -1
"""A time that no run was seen before."""


class AgedBefore(NamedTuple):
    """The times (ms) before which a node has seen the runs that are aged."""

    moving_ms: int
    """Those of retention classes that move to the remote tier."""
    others_ms: int
    """The others, but for classes of which nothing ever moves: they may hold what a topic had before it asked for the
    tier, or was compacted."""
    compacted_ms: int = NEVER_AGED
    """Those of compacted topics."""


AgedOf = Callable[[int], AgedBefore | None]
"""Gives those of a write group; None where no run is merged for its age."""


def none_aged(group: int) -> None:
    """The answer where runs wait until they are enough."""
    return


def aged_spans(spans: SpanList, rows: SpanRows, before: AgedBefore) -> int:
    """The number of the span behind the last one with an aged run; 0: there is none. `rows`: the sums of all spans."""
    has_runs = rows["level"] == RUNS
    end = len(spans)
    for chunk in reversed(spans.chunks):
        first = end - len(chunk)
        if has_runs[first:end].any():
            places = numpy.flatnonzero(_are_aged(chunk, spans.pages, before))
            if len(places):
                return first + int(chunk.starts.searchsorted(places[-1], side="right"))
        end = first
    return 0


def _are_aged(chunk: Chunk, pages: Pages, before: AgedBefore) -> numpy.typing.NDArray[numpy.bool_]:
    """Of the files of a chunk."""
    rows = chunk.rows.astype(numpy.int64)
    aged = numpy.zeros(len(rows), numpy.bool_)
    for number in numpy.unique(rows // pages.size).tolist():
        mine = rows // pages.size == number
        at, page = rows[mine] % pages.size, pages.pages[number]
        limits = numpy.where(page.rows.in_classes(moves)[at], before.moving_ms, before.others_ms)
        limits[page.rows.in_classes(lambda name: name in STAYING)[at]] = NEVER_AGED
        limits[page.rows.in_classes(lambda name: name == COMPACTED_CLASS)[at]] = before.compacted_ms
        seen_ms = page.seen[at]
        aged[mine] = (page.rows.column("level")[at] == RUNS) & (seen_ms != NOT_SEEN) & (seen_ms < limits)
    return aged
