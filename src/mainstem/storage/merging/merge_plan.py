"""Which spans of a write group are worth merging, and into which files. No disk, no clock: numbers in, a choice out.

A *span* is the files of a write group that cover the same blocks. Spans begin as runs (level 0). A merge costs every
byte of its inputs one more write, so none is made before it gains enough:

- Where most bytes belong to queues that fill segments, or will before `wait_bytes_max` of runs have gathered, the runs
  wait for that, and are merged once, for good: into segments, and packed files for what is left over (level 2).
- Otherwise `level_one_bytes` of runs become packed files of level 1, and `level_two_bytes` of those, side by side, are
  merged once more if that leaves a quarter of their extents at the most, or fills segments (level 2).
- Merged spans whose files compaction or retention has left tiny are merged with their neighbours, where a quarter of
  the files are left at the most. Each of several has half of the bytes at the most: so whatever is written again is in
  a span of twice the size then, until it is no longer tiny.
- Tiny files that lie among large ones, in their span or beside it, are merged with these where there are several for
  each, and where at most the line of packed files is written per file that goes. So such merges never write more than
  the files that they remove could have had, and of tiny files only a few are left per large one.
- A merged span of which half is dead is written again: at most as much as that frees.

So a byte is written twice or three times in its life, and more often only where little is left of it. A span is chosen
by a summary (`SpanSummary`): its totals, and the bytes of its heavy queues only. Each light queue has less than
`HEAVY_SHARE` of its span, so what a queue has in a long row of spans is known to within that share of the row. How the
chosen spans are cut into files (`cut`) goes by the exact bytes of all queues; nothing there depends on the order in
which they were written.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.errors import ConfigError
from mainstem.storage.extents.extent_format import EXTENT_BYTES
from mainstem.storage.extents.extent_index import QueueIds

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
    """What one task merges, unless one segment is larger: a split waits for it at the most."""

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
    """What the choice needs to know of a span: blocks (`after`, `upto`] of a write group, and only that group's bytes
    where a run has others, too."""

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
    file_lines = numpy.where(file_lines == NEVER, lines.packed_bytes, file_lines)
    at = numpy.minimum(file_lines, lines.packed_bytes)
    full = (live_bytes * (lines.packed_bytes / at)).astype(numpy.int64)
    tiny = live_bytes * TINY_SHARE <= at
    large = numpy.maximum(live_bytes[~tiny] // file_lines[~tiny], 1)
    return Fullness(int(full.sum()), int(full[tiny].sum()), int(tiny.sum()), int(large.sum()))


class Choice(NamedTuple):
    """Spans number `first` to `end` - 1 are to become one span of this level."""

    first: int
    end: int
    level: int


LineOf = Callable[[QueueIds], Integers]
"""The segment line of each of these queues (`MergeLines.segment_line`), `NEVER` for those without."""


def choose(spans: Sequence[SpanSummary], lines: MergeLines, line_of: LineOf, *, drain: bool = False) -> Choice | None:
    """What to merge next of the spans of a write group, oldest first; None when nothing is worth it. `drain`: all runs
    are to be merged, however few."""
    for first, end, level in _stretches(spans):
        closed = end < len(spans)
        if level == RUNS:
            found = _of_runs(spans, first, end, lines, line_of, drain=drain or closed)
        elif level == PACKED:
            found = _of_packed(spans, first, end, lines, line_of)
        else:
            found = None
        if found is not None:
            return found
    return _tiny(spans, lines) or _mostly_dead(spans, lines) or _tiny_among_large(spans, lines)


def _stretches(spans: Sequence[SpanSummary]) -> Iterator[tuple[int, int, int]]:
    """(first, end, level) of neighbouring spans of the same level."""
    first = 0
    for number in range(1, len(spans) + 1):
        if number == len(spans) or spans[number].level != spans[first].level:
            yield first, number, spans[first].level
            first = number


def _of_runs(
    spans: Sequence[SpanSummary], first: int, end: int, lines: MergeLines, line_of: LineOf, *, drain: bool
) -> Choice | None:
    end = _reaching(spans, first, end, lines.wait_bytes_max)
    found = _backlog(spans[first:end], line_of)
    if not found.bytes:
        return Choice(first, end, FINAL) if drain and end - first > 1 else None
    full = found.bytes >= lines.packed_bytes and found.share(found.sizes >= found.lines) >= FULL_SHARE_MIN
    if full and found.leaves_little_over():
        return Choice(first, end, FINAL)
    filling = found.sizes >= found.lines * min(1.0, found.bytes / lines.wait_bytes_max)
    waits = found.share(filling) >= FILLING_SHARE_MIN
    if found.bytes >= lines.wait_bytes_max or end - first >= INPUTS_MAX or drain:
        return Choice(first, end, FINAL if found.share(found.sizes >= found.lines) >= FILLING_SHARE_MIN else PACKED)
    dead = sum(span.dead_bytes for span in spans[first:end]) >= max(found.bytes * DEAD_SHARE_MIN, lines.packed_bytes)
    if dead or (found.bytes >= lines.level_one_bytes and not waits):
        return Choice(first, _reaching(spans, first, end, lines.level_one_bytes), PACKED)
    return None


def _of_packed(spans: Sequence[SpanSummary], first: int, end: int, lines: MergeLines, line_of: LineOf) -> Choice | None:
    """A stretch that is long enough, or will not grow any more because other levels enclose it, window by window."""
    grows = all(span.level < PACKED for span in spans[end:])
    begin = first
    while begin < end:
        reach = _reaching(spans, begin, end, lines.level_two_bytes)
        window = spans[begin:reach]
        size = sum(span.bytes for span in window)
        if size < lines.level_two_bytes and grows and len(window) < LEVEL_ONE_SPANS_MAX:
            return None
        if len(window) > 1:
            found = _backlog(window, line_of)
            rows_after = max(max(span.queue_count for span in window), size // EXTENT_BYTES, 1)
            fewer = sum(span.row_count for span in window) >= ROWS_GAIN_MIN * rows_after
            full = found.share(found.sizes >= found.lines) >= FILLING_SHARE_MIN
            if fewer or full or len(window) >= LEVEL_ONE_SPANS_MAX:
                return Choice(begin, reach, FINAL)
        begin = reach
    return None


def _mostly_dead(spans: Sequence[SpanSummary], lines: MergeLines) -> Choice | None:
    """The merged span of which most is dead, to be written again without that."""
    for number, span in enumerate(spans):
        enough = max(span.bytes * DEAD_SHARE_MIN, lines.packed_bytes // DEAD_BYTES_PART, 1)
        if span.level > RUNS and span.dead_bytes >= enough:
            return Choice(number, number + 1, span.level)
    return None


def _tiny(spans: Sequence[SpanSummary], lines: MergeLines) -> Choice | None:
    """Neighbours that became tiny, to be written into few files; those before the last of the highest level, as others
    have merges to come."""
    settled = _settled(spans)
    for begin in range(settled):
        found = None
        files = size = full = largest = 0
        for number in range(begin, min(settled, begin + INPUTS_MAX)):
            span = spans[number]
            size += span.live_bytes
            if not _is_tiny(span, lines) or size > lines.level_one_bytes:
                break
            files += span.file_count
            full += _fullness(span, lines).bytes
            largest = max(largest, span.live_bytes)
            fewer = files >= FILES_GAIN_MIN * max(1, -(-full // lines.packed_bytes))
            if fewer and (number == begin or size >= 2 * largest):
                found = Choice(begin, number + 1, FINAL)
        if found is not None:
            return found
    return None


def _tiny_among_large(spans: Sequence[SpanSummary], lines: MergeLines) -> Choice | None:
    """The shortest row of neighbours in which tiny files are many for the large ones among them. A merge may leave
    each of these, a file on both sides of it, and what tiny ones make together."""
    settled = _settled(spans)
    for begin in range(settled):
        files = size = tiny_files = tiny_bytes = large_files = 0
        for number in range(begin, min(settled, begin + INPUTS_MAX)):
            span, found = spans[number], _fullness(spans[number], lines)
            size += span.live_bytes
            if span.level == RUNS or size > lines.level_one_bytes or (number == begin and not found.tiny_files):
                break
            files += span.file_count
            tiny_files += found.tiny_files
            tiny_bytes += found.tiny_bytes
            large_files += found.large_files
            left = large_files + 1 + tiny_bytes // lines.packed_bytes
            written_max = lines.packed_bytes * (files - large_files - left)
            if large_files and tiny_files >= FILES_GAIN_MIN * left and size <= written_max:
                return Choice(begin, number + 1, FINAL)
    return None


def _settled(spans: Sequence[SpanSummary]) -> int:
    """The spans before the end of the last one of the highest level."""
    return 1 + max((number for number, span in enumerate(spans) if span.level == FINAL), default=-1)


def _is_tiny(span: SpanSummary, lines: MergeLines) -> bool:
    return span.level > RUNS and _fullness(span, lines).bytes * TINY_SHARE <= span.file_count * lines.packed_bytes


def _fullness(span: SpanSummary, lines: MergeLines) -> Fullness:
    if span.fullness is not None:
        return span.fullness
    size = span.live_bytes
    if size * TINY_SHARE <= span.file_count * lines.packed_bytes:
        return Fullness(size, size, span.file_count, 0)
    return Fullness(size, 0, 0, max(span.file_count, size // lines.packed_bytes))


def _reaching(spans: Sequence[SpanSummary], first: int, end: int, enough: int) -> int:
    """The end of the shortest row of spans from `first` on that has so many bytes; `end` where there are fewer."""
    size = 0
    for number in range(first, min(end, first + INPUTS_MAX)):
        size += spans[number].bytes
        if size >= enough:
            return number + 1
    return min(end, first + INPUTS_MAX)


class _Backlog(NamedTuple):
    """What neighbouring spans have together."""

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
    queues, place = numpy.unique(numpy.concatenate([span.heavy_queues for span in spans]), return_inverse=True)
    sizes = numpy.zeros(len(queues), numpy.int64)
    numpy.add.at(sizes, place, numpy.concatenate([span.heavy_bytes for span in spans]))
    return _Backlog(sum(span.bytes for span in spans), max(span.queue_count for span in spans), sizes, line_of(queues))


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
    retention class (`_share`). The class of a file that several share is that of the queue with most bytes."""
    outputs: list[Output] = []
    count = len(queue_ids)
    full = sizes >= segment_lines
    names, numbers = numpy.unique(numpy.asarray(classes, dtype=numpy.str_), return_inverse=True)
    edge = numpy.ones(count + 1, numpy.bool_)
    edge[1:count] = full[1:] | full[:-1] | (numbers[1:] != numbers[:-1])
    ends = numpy.concatenate(([0], numpy.cumsum(sizes)))
    lifetimes = [lifetime_of(str(name)) for name in names]
    stretches: list[tuple[int, int]] = []
    """Queues of one class each since the last segment."""

    def close() -> None:
        lives = [lifetimes[numbers[first]] for first, _ in stretches]
        weights = [int(ends[end] - ends[first]) for first, end in stretches]
        for first, end in _share(stretches, weights, lives, lines.packed_bytes):
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
    kind, _, bucket = retention_class.partition("-")
    return int(bucket).bit_length() if kind == "ms" and bucket.isdecimal() else LIFETIME_MAX


def _share(
    stretches: Sequence[tuple[int, int]], sizes: Sequence[int], lifetimes: Sequence[int], line: int
) -> list[tuple[int, int]]:
    """Neighbouring stretches of queues joined into those that share packed files.

    The smallest is joined with its neighbour, of two the one that lives about as long, until all have a
    `SHARED_PARTS`th of the line and there are no more files than if each reached it."""
    spans, sizes, lifetimes = list(stretches), list(sizes), list(lifetimes)
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
        other = min(beside, key=lambda one: (abs(lifetimes[one] - lifetimes[number]), sizes[one]))
        left, right = sorted((number, other))
        files -= max(1, sizes[left] // line) + max(1, sizes[right] // line)
        spans[left] = spans[left][0], spans[right][1]
        sizes[left], sizes[right] = sizes[left] + sizes[right], 0
        files += max(1, sizes[left] // line)
        lifetimes[left] = max(lifetimes[left], lifetimes[right])
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
        most = first + int(sizes[first:stop].argmax())
        yield Output(
            int(queue_ids[first]),
            int(queue_ids[stop - 1]),
            0,
            0,
            str(names[numbers[most]]),
            int(ends[stop] - ends[first]),
        )
        first = stop


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
