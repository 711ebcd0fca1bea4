"""Markers whose transactions have left nothing in their queue: which these are, and files without them.

A marker stays as long as the queue has a batch of its transaction, as in Kafka. The first pass that finds none gives
the marker a delete horizon, in the place where batches with tombstones have theirs; a pass behind that leaves it out,
and its row in the index of aborted transactions with it: readers who are told of an aborted transaction leave its
producer's batches out until they meet the marker. The batches of an aborted transaction have been gone for
`delete.retention.ms` then, so that nobody who still reads an old file misses the row.

These markers stay in any case: the last one that a file has of a queue, whose row says how far transactions have ended
(decision 0142); a queue's last batch; and those of queues that were in another write group, where batches of the
transaction may be.

A marker's transaction may be in another file. So tasks tell of each batch of a transaction (`scan_markers`); of each
producer's in a queue, ordered by their places, markers are *empty* that do not follow a batch with data. A place is as
in `compact_files`, with other bits: `MARKER_BIT`, and `OVER_BIT` if the marker's horizon has passed. They are among the
bits that no record has which stays, so that empty markers go to the tasks that write beside these.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import numpy

from mainstem.kernel import crc32c
from mainstem.kernel.batch_header import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CHECKED_FROM,
    CHECKSUM,
    CHECKSUM_AT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LENGTH,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    TIMESTAMP,
)
from mainstem.protocol.records.record import append_signed_varint, read_signed_varint
from mainstem.storage.compacting.compact_plan import Flags, Integers, QueueRows
from mainstem.storage.compacting.pass_places import (
    GOES_BIT,
    OFFSET_SHIFT,
    TOMBSTONE_BIT,
    PassQueues,
    Staying,
    all_rows,
    of_one_input,
)
from mainstem.storage.compacting.rewrite import Rewritten
from mainstem.storage.compacting.window import Window
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.aborted import AbortedRows
from mainstem.storage.extents.extent_format import TRANSACTIONAL
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_files import Mover
from mainstem.storage.merging.merge_inputs import InputFile, InputReader, OpenInputs
from mainstem.storage.store_files.allowance import Allowance, unlimited
from mainstem.storage.store_files.transaction_scan import producers_of

MARKER_BIT = GOES_BIT
OVER_BIT = TOMBSTONE_BIT


class TransactionColumns(NamedTuple):
    """Batches of transactions, markers among them, as i64 columns."""

    queue: Integers
    producer: Integers
    place: Integers


def scan_markers(
    file: InputFile,
    number: int,
    queues: QueueRows,
    now_ms: int,
    allow: Allowance = unlimited,
    reader: InputReader | None = None,
) -> Iterator[TransactionColumns]:
    """The batches of transactions in what is to be compacted of input number `number`, but for queues whose markers
    stay. Raises as `scan_file`."""
    with ExitStack() as stack:
        if reader is None:
            reader = stack.enter_context(OpenInputs())
        lookup = PassQueues(queues[queues["drops"] > 0])
        rows = all_rows(file, reader)
        rows = rows.compress(rows["flags"] & TRANSACTIONAL != 0)
        rows = rows.compress(lookup.compacted(rows["queue_id"], rows["base_offset"]))
        for content, extents, batches in Mover([file], reader, allow).move(of_one_input(rows)):
            window = Window.of(content)
            queue_ids = numpy.repeat(extents["queue_id"], extents["batch_count"])
            chosen = numpy.flatnonzero(window.transactional() & (batches[:, 2] < lookup.ends(queue_ids)))
            control, horizons = window.control()[chosen], window.horizons()[chosen]
            over = control & (horizons >= 0) & (horizons <= now_ms)
            places = (batches[chosen, 2] << OFFSET_SHIFT) | number
            places |= numpy.where(control, MARKER_BIT, 0) | numpy.where(over, OVER_BIT, 0)
            producers = producers_of(content, numpy.ascontiguousarray(batches[chosen, 0]))
            yield TransactionColumns(queue_ids[chosen].view(numpy.int64), producers, places)


class EmptyMarkers:
    """Takes the empty markers of one file out of its batches, or gives them a horizon."""

    def __init__(self, empty: Staying, queues: QueueRows, aborted: AbortedRows) -> None:
        """`empty`: sorted by (queue, place). `aborted`: the file's index of aborted transactions."""
        self._queue_ids: QueueIds = empty.queue.view(numpy.uint64)
        self._offsets: Integers = empty.place >> OFFSET_SHIFT
        self._over: Flags = (empty.place & OVER_BIT) != 0
        may_change = self._offsets < self._last_markers(aborted)
        may_change &= self._offsets != queues["last"][PassQueues(queues).places(self._queue_ids)]
        self._queue_ids, self._offsets = self._queue_ids[may_change], self._offsets[may_change]
        self._over = self._over[may_change]
        self.aborted = self._without_those_that_go(aborted)
        """The index of the file that is written."""

    def __len__(self) -> int:
        return len(self._offsets)

    def apply(self, made: Rewritten, queue_ids: QueueIds, horizons: Integers) -> Rewritten:
        """Batches without the markers that go, and with a horizon in those that are empty. Per batch its queue, and the
        horizon in ms that an empty marker gets. Raises FormatError naming a batch that is not what was scanned."""
        marks, goes = self._among(made.batches, queue_ids)
        window = Window.of(made.content)
        marks &= window.horizons() < 0
        foreign = numpy.flatnonzero((marks | goes) & ~window.control())
        if len(foreign):
            raise _differs(window, int(foreign[0]))
        changing = numpy.flatnonzero(marks | goes)
        if not len(changing):
            return made
        lengths = made.batches[:, 1].copy()
        pieces: list[memoryview | bytes] = []
        done = 0
        for number in changing.tolist():
            position, length = made.batches[number, :2].tolist()
            pieces.append(made.content[done:position])
            done = position + length
            if marks[number]:
                marker = _with_horizon(window, number, int(horizons[number]))
                lengths[number] = len(marker)
                pieces.append(marker)
        pieces.append(made.content[done:])
        batches = made.batches[~goes]
        batches[:, 1] = lengths[~goes]
        batches[:, 0] = numpy.cumsum(batches[:, 1]) - batches[:, 1]
        dropped = made.dropped_records + int(made.batches[goes, 5].sum())
        return Rewritten(memoryview(b"".join(pieces)), batches, made.sources[~goes], dropped)

    def _among(self, batches: Integers, queue_ids: QueueIds) -> tuple[Flags, Flags]:
        """Which of these batches are empty markers, and which of them go. Those of a queue follow each other."""
        empty, goes = numpy.zeros(len(batches), numpy.bool_), numpy.zeros(len(batches), numpy.bool_)
        edges = (numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1).tolist() if len(batches) else []
        for first, end in zip([0, *edges], [*edges, len(batches)], strict=True):
            if first == end:
                continue
            low = int(self._queue_ids.searchsorted(queue_ids[first]))
            high = int(self._queue_ids.searchsorted(queue_ids[first], side="right"))
            if low == high:
                continue
            offsets = self._offsets[low:high]
            at = numpy.minimum(offsets.searchsorted(batches[first:end, 2]), len(offsets) - 1)
            empty[first:end] = offsets[at] == batches[first:end, 2]
            goes[first:end] = empty[first:end] & self._over[low + at]
        return empty & ~goes, goes

    def _last_markers(self, aborted: AbortedRows) -> Integers:
        """Per empty marker the offset of its queue's last one in the file; -1: the index does not say."""
        ends = aborted["queue_id"].searchsorted(self._queue_ids, side="right") - 1
        found = numpy.full(len(ends), -1, numpy.int64)
        known = numpy.flatnonzero(ends >= 0)
        rows = aborted[ends[known]]
        found[known] = numpy.where(rows["queue_id"] == self._queue_ids[known], rows["last_offset"], -1)
        return found

    def _without_those_that_go(self, aborted: AbortedRows) -> AbortedRows:
        goes = set(zip(self._queue_ids[self._over].tolist(), self._offsets[self._over].tolist(), strict=True))
        if not goes:
            return aborted
        rows = zip(aborted["queue_id"].tolist(), aborted["last_offset"].tolist(), strict=True)
        kept: AbortedRows = aborted[numpy.array([row not in goes for row in rows], numpy.bool_)]
        return kept


def _with_horizon(window: Window, number: int, horizon_ms: int) -> bytes:
    """A marker with a delete horizon as its base timestamp, from which its record's time is told."""
    batch = window.batch(number)
    (checksum,) = CHECKSUM.unpack_from(batch, CHECKSUM_AT)
    if crc32c(batch[CHECKED_FROM:]) != checksum:
        raise _differs(window, number)
    body = bytes(batch[HEADER_BYTES:])
    try:
        size, start = read_signed_varint(body, 0)
        delta, behind = read_signed_varint(body, start + 1)
    except IndexError:
        raise _differs(window, number) from None
    if start + size != len(body):
        raise _differs(window, number)
    (base_timestamp,) = TIMESTAMP.unpack_from(batch, BASE_TIMESTAMP_AT)
    record = bytearray(body[start : start + 1])
    append_signed_varint(record, base_timestamp + delta - horizon_ms)
    record += body[behind:]
    made = bytearray(batch[:HEADER_BYTES])
    append_signed_varint(made, len(record))
    made += record
    made[ATTRIBUTES_AT + 1] |= DELETE_HORIZON_BIT
    TIMESTAMP.pack_into(made, BASE_TIMESTAMP_AT, horizon_ms)
    LENGTH.pack_into(made, LENGTH_AT, len(made) - LENGTH_EXCLUDES)
    CHECKSUM.pack_into(made, CHECKSUM_AT, crc32c(memoryview(made)[CHECKED_FROM:]))
    return bytes(made)


def _differs(window: Window, number: int) -> FormatError:
    position, length, offset = window.batches[number, :3].tolist()
    return FormatError(
        f"the marker at byte {position} ({length} bytes, offset {offset}) is not what was scanned: it is none, fails "
        "its checksum, or is no single record"
    )
