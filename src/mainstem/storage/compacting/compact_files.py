"""The work of the tasks of a compaction: the keys of a file's records, and the file without the records that go.

Plain functions over files, which may be played twice, or die anywhere. A file is read a window at a time, every extent
checked against its CRC, and what is left is written as it comes. Memory holds the file's index, two windows, and the
offsets of the file's records that stay.

Between the two stands an aggregation over all files of the pass, of the largest place of each key (`pass_places`), and
one over its transactions (`ended_markers`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel import RecordKind
from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.model import PARTITION_BITS
from mainstem.storage.compacting.compact_plan import Flags, Integers, QueueRows
from mainstem.storage.compacting.covering import cover
from mainstem.storage.compacting.decided import AbortedBatches
from mainstem.storage.compacting.ended_markers import MARKER_BIT, EmptyMarkers
from mainstem.storage.compacting.kept import Kept
from mainstem.storage.compacting.key_rows import KeyRows, scan_keys
from mainstem.storage.compacting.pass_places import (
    GOES_BIT,
    OFFSET_SHIFT,
    TOMBSTONE_BIT,
    KeyColumns,
    PassQueues,
    Staying,
    all_rows,
    of_one_input,
)
from mainstem.storage.compacting.rewrite import rewrite
from mainstem.storage.compacting.window import Window
from mainstem.storage.extents.aborted import AbortedRows
from mainstem.storage.extents.extent_format import ABORTED_VERSION
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.merging.merge_files import Mover, OpenFile
from mainstem.storage.merging.merge_inputs import InputFile, InputReader, OpenInputs, read_aborted
from mainstem.storage.merging.merge_liveness import NO_END
from mainstem.storage.store_files.allowance import Allowance, unlimited
from mainstem.storage.store_files.announcement import Announce, unannounced
from mainstem.storage.store_files.extents_writer import BATCH_ROW, CUT_BEFORE
from mainstem.storage.store_files.joined_segment import open_segment
from mainstem.storage.store_files.run_writer import RunSummary, RunWriter
from mainstem.storage.store_files.segment_writer import OFFSETS_MAX as SEGMENT_POSITIONS_MAX
from mainstem.storage.store_files.store_file import (
    NO_HORIZON,
    PACK_SUFFIX,
    FileKind,
    StoreFile,
    has_index_beside,
    kind_of,
    path_of,
    segment_key,
    segment_name,
)
from mainstem.storage.store_files.transaction_scan import attributes_of, producers_of


def scan_file(
    file: InputFile,
    number: int,
    queues: QueueRows,
    key: bytes,
    now_ms: int,
    allow: Allowance = unlimited,
    reader: InputReader | None = None,
    aborted: AbortedRows | None = None,
) -> Iterator[KeyColumns]:
    """The records with keys in what is to be compacted of input number `number`, but those of `aborted` transactions.
    `key`: 16 bytes, the pass's own. Tombstones may go whose horizon is not after `now_ms`. Without a `reader` the input
    is a file of a disk. Raises `InputDamaged`, FormatError, what the reader raises."""
    with ExitStack() as stack:
        if reader is None:
            reader = stack.enter_context(OpenInputs())
        rows = all_rows(file, reader)
        lookup, aborted_batches = PassQueues(queues), AbortedBatches(aborted)
        rows = rows.compress(lookup.compacted(rows["queue_id"], rows["base_offset"]))
        for content, window, batches in Mover([file], reader, allow).move(of_one_input(rows)):
            queue_ids = numpy.repeat(window["queue_id"], window["batch_count"])
            places = lookup.places(queue_ids)
            may_go = (queues["drops"][places] > 0) & (batches[:, 3] != queues["last"][places])
            passed_over = aborted_batches_of(aborted_batches, content, batches, queue_ids)
            passed_over |= batches[:, 3] >= lookup.ends(queue_ids)
            for found in scan_keys(content, key):
                yield _columns(found, queue_ids, may_go, passed_over, number, now_ms)


def aborted_batches_of(aborted: AbortedBatches, content: memoryview, batches: Integers, queue_ids: QueueIds) -> Flags:
    """Whether each of these batches is one of an aborted transaction."""
    flags = numpy.zeros(len(batches), numpy.bool_)
    if len(aborted):
        positions = numpy.ascontiguousarray(batches[:, 0])
        bits = attributes_of(content, positions) & (TRANSACTIONAL_BIT | CONTROL_BIT)
        chosen = numpy.flatnonzero(bits == TRANSACTIONAL_BIT)
        producers = producers_of(content, positions[chosen])
        flags[chosen] = aborted.among(queue_ids[chosen], producers, batches[chosen, 2])
    return flags


def compact_file(
    file: StoreFile,
    paths: InputFile,
    queues: QueueRows,
    staying: Staying,
    open_file: OpenFile,
    *,
    covered: Collection[int] = (),
    joined: bool = False,
    reader: InputReader | None = None,
    announce: Announce = unannounced,
    new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
    allow: Allowance = unlimited,
    segment_bytes_max: int = SEGMENT_POSITIONS_MAX,
) -> list[StoreFile]:
    """Write what stays of a file, of which `staying` has records with keys and empty markers. Durable when this
    returns, and nothing where nothing stays. Delete horizons make batches longer: where a queue segment would have more
    than `segment_bytes_max`, another one goes on. `covered`: numbers of topics of whose queues no batch is left out
    (`covering.py`). `joined`: a queue segment becomes one file; one that is joined stays so. Without a `reader` the
    input is a file of a disk. `announce` is called for each output before it is opened. Raises `InputDamaged`,
    FormatError and OSError, and what `reader`, `announce` and `open_file` raise; an output is then removed or, when
    finished, left to be cleared as an orphan."""
    is_any = staying.place >= 0
    is_marker = is_any & ((staying.place & MARKER_BIT) != 0)
    with ExitStack() as stack:
        if reader is None:
            reader = stack.enter_context(OpenInputs())
        markers = EmptyMarkers(_of(staying, is_marker), queues, read_aborted(paths, reader))
        sieve = _Sieve(queues, _of(staying, is_any & ~is_marker), covered, markers)
        windows = sieve.windows(Mover([paths], reader, allow).move(of_one_input(all_rows(paths, reader))))
        joined = joined or not has_index_beside(file.name)
        name_of = partial(_name, file, new_name(), joined=joined)
        return list(_outputs(file, windows, markers.aborted, name_of, open_file, announce, segment_bytes_max))


def _outputs(
    file: StoreFile,
    windows: Iterator[_Piece],
    aborted: AbortedRows,
    name_of: Callable[[numpy.void], str],
    open_file: OpenFile,
    announce: Announce,
    segment_bytes_max: int,
) -> Iterator[StoreFile]:
    """Write the outputs of a file, one after the other. `name_of`: the name of the one that begins with this batch."""
    is_segment = kind_of(file.name) is FileKind.SEGMENT
    piece = next(windows, None)
    while piece is not None:
        part = _Part(piece, windows, segment_bytes_max if is_segment else NO_END)
        first = piece.rows[0]
        name = name_of(first)
        announce(file.group, [name])
        summary = (_write_segment if is_segment else _write_packed)(name, part, aborted, open_file)
        yield StoreFile(
            **summary._asdict(),
            retention_class=file.retention_class,
            level=file.level,
            group=file.group,
            first_queue=int(first["queue_id"]),
            last_queue=part.last_queue,
            first_offset=int(first["base_offset"]),
            horizon_ms=part.horizon_ms,
        )
        piece = part.behind


class _Piece(NamedTuple):
    """The remainder of a window."""

    content: memoryview
    rows: Rows
    """`BATCH_ROW`s."""
    batches: Integers
    """Rows of `BATCH_FIELDS`."""
    horizon_ms: int
    """When the first of its tombstones may go."""


class _Part:
    """The pieces that go into one output."""

    def __init__(self, first: _Piece, rest: Iterator[_Piece], bytes_max: int) -> None:
        self.behind: _Piece | None = first
        """The first piece that has no room; None: there are no more."""
        self.horizon_ms = NO_HORIZON
        self.last_queue = 0
        self._rest = rest
        self._bytes_max = bytes_max

    def __iter__(self) -> Iterator[_Piece]:
        size = 0
        while (piece := self.behind) is not None and (not size or size + len(piece.content) <= self._bytes_max):
            size += len(piece.content)
            self.last_queue = int(piece.rows["queue_id"][-1])
            horizons = [one for one in (self.horizon_ms, piece.horizon_ms) if one != NO_HORIZON]
            self.horizon_ms = min(horizons, default=NO_HORIZON)
            yield piece
            self.behind = next(self._rest, None)


class _Sieve:
    """Takes the records out that go, window by window."""

    def __init__(self, queues: QueueRows, staying: Staying, covered: Collection[int], markers: EmptyMarkers) -> None:
        self._queues = queues
        self._markers = markers
        self._lookup = PassQueues(queues)
        self._covered = numpy.fromiter(covered, numpy.uint64)
        self._kept = Kept(staying.queue.view(numpy.uint64), staying.place >> OFFSET_SHIFT)
        self._tombstones = numpy.concatenate(([0], numpy.cumsum((staying.place & TOMBSTONE_BIT) != 0)))
        """How many of the records before each that stay are tombstones."""
        self._last_extent = 0, 0
        """Queue and last offset of the extent before."""
        self._gaps = self._gaps_before = 0
        """Gaps up to the extent before, and up to the batch before that stays."""

    def windows(self, windows: Iterator[tuple[memoryview, Rows, Integers]]) -> Iterator[_Piece]:
        for content, extents, batches in windows:
            queue_ids = numpy.repeat(extents["queue_id"], extents["batch_count"])
            gaps = numpy.repeat(self._gaps_upto(extents), extents["batch_count"])
            places = self._lookup.places(queue_ids)
            rulings = self._kept.rulings(
                batches, queue_ids, self._lookup.ends(queue_ids), self._queues["horizon_ms"][places]
            )
            found = rewrite(content, self._kept.offsets, rulings)
            if len(self._covered):
                wanted = numpy.isin(queue_ids >> numpy.uint64(PARTITION_BITS), self._covered)
                found = cover(Window.of(content), found, wanted)
            if len(self._markers):
                found = self._markers.apply(
                    found, queue_ids[found.sources], self._queues["horizon_ms"][places[found.sources]]
                )
            if not len(found.batches):
                continue
            queue_ids = queue_ids[found.sources]
            places, rulings = places[found.sources], rulings[found.sources]
            horizon_ms = self._first_horizon(found.content, found.batches, places, rulings)
            flags = numpy.repeat(extents["flags"], extents["batch_count"])[found.sources]
            flags |= self._cuts(gaps[found.sources])
            yield _Piece(found.content, _batch_rows(queue_ids, found.batches, flags), found.batches, horizon_ms)

    def _gaps_upto(self, extents: Rows) -> Integers:
        """Per extent, how many gaps between extents there are up to it of queues that have been in other write groups,
        or are not in the pass: what such a queue had elsewhere between two stays in the write group. Retention may have
        passed the first of them, so that no history tells of it any more."""
        queue_ids, lasts = extents["queue_id"], extents["last_offset"]
        before = numpy.concatenate((numpy.array([self._last_extent[0]], numpy.uint64), queue_ids[:-1]))
        ends = numpy.concatenate((numpy.array([self._last_extent[1]], numpy.int64), lasts[:-1]))
        is_gap = (queue_ids == before) & (extents["base_offset"] != ends + 1) & ~self._lookup.are_whole(queue_ids)
        found: Integers = self._gaps + numpy.cumsum(is_gap)
        self._last_extent = int(queue_ids[-1]), int(lasts[-1])
        self._gaps = int(found[-1])
        return found

    def _cuts(self, gaps: Integers) -> numpy.typing.NDArray[numpy.uint32]:
        """The flag that no extent goes on over a gap, for each batch that stays with so many gaps up to it."""
        before = numpy.concatenate(([self._gaps_before], gaps[:-1]))
        self._gaps_before = int(gaps[-1])
        return numpy.where(gaps != before, numpy.uint32(CUT_BEFORE), numpy.uint32(0))

    def _first_horizon(self, content: memoryview, batches: Integers, places: Integers, rulings: Integers) -> int:
        """When the first tombstone among these batches may go."""
        horizons = Window.of(content).horizons()
        judged = rulings[:, 0] >= 0
        begins, ends = numpy.where(judged, rulings[:, 0], 0), numpy.where(judged, rulings[:, 1], 0)
        marked = (horizons >= 0) & (self._tombstones[ends] > self._tombstones[begins])
        marked &= (self._queues["drops"][places] > 0) & (batches[:, 3] != self._queues["last"][places])
        return int(horizons[marked].min()) if marked.any() else NO_HORIZON


def _of(staying: Staying, chosen: Flags) -> Staying:
    return Staying(*(column[chosen] for column in staying))


def _columns(
    found: KeyRows, queue_ids: QueueIds, may_go: Flags, passed_over: Flags, number: int, now_ms: int
) -> KeyColumns:
    mine = slice(found.first_batch, found.first_batch + len(found.counts))
    rows = found.rows
    tombstones = rows["kind"] == RecordKind.TOMBSTONE
    has_key = tombstones | (rows["kind"] == RecordKind.VALUE)
    has_key &= ~numpy.repeat(passed_over[mine], found.counts)
    over = may_go[mine] & (found.horizons >= 0) & (found.horizons <= now_ms)
    goes = tombstones & numpy.repeat(over, found.counts)
    places = rows["offset"] << OFFSET_SHIFT
    places |= numpy.where(tombstones, TOMBSTONE_BIT, 0) | numpy.where(goes, GOES_BIT, 0) | number
    queues = numpy.repeat(queue_ids[mine], found.counts)
    return KeyColumns(
        queues[has_key].view(numpy.int64),
        rows["high"][has_key].view(numpy.int64),
        rows["low"][has_key].view(numpy.int64),
        places[has_key],
    )


def _batch_rows(queue_ids: QueueIds, batches: Integers, flags: numpy.typing.NDArray[numpy.uint32]) -> Rows:
    rows = numpy.zeros(len(batches), BATCH_ROW)
    rows["queue_id"] = queue_ids
    for place, field in enumerate(("length", "base_offset", "last_offset", "max_timestamp", "record_count"), 1):
        rows[field] = batches[:, place]
    rows["leader_epoch"] = batches[:, 6]
    rows["flags"] = flags
    return rows


def _name(file: StoreFile, unique: str, row: numpy.void, *, joined: bool) -> str:
    """Of an output of a file that begins with this batch, beside what is there."""
    if kind_of(file.name) is FileKind.SEGMENT:
        topic, partition, _base_offset = segment_key(file.name)
        return segment_name(topic, partition, unique, int(row["base_offset"]), joined=joined)
    return f"{file.group}-{int(row['queue_id']):016x}-{unique}{PACK_SUFFIX}"


def _write_packed(name: str, pieces: Iterable[_Piece], aborted: AbortedRows, open_file: OpenFile) -> RunSummary:
    with RunWriter(name, open_file(path_of(name)), ABORTED_VERSION, over_gaps=True) as writer:
        for piece in pieces:
            writer.append([piece.content], piece.rows)
        return writer.finish(aborted)


def _write_segment(name: str, pieces: Iterable[_Piece], aborted: AbortedRows, open_file: OpenFile) -> RunSummary:
    with open_segment(name, open_file, over_gaps=True) as writer:
        for piece in pieces:
            writer.append(piece.content, piece.rows, piece.batches)
        return writer.finish(aborted)
