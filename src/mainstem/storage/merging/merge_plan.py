"""Which spans of a write group are worth merging. No disk, no clock: numbers in, a choice out.

Spans (`merge_spans.py`) begin as runs (level 0). A merge costs every byte of its inputs one more write, so none is made
before it gains enough:

* If most bytes belong to queues that fill segments, or will before `wait_bytes_max` of runs have gathered, the runs
  wait for that, and are merged once, for good: into segments, and packed files for what is left over (level 2).
* Otherwise `level_one_bytes` of runs become packed files of level 1, and `level_two_bytes` of those, side by side, are
  merged once more if that leaves a quarter of their extents at the most, or fills segments (level 2).
* Merged spans whose files compaction or retention has left tiny are merged with their neighbours, where a quarter of
  the files are left at the most. Each of several has half of the bytes at the most: so whatever is written again is in
  a span of twice the size then, until it is no longer tiny.
* Tiny files that lie among large ones, in their span or beside it, are merged with these where there are several for
  each, and where at most the line of packed files is written per file that goes. So such merges never write more than
  the files that they remove could have had, and of tiny files only a few are left per large one.
* A merged span of which half is dead is written again: at most as much as that frees.

So a byte is written twice or three times in its life, and more often only where little is left of it. How the chosen
spans are cut into files is another matter (`merge_outputs.py`).

The remote tier takes the merged spans of a write group in their order. Up to where it has come is a *border*: spans on
both sides of it are never merged with each other, or what has been uploaded would be uploaded again. It takes no runs,
so runs that have waited for long in a write group of the tier are *aged*: they are merged however few they are, and the
younger ones behind them with them, so that there is one such merge per waiting time and not one per run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import TINY_SHARE, Flags, Integers, MergeLines
from mainstem.storage.merging.merge_spans import FINAL, PACKED, RUNS, SPAN_ROW, SpanRows, SpanSummary, row_of

FILLING_SHARE_MIN = 0.8
"""Runs wait, and are merged once for good, when this share of their bytes is of queues that fill segments."""

FULL_SHARE_MIN = 0.9
"""They need not wait any longer when this share is of queues that have filled one."""

ROWS_GAIN_MIN = 4
"""A second merge of packed files leaves at most one of so many extents, or it is not worth its writes."""

LEVEL_ONE_SPANS_MAX = 64
"""So many spans of level 1 side by side are merged whatever it gains: a lookup may have to search each."""

DEAD_SHARE_MIN = 0.5
"""A merge for the room that dead batches take frees at least this share."""

DEAD_BYTES_PART = 8
"""It frees this part of the line of packed files, too, or it is not worth its steps: 16 MiB."""

FILES_GAIN_MIN = 4
"""A merge of tiny spans leaves at most one of so many files. It may leave three where it counts on one: a segment and
what lies on both sides of it."""

INPUTS_MAX = 2048
"""Spans of one merge: with runs of 64 MiB that four write groups share, `MergeLines.wait_bytes_max`."""


class Choice(NamedTuple):
    """Spans number `first` to `end` - 1 are to become one span of this level."""

    first: int
    end: int
    level: int


LineOf = Callable[[QueueIds], Integers]
"""The segment line in bytes of each of these queues (`MergeLines.segment_line`), `NEVER` for those without."""


class SpansWanted(NamedTuple):
    """Asks for the summaries of spans number `first` to `end` - 1."""

    first: int
    end: int


Choosing = Generator[SpansWanted, Sequence[SpanSummary], "Choice | None"]


def choose(
    spans: Sequence[SpanSummary],
    lines: MergeLines,
    line_of: LineOf,
    *,
    drain: bool = False,
    borders: Sequence[int] = (),
    aged: int = 0,
) -> Choice | None:
    """The work to merge next of the spans of a write group, oldest first; None when nothing is worth it. `drain`: all
    runs are to be merged, however few. `borders`: numbers of spans, ascending, that are not merged with any before
    them. `aged`: of runs, those in the first so many spans have waited for long enough."""
    rows = numpy.array([row_of(span, lines) for span in spans], SPAN_ROW)
    steps = choosing(rows, lines, line_of, drain=drain, borders=borders, aged=aged)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send(spans[wanted.first : wanted.end])
    except StopIteration as end:
        found: Choice | None = end.value
        return found


def choosing(
    rows: SpanRows,
    lines: MergeLines,
    line_of: LineOf,
    *,
    drain: bool = False,
    borders: Sequence[int] = (),
    aged: int = 0,
) -> Choosing:
    """The same of the sums of all spans, asking for the summaries of a few. The bytes of runs count in these only."""
    for begin, stop in itertools.pairwise([0, *borders, len(rows)]):
        steps = _between(rows[begin:stop], lines, line_of, drain=drain, aged=aged - begin)
        found = yield from _further_on(steps, begin)
        if found is not None:
            return found
    return None


def _further_on(steps: Choosing, by: int) -> Choosing:
    """The same choice among spans that so many others come before."""
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send((yield SpansWanted(wanted.first + by, wanted.end + by)))
    except StopIteration as end:
        found: Choice | None = end.value
        return None if found is None else Choice(found.first + by, found.end + by, found.level)


def _between(rows: SpanRows, lines: MergeLines, line_of: LineOf, *, drain: bool, aged: int) -> Choosing:
    """The choice among spans between two borders."""
    levels = rows["level"]
    edges = [0, *(numpy.flatnonzero(levels[1:] != levels[:-1]) + 1).tolist(), len(rows)] if len(rows) else []
    for first, end in itertools.pairwise(edges):
        level = int(levels[first])
        found = None
        if level == RUNS:
            at_once = drain or first < aged or end < len(rows)
            found = yield from _of_runs(first, end, lines, line_of, drain=at_once)
        elif level == PACKED:
            found = yield from _of_packed(rows, first, end, lines, line_of)
        if found is not None:
            return found
    return _tiny(rows, lines) or _mostly_dead(rows, lines) or _tiny_among_large(rows, lines)


def _of_runs(first: int, end: int, lines: MergeLines, line_of: LineOf, *, drain: bool) -> Choosing:
    spans = yield SpansWanted(first, min(end, first + INPUTS_MAX))
    spans = spans[: _reaching([span.bytes for span in spans], _files(spans), lines.wait_bytes_max, lines)]
    end = first + len(spans)
    found = _backlog(spans, line_of)
    if not found.bytes:
        return Choice(first, end, FINAL) if drain and len(spans) > 1 else None
    full = found.bytes >= lines.packed_bytes and found.share(found.sizes >= found.lines) >= FULL_SHARE_MIN
    if full and found.leaves_little_over():
        return Choice(first, end, FINAL)
    filling = found.sizes >= found.lines * min(1.0, found.bytes / lines.wait_bytes_max)
    waits = found.share(filling) >= FILLING_SHARE_MIN
    many = len(spans) >= INPUTS_MAX or sum(_files(spans)) >= lines.input_files_max
    if found.bytes >= lines.wait_bytes_max or many or drain:
        return Choice(first, end, FINAL if found.share(found.sizes >= found.lines) >= FILLING_SHARE_MIN else PACKED)
    dead = sum(span.dead_bytes for span in spans) >= max(found.bytes * DEAD_SHARE_MIN, lines.packed_bytes)
    if dead or (found.bytes >= lines.level_one_bytes and not waits):
        sizes = [span.bytes for span in spans]
        return Choice(first, first + _reaching(sizes, _files(spans), lines.level_one_bytes, lines), PACKED)
    return None


def _of_packed(rows: SpanRows, first: int, end: int, lines: MergeLines, line_of: LineOf) -> Choosing:
    """A stretch that is long enough, or will not grow any more because other levels enclose it, window by window."""
    grows = bool((rows["level"][end:] < PACKED).all())
    begin = first
    while begin < end:
        most = slice(begin, min(end, begin + INPUTS_MAX))
        sizes: list[int] = rows["bytes"][most].tolist()
        reach = begin + _reaching(sizes, rows["file_count"][most].tolist(), lines.level_two_bytes, lines)
        count, size = reach - begin, sum(sizes[: reach - begin])
        if size < lines.level_two_bytes and grows and count < LEVEL_ONE_SPANS_MAX and reach == end:
            return None
        if count > 1:
            window = yield SpansWanted(begin, reach)
            found = _backlog(window, line_of)
            rows_after = max(max(span.queue_count for span in window), size // EXTENT_BYTES, 1)
            fewer = sum(span.row_count for span in window) >= ROWS_GAIN_MIN * rows_after
            full = found.share(found.sizes >= found.lines) >= FILLING_SHARE_MIN
            if fewer or full or count >= LEVEL_ONE_SPANS_MAX:
                return Choice(begin, reach, FINAL)
        begin = reach
    return None


def _mostly_dead(rows: SpanRows, lines: MergeLines) -> Choice | None:
    """The first merged span of which most is dead, to be written again without that."""
    enough = numpy.maximum(rows["bytes"] * DEAD_SHARE_MIN, max(lines.packed_bytes // DEAD_BYTES_PART, 1))
    worth = numpy.flatnonzero((rows["level"] > RUNS) & (rows["dead_bytes"] >= enough))
    if not len(worth):
        return None
    number = int(worth[0])
    return Choice(number, number + 1, int(rows["level"][number]))


def _tiny(rows: SpanRows, lines: MergeLines) -> Choice | None:
    """Neighbours that became tiny, to be written into few files; those before the last of the highest level, as others
    have merges to come. Of rows of tiny spans without enough files none is looked at."""
    rows = _settled(rows)
    is_tiny = (rows["level"] > RUNS) & (rows["full_bytes"] * TINY_SHARE <= rows["file_count"] * lines.packed_bytes)
    edges = numpy.flatnonzero(numpy.diff(is_tiny.astype(numpy.int8), prepend=0, append=0))
    sums = numpy.concatenate(([0], numpy.cumsum(rows["file_count"])))
    enough = numpy.flatnonzero(sums[edges[1::2]] - sums[edges[::2]] >= FILES_GAIN_MIN)
    for first, end in edges.reshape(-1, 2)[enough].tolist():
        found = _tiny_in(rows[first:end], lines)
        if found is not None:
            return Choice(first + found.first, first + found.end, FINAL)
    return None


def _tiny_in(rows: SpanRows, lines: MergeLines) -> Choice | None:
    live = (rows["bytes"] - rows["dead_bytes"]).tolist()
    spans = list(zip(live, rows["full_bytes"].tolist(), rows["file_count"].tolist(), strict=True))
    for begin in range(len(spans)):
        found = None
        files = size = full = largest = 0
        for number in range(begin, min(len(spans), begin + INPUTS_MAX)):
            live_bytes, full_bytes, file_count = spans[number]
            size, files = size + live_bytes, files + file_count
            if size > lines.level_one_bytes or (number > begin and files > lines.final_files_max):
                break
            full += full_bytes
            largest = max(largest, live_bytes)
            fewer = files >= FILES_GAIN_MIN * max(1, -(-full // lines.packed_bytes))
            if fewer and (number == begin or size >= 2 * largest):
                found = Choice(begin, number + 1, FINAL)
        if found is not None:
            return found
    return None


def _tiny_among_large(rows: SpanRows, lines: MergeLines) -> Choice | None:
    """The shortest row of neighbours in which tiny files are many for the large ones among them. A merge may leave
    each of these, a file on both sides of it, and what tiny ones make together."""
    rows = _settled(rows)
    tiny, large = rows["tiny_files"], rows["large_files"]
    live = rows["bytes"] - rows["dead_bytes"]
    # what a row gains at least, from any span on: most spans have no row that could be worth it
    files = _most_ahead(tiny - FILES_GAIN_MIN * large) >= FILES_GAIN_MIN
    written = _most_ahead(lines.packed_bytes * (rows["file_count"] - 2 * large) - live) >= lines.packed_bytes
    worth = numpy.flatnonzero((tiny > 0) & (rows["level"] > RUNS) & files & written)
    for begin in worth.tolist():
        end = _worth_from(rows[begin : begin + INPUTS_MAX], lines)
        if end:
            return Choice(begin, begin + end, FINAL)
    return None


def _worth_from(rows: SpanRows, lines: MergeLines) -> int:
    """How many of the first of these spans are worth a merge; 0: none are."""
    runs = numpy.flatnonzero(rows["level"] == RUNS)
    rows = rows[: int(runs[0])] if len(runs) else rows
    sizes = numpy.cumsum(rows["bytes"] - rows["dead_bytes"])
    files = numpy.cumsum(rows["file_count"])
    fits = (sizes <= lines.level_one_bytes) & ((files <= lines.final_files_max) | (files == rows["file_count"][:1]))
    tiny, large = numpy.cumsum(rows["tiny_files"]), numpy.cumsum(rows["large_files"])
    left = large + 1 + numpy.cumsum(rows["tiny_bytes"]) // lines.packed_bytes
    paid = sizes <= lines.packed_bytes * (files - large - left)
    worth = numpy.flatnonzero(fits & (large > 0) & (tiny >= FILES_GAIN_MIN * left) & paid)
    return int(worth[0]) + 1 if len(worth) else 0


def _most_ahead(values: Integers) -> Integers:
    """Of each place the largest sum of a row that begins there."""
    sums = numpy.cumsum(values)
    most = numpy.maximum.accumulate(sums[::-1])[::-1]
    ahead: Integers = most - sums + values
    return ahead


def _settled(rows: SpanRows) -> SpanRows:
    """The spans before the end of the last one of the highest level."""
    final = numpy.flatnonzero(rows["level"] == FINAL)
    return rows[: int(final[-1]) + 1] if len(final) else rows[:0]


def _reaching(sizes: Sequence[int], files: Sequence[int], enough: int, lines: MergeLines) -> int:
    """How many of the first spans, with these bytes and files, have so many bytes together, or as many files as a merge
    may have; all where there are fewer."""
    size = count = 0
    for number, (more, file_count) in enumerate(zip(sizes, files, strict=True)):
        size, count = size + more, count + file_count
        if size >= enough or count >= lines.input_files_max:
            return number + 1
    return len(sizes)


def _files(spans: Sequence[SpanSummary]) -> list[int]:
    return [span.file_count for span in spans]


class _Backlog(NamedTuple):
    """The sums of neighbouring spans together."""

    bytes: int
    queue_count: int
    """Of the span that has most queues: there are at least so many."""
    sizes: Integers
    """Bytes of each heavy queue."""
    lines: Integers

    def share(self, chosen: Flags) -> float:
        return float(self.sizes[chosen].sum()) / self.bytes if self.bytes else 0.0

    def leaves_little_over(self) -> bool:
        """Whether the queues that fill no segment have extents that are worth their rows, or there are none."""
        full = self.sizes >= self.lines
        queues = self.queue_count - int(full.sum())
        return self.bytes - int(self.sizes[full].sum()) >= queues * EXTENT_BYTES


def _backlog(spans: Sequence[SpanSummary], line_of: LineOf) -> _Backlog:
    """Of queues whose topics count records no more than their bytes is known here: they go by `segment.bytes`, and may
    fill segments before this expects it."""
    queues, place = numpy.unique(numpy.concatenate([span.heavy_queues for span in spans]), return_inverse=True)
    sizes = numpy.zeros(len(queues), numpy.int64)
    numpy.add.at(sizes, place, numpy.concatenate([span.heavy_bytes for span in spans]))
    return _Backlog(sum(span.bytes for span in spans), max(span.queue_count for span in spans), sizes, line_of(queues))
