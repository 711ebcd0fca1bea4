"""The work of one task of a merge: rows of some inputs in, files out.

A plain function over files, which no manifest names yet: it may be played twice, or die anywhere. The rows of all
inputs are sorted by queue and offset, stable, so that the extents of a queue follow each other. They
are then moved a window at a time: neighbouring extents of an input are read together, each is checked against its CRC
while it is copied to its place, and what an output gets is written as it stands. Python runs per window, and per range
that is read; per extent only where one straddles a queue's log start. Memory holds the task's rows and two windows.

Offsets are taken once: where inputs overlap, the earlier one counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import crc32c, gather_extents, walk_batches
from mainstem.model import PARTITION_BITS
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import AbortedRows, joined_rows
from mainstem.storage.extents.extent_format import ABORTED_VERSION, EXTENT_ROW
from mainstem.storage.extents.extent_index import Rows
from mainstem.storage.merging.merge_inputs import (
    InputDamaged,
    InputEnds,
    InputFile,
    InputPiece,
    InputReader,
    OpenInputs,
    RowRange,
    read_aborted,
    read_rows,
)
from mainstem.storage.merging.merge_lines import Flags, Integers
from mainstem.storage.merging.merge_liveness import Liveness, alive
from mainstem.storage.merging.merge_measure import MergeTask, PlannedFile
from mainstem.storage.store_files.allowance import Allowance, unlimited
from mainstem.storage.store_files.announcement import Announce, unannounced
from mainstem.storage.store_files.joined_segment import open_segment
from mainstem.storage.store_files.run_target import RunTarget
from mainstem.storage.store_files.run_writer import RunSummary, RunWriter
from mainstem.storage.store_files.segment_writer import BATCH_FIELDS, OFFSETS_MAX
from mainstem.storage.store_files.store_file import PACK_SUFFIX, StoreFile, path_of, segment_name

GAP_BYTES_MAX = 4096
"""A gap between wanted extents is read rather than read around: copying a page costs what a call does."""

READ_TIMES_MAX = 4
"""Gaps are read while all that is read is not more than so many times what is wanted, as where four write groups share
a run."""

OpenFile = Callable[[str], RunTarget]
"""Opens a file for writing at this path below the root of the store."""


class MergedRows(NamedTuple):
    """Live extents, sorted by (queue, offset)."""

    rows: Rows
    inputs: Integers
    """The number of the input that each row is of."""
    starts: Integers
    ends: Integers
    """Offsets outside of these are dead."""
    after: Integers
    """Batches that begin before this offset are in an earlier input, too."""

    def part(self, chosen: slice | Flags) -> MergedRows:
        return MergedRows(
            self.rows[chosen], self.inputs[chosen], self.starts[chosen], self.ends[chosen], self.after[chosen]
        )

    def is_cut(self) -> Flags:
        """Whether some batches at an end of each are dead, or in an earlier input."""
        found: Flags = (self.rows["base_offset"] < numpy.maximum(self.starts, self.after)) | (
            self.rows["last_offset"] >= self.ends
        )
        return found


def merge_files(
    task: MergeTask,
    inputs: Sequence[InputFile],
    liveness: Liveness,
    open_file: OpenFile,
    *,
    group: int,
    level: int,
    joined: bool = False,
    reader: InputReader | None = None,
    announce: Announce = unannounced,
    new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    allow: Allowance = unlimited,
) -> list[StoreFile]:
    """Write the files of a task; each is durable when this returns. One in which nothing is live is not written, and a
    segment whose offsets or bytes Kafka could not count becomes several. `joined`: queue segments are one file each.
    Without a `reader` inputs are files of a disk. `announce` is called for each file before it is opened, in one go for
    all whose names are known before anything is read.

    Raises `InputDamaged`, FormatError (extents of other batches than their index says) and OSError; what `reader`,
    `announce` and `open_file` raise. Files begun are then removed or, when finished, left to be cleared as orphans."""
    with ExitStack() as stack:
        if reader is None:
            reader = stack.enter_context(OpenInputs())
        found = merged_rows(task.rows, inputs, liveness, reader)
        outputs = list(_outputs(task, found, group, new_name(), joined=joined))
        if known := [output.name for output in outputs if output.is_named]:
            announce(group, known)
        aborted = aborted_of(task, inputs, reader)
        mover = Mover(inputs, reader, allow)
        written: list[StoreFile] = []
        for output in outputs:
            write = _write_segment if output.planned.segment_of else _write_packed
            written += write(output, mover, aborted, open_file, announce, group, level)
    return written


class _Output(NamedTuple):
    planned: PlannedFile
    name: str
    rows: MergedRows

    @property
    def is_named(self) -> bool:
        """Whether the file has this name if it is written. A segment may get another one, where its first extent begins
        with dead batches."""
        first = self.rows.part(slice(0, 1))
        return not self.planned.segment_of or not bool(first.is_cut()[0])


def _outputs(task: MergeTask, found: MergedRows, group: int, unique: str, *, joined: bool) -> Iterator[_Output]:
    for planned in task.files:
        mine = _of_file(found, planned)
        if planned.segment_of:
            for piece in _countable(mine):
                base_offset = int(piece.rows["base_offset"][0])
                yield _Output(planned, _segment_name(planned, unique, base_offset, joined=joined), piece)
        elif len(mine.rows):
            yield _Output(planned, f"{group}-{planned.first_queue:016x}-{unique}{PACK_SUFFIX}", mine)


def merged_rows(
    ranges: Sequence[RowRange], inputs: Sequence[InputFile], liveness: Liveness, reader: InputReader | None = None
) -> MergedRows:
    """The live rows among these. Raises `InputDamaged` where an index is; what the reader raises."""
    pieces: list[Rows] = []
    numbers: list[Integers] = []
    starts: list[Integers] = []
    ends: list[Integers] = []
    for chosen in ranges:
        rows = read_rows(inputs[chosen.input], chosen, reader)
        live = liveness.of_rows(rows)
        keep = alive(rows, live)
        pieces.append(rows.compress(keep))
        starts.append(live.starts[keep])
        ends.append(live.ends[keep])
        numbers.append(numpy.full(len(pieces[-1]), chosen.input, numpy.int64))
    if not pieces:
        none = numpy.empty(0, numpy.int64)
        return MergedRows(numpy.empty(0, EXTENT_ROW), none, none, none, none)
    rows = numpy.concatenate(pieces)
    order = _order(rows)
    found = MergedRows(
        rows.take(order),  # ten times as fast as rows[order]
        numpy.concatenate(numbers)[order],
        numpy.concatenate(starts)[order],
        numpy.concatenate(ends)[order],
        numpy.zeros(len(rows), numpy.int64),
    )
    return _once(found)


def aborted_of(task: MergeTask, inputs: Sequence[InputFile], reader: InputReader) -> AbortedRows:
    """The aborted transactions that the inputs have of the task's queues. Raises as `merged_rows`."""
    first = numpy.uint64(min((planned.first_queue for planned in task.files), default=0))
    last = numpy.uint64(max((planned.last_queue for planned in task.files), default=0))
    pieces: list[AbortedRows] = []
    for number in sorted({chosen.input for chosen in task.rows}):
        rows = read_aborted(inputs[number], reader)
        queue_ids = rows["queue_id"]
        pieces.append(rows[int(queue_ids.searchsorted(first)) : int(queue_ids.searchsorted(last, side="right"))])
    return joined_rows(pieces)


def _order(rows: Rows) -> numpy.typing.NDArray[numpy.intp]:
    """How these rows are sorted by (queue, offset), stable. Inputs follow each other as a queue's offsets do, but for a
    run that was mended: it may hold what lies behind a file of the same blocks."""
    order: numpy.typing.NDArray[numpy.intp] = rows["queue_id"].argsort(kind="stable")
    queue_ids, base = rows["queue_id"].take(order), rows["base_offset"].take(order)
    if ((queue_ids[1:] == queue_ids[:-1]) & (base[1:] < base[:-1])).any():
        order = order.take(numpy.lexsort((base, queue_ids)))
    return order


def _once(found: MergedRows) -> MergedRows:
    """Each offset once, from the first row that has it."""
    queue_ids, base, last = found.rows["queue_id"], found.rows["base_offset"], found.rows["last_offset"]
    overlap = (queue_ids[1:] == queue_ids[:-1]) & (base[1:] <= last[:-1])
    if not overlap.any():
        return found
    keep = numpy.ones(len(base), numpy.bool_)
    for queue in numpy.unique(queue_ids[1:][overlap]):
        first, end = (int(queue_ids.searchsorted(queue, side=side)) for side in ("left", "right"))
        had = numpy.maximum.accumulate(last[first:end]) + 1
        found.after[first + 1 : end] = had[:-1]
        keep[first + 1 : end] = last[first + 1 : end] >= had[:-1]
    return found.part(keep)


def _of_file(found: MergedRows, planned: PlannedFile) -> MergedRows:
    queue_ids = found.rows["queue_id"]
    first = int(queue_ids.searchsorted(numpy.uint64(planned.first_queue)))
    end = int(queue_ids.searchsorted(numpy.uint64(planned.last_queue), side="right"))
    mine = found.part(slice(first, end))
    if planned.segment_of:
        begins = numpy.maximum(mine.rows["base_offset"], mine.after)
        edges = begins.searchsorted((planned.first_offset, planned.end_offset))
        return mine.part(slice(int(edges[0]), int(edges[1])))
    return mine


def _countable(found: MergedRows) -> Iterator[MergedRows]:
    """The rows of a queue in pieces of which Kafka can count offsets and bytes."""
    while len(found.rows):
        reach = int(found.rows["base_offset"][0]) + OFFSETS_MAX
        sizes = numpy.cumsum(found.rows["length"], dtype=numpy.int64)
        end = min(
            int(found.rows["last_offset"].searchsorted(reach, side="right")),
            int(sizes.searchsorted(OFFSETS_MAX, side="right")),
        )
        yield found.part(slice(0, max(end, 1)))
        found = found.part(slice(max(end, 1), None))


def _segment_name(planned: PlannedFile, unique: str, base_offset: int, *, joined: bool) -> str:
    partition = planned.first_queue & ((1 << PARTITION_BITS) - 1)
    return segment_name(planned.segment_of, partition, unique, base_offset, joined=joined)


def _write_packed(
    output: _Output,
    mover: Mover,
    aborted: AbortedRows,
    open_file: OpenFile,
    announce: Announce,
    group: int,
    level: int,
) -> Iterator[StoreFile]:
    bounds: list[Rows] = []
    with RunWriter(output.name, open_file(path_of(output.name)), ABORTED_VERSION) as writer:
        for content, rows, batches in mover.move(output.rows):
            writer.append([content], rows, int(batches[:, 4].min()))
            bounds = [*bounds[:1], rows[[0, -1]]]
        if bounds:
            yield _described(writer.finish(aborted), output.planned, bounds[0][0], bounds[-1][-1], group, level)


def _write_segment(
    output: _Output,
    mover: Mover,
    aborted: AbortedRows,
    open_file: OpenFile,
    announce: Announce,
    group: int,
    level: int,
) -> Iterator[StoreFile]:
    """The segment's name states the offset of its first batch, which is known once that extent is read."""
    windows = mover.move(output.rows)
    first = next(windows, None)
    if first is None:
        return
    base_offset = int(first[1]["base_offset"][0])
    path = PurePosixPath(output.name)
    name = f"{path.parent}/{base_offset:020d}{path.suffix}"
    assert name == output.name or not output.is_named
    if not output.is_named:
        announce(group, [name])
    last = first[1][-1]
    with open_segment(name, open_file) as writer:
        writer.append(*first)
        opening = first[1][0].copy()
        for window in windows:
            writer.append(*window)
            last = window[1][-1]
        yield _described(writer.finish(aborted), output.planned, opening, last, group, level)


def _described(
    summary: RunSummary, planned: PlannedFile, first: numpy.void, last: numpy.void, group: int, level: int
) -> StoreFile:
    return StoreFile(
        **summary._asdict(),
        retention_class=planned.retention_class,
        level=level,
        group=group,
        first_queue=int(first["queue_id"]),
        last_queue=int(last["queue_id"]),
        first_offset=int(first["base_offset"]),
    )


class Mover:
    """Reads extents of the inputs in the order of an output, a window at a time."""

    def __init__(self, inputs: Sequence[InputFile], reader: InputReader, allow: Allowance) -> None:
        self._inputs = inputs
        self._reader = reader
        self._allow = allow
        self._window_bytes = reader.window_bytes(len(inputs))
        """Bytes moved at a time, unless one extent is larger."""
        self._source = numpy.empty(0, numpy.uint8)
        self._target = numpy.empty(0, numpy.uint8)

    def move(self, found: MergedRows) -> Iterator[tuple[memoryview, Rows, Integers]]:
        """The live bytes of these rows, the rows that describe them, and a row of `BATCH_FIELDS` for each batch. They
        are valid until the next are asked for. Raises `InputDamaged`."""
        ends = numpy.cumsum(found.rows["length"], dtype=numpy.int64)
        first = 0
        while first < len(ends):
            done = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(ends.searchsorted(done + self._window_bytes, side="right")))
            self._allow(int(ends[end - 1]) - done)
            content, rows = self._window(found.part(slice(first, end)))
            if len(rows):
                yield content, rows, self._batches(content, rows)
            first = end

    def _window(self, found: MergedRows) -> tuple[memoryview, Rows]:
        starts = self._read(found)
        rows = found.rows.copy()
        cut = numpy.flatnonzero(found.is_cut())
        for number in cut.tolist():
            self._cut(found, rows, starts, number)
        if len(cut):
            kept = rows["length"] > 0
            rows, starts, found = rows[kept], starts[kept], found.part(kept)
        lengths = rows["length"].astype(numpy.int64)
        size = int(lengths.sum())
        if size > len(self._target):
            self._target = numpy.empty(max(size, self._window_bytes), numpy.uint8)
        target = self._target[:size]
        damaged = gather_extents(
            self._source.data, starts.data, lengths.data, rows["crc"].astype(numpy.int64).data, target.data
        )
        if damaged >= 0:
            raise self._damage(found, damaged)
        return target.data, rows

    def _batches(self, content: memoryview, rows: Rows) -> Integers:
        count = int(rows["batch_count"].sum(dtype=numpy.int64))
        batches = numpy.empty((count, len(BATCH_FIELDS)), numpy.int64)
        found = walk_batches(content, batches.data.cast("B"))
        if found != count:
            row = rows[0]
            raise FormatError(
                f"queue {row['queue_id']:#x} from offset {row['base_offset']} on: the extents hold not the {count} "
                "batches that their indexes say"
            )
        return batches

    def _read(self, found: MergedRows) -> Integers:
        """Read all of these extents into `_source`; where each begins there."""
        order = found.inputs.argsort(kind="stable")  # in an input, positions rise with (queue, offset)
        inputs = found.inputs[order]
        positions = found.rows["position"][order].astype(numpy.int64)
        ends = positions + found.rows["length"][order]
        gaps = positions[1:] - ends[:-1]
        apart = (inputs[1:] != inputs[:-1]) | (gaps < 0)
        joined = ~apart & (gaps <= GAP_BYTES_MAX)
        wanted = int((ends - positions).sum())
        if int(gaps[joined].sum()) > (READ_TIMES_MAX - 1) * wanted:
            joined = ~apart & (gaps == 0)
        firsts = numpy.concatenate(([0], numpy.flatnonzero(~joined) + 1))
        lasts = numpy.concatenate((firsts[1:], [len(order)])) - 1
        sizes = ends[lasts] - positions[firsts]
        places = numpy.cumsum(sizes) - sizes
        total = int(sizes.sum())
        if total > len(self._source):
            self._source = numpy.empty(max(total, self._window_bytes), numpy.uint8)
        view = self._source.data
        numbers = inputs[firsts].tolist()
        pieces = [
            InputPiece(self._inputs[number].path, position, view[place : place + size])
            for number, position, place, size in zip(
                numbers, positions[firsts].tolist(), places.tolist(), sizes.tolist(), strict=True
            )
        ]
        try:
            self._reader.read(pieces)
        except InputEnds as error:
            raise InputDamaged(
                str(error), self._inputs[numbers[error.number]].name, pieces[error.number].position
            ) from error
        starts = numpy.empty(len(order), numpy.int64)
        starts[order] = positions + numpy.repeat(places - positions[firsts], lasts + 1 - firsts)
        return starts

    def _cut(self, found: MergedRows, rows: Rows, starts: Integers, number: int) -> None:
        """Leave out the dead batches at both ends of an extent. Its row then describes what is left, of length 0 if
        that is nothing."""
        start, length = int(starts[number]), int(rows["length"][number])
        extent = self._source[start : start + length]
        count = int(rows["batch_count"][number])
        batches = numpy.empty((count, len(BATCH_FIELDS)), numpy.int64)
        if crc32c(extent.data) != rows["crc"][number] or walk_batches(extent.data, batches.data.cast("B")) != count:
            raise self._damage(found, number)
        live = batches[:, 3] >= found.starts[number]
        live &= batches[:, 2] < found.ends[number]
        live &= batches[:, 2] >= found.after[number]
        kept = batches[live]
        if not len(kept):
            rows["length"][number] = 0
            return
        begin, end = int(kept[0, 0]), int(kept[-1, 0] + kept[-1, 1])
        starts[number] = start + begin
        row = rows[number : number + 1]
        row["base_offset"], row["last_offset"] = kept[0, 2], kept[-1, 3]
        row["max_timestamp"], row["leader_epoch"] = kept[:, 4].max(), kept[-1, 6]
        row["length"], row["batch_count"], row["record_count"] = end - begin, len(kept), kept[:, 5].sum()
        row["crc"] = crc32c(extent[begin:end].data)

    def _damage(self, found: MergedRows, number: int) -> InputDamaged:
        row, file = found.rows[number], self._inputs[int(found.inputs[number])]
        return InputDamaged(
            f"{file.path}: the extent at {row['position']} ({row['length']} bytes, queue {row['queue_id']:#x}, offsets "
            f"{row['base_offset']} to {row['last_offset']}) fails its CRC; nothing is merged before it is mended",
            file.name,
            int(row["position"]),
        )
