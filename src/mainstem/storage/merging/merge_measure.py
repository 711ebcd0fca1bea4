"""Measures a merge before it is made: the bytes of every queue, the outputs these are cut into, the tasks that write
them, and which index rows of which input each task needs.

Reads the indexes of all inputs twice, from their first row to their last: for the bytes per queue, then for the rows
of each task. Memory holds one piece of an index, some 50 bytes per queue, and one row per extent of queues that get
several segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy

from mainstem.kernel import crc32c
from mainstem.model import PARTITION_BITS
from mainstem.rpc.messages.merge import MergeTopic
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.merging.merge_inputs import InputFile, InputReader, RowRange, index_pieces
from mainstem.storage.merging.merge_lines import Integers, MergeLines
from mainstem.storage.merging.merge_liveness import NO_END, Liveness, alive
from mainstem.storage.merging.merge_outputs import Output, cut, tasks
from mainstem.storage.merging.segment_lines import UNCOUNTED, SegmentLines

FORGOTTEN_CLASS = "forever"
"""The retention class of a queue that is live though its topic is not known here."""


class TopicFacts(msgspec.Struct, frozen=True):
    """The facts that a merge needs to know of a topic."""

    name: str
    retention_class: str
    segment_bytes: int
    segment_records: int = UNCOUNTED


def facts_of(topics: Mapping[int, MergeTopic]) -> dict[int, TopicFacts]:
    """The same of topics as a node tells them to splitters, by their numbers."""
    return {
        number: TopicFacts(topic.name, topic.retention_class, topic.segment_bytes, topic.segment_records)
        for number, topic in topics.items()
    }


class PlannedFile(msgspec.Struct, frozen=True):
    """A file that a task writes: the queues `first_queue` to `last_queue`; of a segment, the extents that begin from
    `first_offset` on and before `end_offset`."""

    first_queue: int
    last_queue: int
    retention_class: str
    bytes: int
    """About."""
    segment_of: str = ""
    """The topic of a queue segment; empty: it is a packed file."""
    first_offset: int = 0
    end_offset: int = NO_END


class MergeTask(msgspec.Struct, frozen=True):
    """The work of one task. Files are in the order of their keys."""

    files: tuple[PlannedFile, ...]
    rows: tuple[RowRange, ...]
    """All index rows that the files may be made of, in the order of the inputs."""


class Measured(msgspec.Struct, frozen=True):
    tasks: tuple[MergeTask, ...]
    bytes: int
    """Of the extents that a merge keeps, whole."""
    dead_bytes: int
    """Of extents of which nothing is kept."""


def measure(
    inputs: Sequence[InputFile],
    liveness: Liveness,
    topics: Mapping[int, TopicFacts],
    lines: MergeLines,
    reader: InputReader | None = None,
) -> Measured:
    """The parts of a merge of these inputs, in the order of their blocks. Without a `reader` they are files of a disk.
    Raises `InputDamaged` where an index is; what the reader raises."""
    segment_lines = SegmentLines(topics, lines)
    totals = _QueueTotals()
    dead = 0
    for file in inputs:
        for rows in index_pieces(file, reader):
            keep = alive(rows, liveness.of_rows(rows))
            dead += int(rows["length"][~keep].sum(dtype=numpy.int64))
            live = rows.compress(keep)
            totals.add(live, _fills(live, segment_lines))
    queue_ids, sizes, counts, fills = totals.sums()
    filled = segment_lines.of_filled(queue_ids, sizes, fills)
    outputs = cut(queue_ids, sizes, filled, _classes(queue_ids, topics), lines)
    ends = numpy.concatenate(([0], numpy.cumsum(counts)))
    extents = [_count_between(queue_ids, ends, output) for output in outputs]
    pieces = tasks(outputs, lines, extents)
    divided = {output.first_queue for output in outputs if output.parts > 1}
    found = _rows_of_tasks(inputs, liveness, pieces, divided, reader)
    parts = {output.first_queue: output.parts for output in outputs if output.is_segment}
    bounds = {queue: _part_bounds(rows, parts[queue], segment_lines) for queue, rows in found.divided.items()}
    return Measured(
        tuple(
            MergeTask(tuple(_planned(output, topics, bounds) for output in piece), tuple(ranges))
            for piece, ranges in zip(pieces, found.ranges, strict=True)
        ),
        int(sizes.sum()),
        dead,
    )


class _QueueTotals:
    """Adds up bytes, extents, and what these fill of segments, per queue. The latest inputs are sorted in when they are
    as much as all before them, so that each queue is moved a few times only."""

    def __init__(self) -> None:
        self._levels: list[tuple[QueueIds, Integers, Integers, Integers]] = []

    def add(self, rows: Rows, fills: Integers) -> None:
        if not len(rows):
            return
        queue_ids = numpy.ascontiguousarray(rows["queue_id"])
        firsts = numpy.concatenate(([0], numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1))
        sizes = numpy.add.reduceat(rows["length"].astype(numpy.int64), firsts)
        counts = numpy.diff(firsts, append=len(rows)).astype(numpy.int64)
        self._levels.append((queue_ids[firsts], sizes, counts, numpy.add.reduceat(fills, firsts)))
        while len(self._levels) > 1 and len(self._levels[-1][0]) * 2 > len(self._levels[-2][0]):
            self._join()

    def sums(self) -> tuple[QueueIds, Integers, Integers, Integers]:
        """The queues, ascending, with bytes and extents of each, and what these fill."""
        while len(self._levels) > 1:
            self._join()
        if not self._levels:
            none = numpy.empty(0, numpy.int64)
            return none.astype(numpy.uint64), none, none, none
        return self._levels[0]

    def _join(self) -> None:
        one, other = self._levels.pop(), self._levels.pop()
        queue_ids = numpy.concatenate([other[0], one[0]])
        order = queue_ids.argsort(kind="stable")
        queue_ids = queue_ids[order]
        firsts = numpy.concatenate(([0], numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1))
        sizes, counts, fills = (
            numpy.add.reduceat(numpy.concatenate([other[column], one[column]])[order], firsts) for column in (1, 2, 3)
        )
        self._levels.append((queue_ids[firsts], sizes, counts, fills))


def _fills(rows: Rows, segment_lines: SegmentLines) -> Integers:
    """The part of a segment that each row's extent fills."""
    sizes, records = rows["length"].astype(numpy.int64), rows["record_count"].astype(numpy.int64)
    return segment_lines.fills(rows["queue_id"], sizes, records)


def _classes(queue_ids: QueueIds, topics: Mapping[int, TopicFacts]) -> list[str]:
    """The retention class of each queue."""
    numbers, which = numpy.unique(queue_ids >> numpy.uint64(PARTITION_BITS), return_inverse=True)
    known = [topics.get(number) for number in numbers.tolist()]
    classes = [FORGOTTEN_CLASS if topic is None else topic.retention_class for topic in known]
    return [classes[number] for number in which.tolist()]


def _count_between(queue_ids: QueueIds, ends: Integers, output: Output) -> int:
    """The extents that an output is made of."""
    first = int(queue_ids.searchsorted(numpy.uint64(output.first_queue)))
    end = int(queue_ids.searchsorted(numpy.uint64(output.last_queue), side="right"))
    return int(ends[end] - ends[first])


class _RowsOfTasks:
    def __init__(self, count: int) -> None:
        self.ranges: list[list[RowRange]] = [[] for _ in range(count)]
        self.divided: dict[int, list[Rows]] = {}
        """The live rows of queues that are cut into several segments, in order."""


def _rows_of_tasks(
    inputs: Sequence[InputFile],
    liveness: Liveness,
    pieces: Sequence[Sequence[Output]],
    divided: set[int],
    reader: InputReader | None,
) -> _RowsOfTasks:
    found = _RowsOfTasks(len(pieces))
    if not pieces:
        return found
    first_queues = numpy.array([piece[0].first_queue for piece in pieces], numpy.uint64)
    last_queues = numpy.array([piece[-1].last_queue for piece in pieces], numpy.uint64)
    for number, file in enumerate(inputs):
        begun: dict[int, RowRange] = {}
        at = 0
        for rows in index_pieces(file, reader):
            queue_ids = numpy.ascontiguousarray(rows["queue_id"])
            starts = queue_ids.searchsorted(first_queues)
            ends = queue_ids.searchsorted(last_queues, side="right")
            for task in numpy.flatnonzero(starts < ends).tolist():
                start, end = int(starts[task]), int(ends[task])
                before = begun.get(task) or RowRange(number, at + start, 0, 0)
                crc = crc32c(rows[start:end].view(numpy.uint8).data, before.crc)
                begun[task] = RowRange(number, before.first, before.count + end - start, crc)
            for queue in divided:
                start, end = (int(queue_ids.searchsorted(numpy.uint64(queue), side=side)) for side in ("left", "right"))
                if start < end:
                    mine = rows[start:end]
                    mine = mine[alive(mine, liveness.of_rows(mine))]
                    found.divided.setdefault(queue, []).append(
                        mine[["queue_id", "base_offset", "length", "record_count"]].copy()
                    )
            at += len(rows)
        for task, chosen in begun.items():
            found.ranges[task].append(chosen)
    return found


def _part_bounds(pieces: list[Rows], parts: int, segment_lines: SegmentLines) -> list[int]:
    """The offset at which each part of a queue begins, and `NO_END`. All parts fill as much, cut between extents."""
    fills = numpy.concatenate([_fills(rows, segment_lines) for rows in pieces])
    offsets = numpy.maximum.accumulate(numpy.concatenate([rows["base_offset"] for rows in pieces]))
    ends = numpy.cumsum(fills)
    each, rest = divmod(int(ends[-1]), parts)  # what all parts fill, times a number of parts, may pass 64 bits
    numbers = numpy.arange(1, parts)
    firsts = (ends - fills).searchsorted(numbers * each + numbers * rest // parts)
    return [0, *(int(offsets[min(first, len(offsets) - 1)]) for first in firsts), NO_END]


def _planned(output: Output, topics: Mapping[int, TopicFacts], bounds: Mapping[int, list[int]]) -> PlannedFile:
    topic = topics[output.first_queue >> PARTITION_BITS].name if output.is_segment else ""
    edges = bounds.get(output.first_queue, [0, NO_END]) if output.is_segment else [0, NO_END]
    return PlannedFile(
        output.first_queue,
        output.last_queue,
        output.retention_class,
        output.bytes,
        topic,
        edges[output.part],
        edges[output.part + 1],
    )
