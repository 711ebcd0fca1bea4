"""Which spans of a write group are worth merging, and into which files. No disk, no clock: numbers in, a choice out.

A *span* is the files of a write group that cover the same blocks. Spans begin as runs (level 0). A merge costs every
byte of its inputs one more write, so none is made before it gains enough:

- If most bytes belong to queues that fill segments, or will before `wait_bytes_max` of runs have gathered, the runs
wait for that, and are merged once, for good: into segments, and packed files for what is left over (level 2). -
Otherwise `level_one_bytes` of runs become packed files of level 1, and `level_two_bytes` of those, side by side, are
merged once more if that leaves a quarter of their extents at the most, or fills segments (level 2). - Merged spans
whose files compaction or retention has left tiny are merged with their neighbours, where a quarter of the files are
left at the most. Each of several has half of the bytes at the most: so whatever is written again is in a span of twice
the size then, until it is no longer tiny. - Tiny files that lie among large ones, in their span or beside it, are
merged with these where there are several for each, and where at most the line of packed files is written per file that
goes. So such merges never write more than the files that they remove could have had, and of tiny files only a few are
left per large one. - A merged span of which half is dead is written again: at most as much as that frees.

So a byte is written twice or three times in its life, and more often only where little is left of it. A span is chosen
by a summary (`SpanSummary`): its totals, and the bytes of its heavy queues only. Each light queue has less than
`HEAVY_SHARE` of its span, so what a queue has in a long row of spans is known to within that share of the row. How the
chosen spans are cut into files (`cut`) goes by the exact bytes of all queues; nothing there depends on the order in
which they were written.

The remote tier takes the merged spans of a write group in their order. Up to where it has come is a *border*: spans on
both sides of it are never merged with each other, or what has been uploaded would be uploaded again. It takes no runs,
so runs that have waited for long in a write group of the tier are *aged*: they are merged however few they are, and the
younger ones behind them with them, so that there is one such merge per waiting time and not one per run.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.errors import ConfigError
from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.store_files.store_file import REMOTE_CLASS_SUFFIX

Integers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

HEAVY_SHARE = 1 / 512
"""A summary names at most this many queues (8 KiB), each with this share of its span or more. A queue that fills a
segment of 1 GiB within 32 GiB of runs has 16 times as much of them."""

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

TINY_SHARE = 8
"""A span is tiny whose files have this part of their line on average, or less: packed files 16 MiB. So is a file."""

FILES_GAIN_MIN = 4
"""A merge of tiny spans leaves at most one of so many files. It may leave three where it counts on one: a segment and
what lies on both sides of it."""

INPUTS_MAX = 2048
"""Spans of one merge: with runs of 64 MiB that four write groups share, `MergeLines.wait_bytes_max`."""

INPUT_FILES_MAX = 1 << 14
"""Files of one merge, unless one span has more: some megabytes in the node's answer."""

TASK_ROWS_MAX = 1 << 20
"""Extents of the inputs that one task moves, unless a single output has more: their rows take 64 MiB, and some more
while they are sorted. A packed file of 128 MiB cannot be made of more than twice as many."""

SEGMENT_PARTS_MAX = 128
"""Segments reach this part of the line of packed files, whatever their topic says: 1 MiB, the least that Kafka
takes."""

SEGMENT_BYTES_MAX = 1 << 30
"""A longer line for segments counts as this: a segment is shorter than twice its line, and Kafka's positions in it are
of 31 bits."""

SHARED_PARTS = 4
"""Queues of a retention class may get a packed file of their own where they fill this part of the line."""

LIFETIME_MAX = 64
"""As powers of two in ms."""

NEVER = numpy.int64(2**62)
"""The line of a queue that gets no segments."""

RUNS, PACKED, FINAL = 0, 1, 2
"""The levels."""


class MergeLines(NamedTuple):
    """How much is enough, in bytes of batches of one write group."""

    packed_bytes: int = 128 << 20
    """Each packed file reaches this."""
    level_one_bytes: int = 8 << 30
    """So many bytes in runs are merged if no segments are in sight. With a quarter of a million queues it makes extents
    of 32 KiB out of single batches."""
    wait_bytes_max: int = 32 << 30
    """Runs wait for segments to fill up to this: two thousand runs, if all four write groups do."""
    level_two_bytes: int = 64 << 30
    task_bytes: int = 1 << 30
    """The bytes that one task merges, unless one segment is larger: a split waits for it at the most."""

    def validate(self) -> None:
        """Raises ConfigError for lines that cannot be used."""
        if not 0 < self.packed_bytes <= self.level_one_bytes <= self.wait_bytes_max:
            raise ConfigError(f"merge lines {self}: 0 < packed_bytes <= level_one_bytes <= wait_bytes_max")
        if self.level_two_bytes < self.level_one_bytes or self.task_bytes <= 0:
            raise ConfigError(f"merge lines {self}: level_two_bytes is at least level_one_bytes, task_bytes positive")

    def segment_line(self, segment_bytes: int) -> int:
        """The bytes at which a queue of a topic with this `segment.bytes` gets a segment."""
        return min(max(segment_bytes, self.packed_bytes // SEGMENT_PARTS_MAX, 1), SEGMENT_BYTES_MAX)


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
    rows = numpy.array([_row_of(span, lines) for span in spans], SPAN_ROW)
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
    spans = spans[: _reaching([span.bytes for span in spans], _files(spans), lines.wait_bytes_max)]
    end = first + len(spans)
    found = _backlog(spans, line_of)
    if not found.bytes:
        return Choice(first, end, FINAL) if drain and len(spans) > 1 else None
    full = found.bytes >= lines.packed_bytes and found.share(found.sizes >= found.lines) >= FULL_SHARE_MIN
    if full and found.leaves_little_over():
        return Choice(first, end, FINAL)
    filling = found.sizes >= found.lines * min(1.0, found.bytes / lines.wait_bytes_max)
    waits = found.share(filling) >= FILLING_SHARE_MIN
    many = len(spans) >= INPUTS_MAX or sum(_files(spans)) >= INPUT_FILES_MAX
    if found.bytes >= lines.wait_bytes_max or many or drain:
        return Choice(first, end, FINAL if found.share(found.sizes >= found.lines) >= FILLING_SHARE_MIN else PACKED)
    dead = sum(span.dead_bytes for span in spans) >= max(found.bytes * DEAD_SHARE_MIN, lines.packed_bytes)
    if dead or (found.bytes >= lines.level_one_bytes and not waits):
        sizes = [span.bytes for span in spans]
        return Choice(first, first + _reaching(sizes, _files(spans), lines.level_one_bytes), PACKED)
    return None


def _of_packed(rows: SpanRows, first: int, end: int, lines: MergeLines, line_of: LineOf) -> Choosing:
    """A stretch that is long enough, or will not grow any more because other levels enclose it, window by window."""
    grows = bool((rows["level"][end:] < PACKED).all())
    begin = first
    while begin < end:
        most = slice(begin, min(end, begin + INPUTS_MAX))
        sizes: list[int] = rows["bytes"][most].tolist()
        reach = begin + _reaching(sizes, rows["file_count"][most].tolist(), lines.level_two_bytes)
        count, size = reach - begin, sum(sizes[: reach - begin])
        if size < lines.level_two_bytes and grows and count < LEVEL_ONE_SPANS_MAX:
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
            if size > lines.level_one_bytes or (number > begin and files > INPUT_FILES_MAX):
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
    fits = (sizes <= lines.level_one_bytes) & ((files <= INPUT_FILES_MAX) | (files == rows["file_count"][:1]))
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


def _row_of(span: SpanSummary, lines: MergeLines) -> tuple[int, ...]:
    found = _fullness(span, lines)
    return span.level, span.bytes, span.dead_bytes, span.file_count, *found


def _fullness(span: SpanSummary, lines: MergeLines) -> Fullness:
    if span.fullness is not None:
        return span.fullness
    size = span.live_bytes
    if size * TINY_SHARE <= span.file_count * lines.packed_bytes:
        return Fullness(size, size, span.file_count, 0)
    return Fullness(size, 0, 0, max(span.file_count, size // lines.packed_bytes))


def _reaching(sizes: Sequence[int], files: Sequence[int], enough: int) -> int:
    """How many of the first spans, with these bytes and files, have so many bytes together, or as many files as a merge
    may have; all where there are fewer."""
    size = count = 0
    for number, (more, file_count) in enumerate(zip(sizes, files, strict=True)):
        size, count = size + more, count + file_count
        if size >= enough or count >= INPUT_FILES_MAX:
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


class Moves(enum.IntEnum):
    """Whether queues move to the remote tier. Those that share a file do as the largest of theirs says."""

    NO = 0
    YES = 1
    NEVER = 2


STAYING = frozenset({"internal", "compact"})
"""Retention classes of which the remote tier gets nothing: a copy there would keep what compaction removes here."""


class Output(NamedTuple):
    """A file that a merge writes. A packed file has the queues `first_queue` to `last_queue`, all of them; a segment
    has the part number `part` of `parts` equal parts of one queue."""

    first_queue: int
    last_queue: int
    part: int
    parts: int
    """0: it is a packed file."""
    retention_class: str
    bytes: int
    """About."""

    @property
    def is_segment(self) -> bool:
        return self.parts > 0


def cut(
    queue_ids: QueueIds, sizes: Integers, segment_lines: Integers, classes: Sequence[str], lines: MergeLines
) -> list[Output]:
    """The files that have these queues (ascending, each with bytes), in the order of their keys.

    `segment_lines` and `classes` are per queue. Segments reach their line, but for less than an extent. Packed files
    reach theirs on average; alone they do not where what lies between two segments does not, or for the sake of their
    retention class (`_share`). The class of a file that several share is that of the queue with most bytes; it moves to
    the remote tier if one of them does (others then cost some room there), unless one must not (`STAYING`)."""
    outputs: list[Output] = []
    count = len(queue_ids)
    full = sizes >= segment_lines
    names, numbers = numpy.unique(numpy.asarray(classes, dtype=numpy.str_), return_inverse=True)
    edge = numpy.ones(count + 1, numpy.bool_)
    edge[1:count] = full[1:] | full[:-1] | (numbers[1:] != numbers[:-1])
    ends = numpy.concatenate(([0], numpy.cumsum(sizes)))
    lifetimes = [lifetime_of(str(name)) for name in names]
    moves = [moves_of(str(name)) for name in names]
    stretches: list[tuple[int, int]] = []
    """Queues of one class each since the last segment."""

    def close() -> None:
        lives = [lifetimes[numbers[first]] for first, _ in stretches]
        moving = [moves[numbers[first]] for first, _ in stretches]
        weights = [int(ends[end] - ends[first]) for first, end in stretches]
        for first, end in _share(stretches, weights, lives, moving, lines.packed_bytes):
            outputs.extend(_packed(queue_ids, sizes, ends, names, numbers, first, end, lines.packed_bytes))
        stretches.clear()

    edges = numpy.flatnonzero(edge).tolist()
    for first, end in itertools.pairwise(edges):
        if full[first]:
            close()
            outputs.extend(_segments(queue_ids, sizes, segment_lines, str(names[numbers[first]]), first))
        else:
            stretches.append((first, end))
    close()
    return outputs


def lifetime_of(retention_class: str) -> int:
    """About how long batches of a class are kept, as a power of two in ms; `LIFETIME_MAX` where time does not tell."""
    kind, _, bucket = retention_class.removesuffix(REMOTE_CLASS_SUFFIX).partition("-")
    return int(bucket).bit_length() if kind == "ms" and bucket.isdecimal() else LIFETIME_MAX


def moves_of(retention_class: str) -> Moves:
    """Whether files with queues of this class move to the remote tier."""
    if retention_class in STAYING:
        return Moves.NEVER
    return Moves.YES if retention_class.endswith(REMOTE_CLASS_SUFFIX) else Moves.NO


def _share(
    stretches: Sequence[tuple[int, int]],
    sizes: Sequence[int],
    lifetimes: Sequence[int],
    moves: Sequence[Moves],
    line: int,
) -> list[tuple[int, int]]:
    """Neighbouring stretches of queues joined into those that share packed files.

    The smallest is joined with its neighbour, of two the one that moves to the remote tier as it does, or lives about
    as long, until all have a `SHARED_PARTS`th of the line and there are no more files than if each reached it."""
    spans, sizes, lifetimes, moves = list(stretches), list(sizes), list(lifetimes), list(moves)
    before, after = list(range(-1, len(spans) - 1)), list(range(1, len(spans) + 1))
    allowed = sum(sizes) // line
    files = sum(max(1, size // line) for size in sizes)
    heap = [(size, number) for number, size in enumerate(sizes)]
    heapq.heapify(heap)
    while heap:
        size, number = heapq.heappop(heap)
        if size != sizes[number]:  # joined since
            continue
        if size >= line // SHARED_PARTS and files <= allowed:
            break
        beside = [one for one in (before[number], after[number]) if 0 <= one < len(spans)]
        if not beside:
            break
        other = min(
            beside,
            key=lambda one: (moves[one] != moves[number], abs(lifetimes[one] - lifetimes[number]), sizes[one]),
        )
        left, right = sorted((number, other))
        files -= max(1, sizes[left] // line) + max(1, sizes[right] // line)
        spans[left] = spans[left][0], spans[right][1]
        sizes[left], sizes[right] = sizes[left] + sizes[right], 0
        files += max(1, sizes[left] // line)
        lifetimes[left] = max(lifetimes[left], lifetimes[right])
        moves[left] = max(moves[left], moves[right])
        after[left] = after[right]
        if after[left] < len(spans):
            before[after[left]] = left
        heapq.heappush(heap, (sizes[left], left))
    return [span for span, size in zip(spans, sizes, strict=True) if size]


def _segments(queue_ids: QueueIds, sizes: Integers, lines: Integers, name: str, queue: int) -> Iterator[Output]:
    queue_id, size = int(queue_ids[queue]), int(sizes[queue])
    parts = size // int(lines[queue])
    for part in range(parts):
        yield Output(queue_id, queue_id, part, parts, name, size // parts)


def _packed(
    queue_ids: QueueIds,
    sizes: Integers,
    ends: Integers,
    names: numpy.typing.NDArray[numpy.str_],
    numbers: numpy.typing.NDArray[numpy.intp],
    first: int,
    end: int,
    line: int,
) -> Iterator[Output]:
    """Packed files of about equal size that reach the line; what is left over would not, and goes into the last."""
    total = int(ends[end] - ends[first])
    each = total // max(1, total // line)
    while first < end:
        stop = min(end, int(ends.searchsorted(ends[first] + each)))
        if ends[end] - ends[stop] < line:
            stop = end
        yield Output(
            int(queue_ids[first]),
            int(queue_ids[stop - 1]),
            0,
            0,
            _shared_class(names, numbers[first:stop], sizes[first:stop]),
            int(ends[stop] - ends[first]),
        )
        first = stop


def _shared_class(
    names: numpy.typing.NDArray[numpy.str_], numbers: numpy.typing.NDArray[numpy.intp], sizes: Integers
) -> str:
    """The retention class of a file with queues of these classes."""
    found = str(names[numbers[sizes.argmax()]])
    moves = max(moves_of(str(names[number])) for number in numpy.unique(numbers))
    return found.removesuffix(REMOTE_CLASS_SUFFIX) + (REMOTE_CLASS_SUFFIX if moves is Moves.YES else "")


def tasks(outputs: Sequence[Output], lines: MergeLines, extents: Sequence[int] = ()) -> list[list[Output]]:
    """The outputs in pieces, in order, each the work of one task: packed files up to `task_bytes` and `TASK_ROWS_MAX`
    together, segments one by one unless they are small. `extents`: those that each output is made of, if known."""
    pieces: list[list[Output]] = []
    size = rows = 0
    for output, more in zip(outputs, extents or (0,) * len(outputs), strict=True):
        if not pieces or size + output.bytes > lines.task_bytes or rows + more > TASK_ROWS_MAX:
            pieces.append([])
            size = rows = 0
        pieces[-1].append(output)
        size += output.bytes
        rows += more
    return pieces
