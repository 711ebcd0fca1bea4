"""Into which files a merge cuts the queues of its inputs, and which task writes which of them.

The cut goes by the exact bytes of all queues; nothing here depends on the order in which they were written.
"""

from __future__ import annotations

import enum
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_lines import SEGMENT_BYTES_MAX, Integers, MergeLines
from mainstem.storage.store_files.store_file import COMPACTED_CLASS, INTERNAL_CLASS, REMOTE_CLASS_SUFFIX

TASK_ROWS_MAX = 1 << 20
"""Extents of the inputs that one task moves, unless a single output has more: their rows take 64 MiB, and some more
while they are sorted. A packed file of 128 MiB cannot be made of more than twice as many."""

SHARED_PARTS = 4
"""Queues of a retention class may get a packed file of their own where they fill this part of the line."""

LIFETIME_MAX = 64
"""As powers of two in ms."""


class Moves(enum.IntEnum):
    """Whether queues move to the remote tier. Those that share a file do as the largest of theirs says."""

    NO = 0
    YES = 1
    NEVER = 2


STAYING = frozenset({INTERNAL_CLASS, COMPACTED_CLASS})
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
    """The files that have these queues (ascending, each with bytes), in the order of their keys. If these were more
    than a merge may make, it raises all lines until they are not."""
    packed = lines.packed_bytes
    outputs = _cut(queue_ids, sizes, segment_lines, classes, packed)
    total = int(sizes.sum())
    least = total // max(1, lines.output_files_max)
    while 0 < lines.output_files_max < len(outputs) and least <= 2 * total:
        packed = max(packed, least)
        raised = numpy.maximum(segment_lines, min(least, SEGMENT_BYTES_MAX))
        outputs = _cut(queue_ids, sizes, raised, classes, packed)
        least = 2 * least + 1
    return outputs


def _cut(
    queue_ids: QueueIds, sizes: Integers, segment_lines: Integers, classes: Sequence[str], packed_bytes: int
) -> list[Output]:
    """The files, whatever their number.

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
        for first, end in _share(stretches, weights, lives, moving, packed_bytes):
            outputs.extend(_packed(queue_ids, sizes, ends, names, numbers, first, end, packed_bytes))
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
