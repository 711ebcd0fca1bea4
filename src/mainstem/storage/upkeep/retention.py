"""Retention without I/O decides which log starts move, which batches are live, and which topics share runs.

Everything works on arrays of `EXTENT_ROW`, sorted by (queue, offset), as the indexes of runs and of journal segments
hold them: an extent expires as a whole, as a segment does in Kafka, so the same rules serve both disks. Sources are fed
oldest first; a later source may repeat offsets of an earlier one (a split segment that is not recycled yet), which are
counted once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import Topic, TopicSettings
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.store_files.store_file import COMPACTED_CLASS, INTERNAL_CLASS, REMOTE_CLASS_SUFFIX

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]

UNLIMITED = -1

BUCKET_MS_MIN = 1 << 22
"""70 minutes: topics with shorter retention share one class, since a slice would otherwise fall apart into many small
runs."""

BUCKET_MS_MAX = 1 << 37
"""Four years: topics with longer retention share the class of those that keep forever."""


def keeps_all(topic: Topic) -> bool:
    """Whether a topic loses no record by age, size or number, whatever its settings are by default. Internal topics are
    state: they do, unless they were made with `cleanup.policy=delete` as the audit's."""
    return topic.internal and "delete" not in topic.configs.get("cleanup.policy", "")


def retention_class(topic: Topic) -> str:
    """The class of runs a topic's batches go to: topics of one class lose their data at about the same time,
    so that whole runs become free. 'internal', 'compact', 'ms-<power of two>', 'forever', or 'bytes' for those that
    are bounded by size or by number of records only. The last three have '+remote' behind them for topics whose files
    move to the remote tier."""
    settings = topic.settings
    if keeps_all(topic):
        return INTERNAL_CLASS
    if "compact" in settings.cleanup_policy:
        return COMPACTED_CLASS
    moves = settings.remote_storage_enable and not settings.remote_log_copy_disable
    return _lifetime_class(settings) + (REMOTE_CLASS_SUFFIX if moves else "")


def _lifetime_class(settings: TopicSettings) -> str:
    if 0 <= settings.retention_ms <= BUCKET_MS_MAX:
        bucket = max(BUCKET_MS_MIN, 1 << max(settings.retention_ms - 1, 0).bit_length())
        return f"ms-{bucket}"
    return "forever" if settings.retention_bytes < 0 and settings.retention_records < 0 else "bytes"


def live(rows: Rows, log_starts: Numbers) -> Flags:
    """Per row, whether it holds an offset at or behind the log start given for it."""
    return numpy.asarray(rows["last_offset"] >= log_starts)


class Gaps(NamedTuple):
    """Stretches of offsets of some queues, ascending by queue."""

    queue_ids: QueueIds
    firsts: Numbers
    ends: Numbers
    """The offsets behind the last ones."""

    def within(self, rows: Rows) -> Rows:
        """The rows that lie in a gap, or begin in it."""
        places = numpy.minimum(self.queue_ids.searchsorted(rows["queue_id"]), len(self.queue_ids) - 1)
        inside = self.queue_ids[places] == rows["queue_id"]
        inside &= (rows["last_offset"] >= self.firsts[places]) & (rows["base_offset"] < self.ends[places])
        found: Rows = rows[inside]
        return found


class QueueExtents:
    """The extents of some queues, fed oldest source first, each offset taken once.

    `queue_ids` ascending; `log_starts` per queue: extents before it are left out."""

    def __init__(self, queue_ids: QueueIds, log_starts: Numbers) -> None:
        self.queue_ids = queue_ids
        self._next_offsets = log_starts.copy()

    def take(self, rows: Rows) -> tuple[Rows, numpy.typing.NDArray[numpy.intp], Numbers]:
        """The live rows of these queues that no earlier source had, and for each the place of its queue, and the offset
        at which the queue was to go on."""
        if not len(self.queue_ids) or not len(rows):
            return rows[:0], numpy.empty(0, numpy.intp), numpy.empty(0, numpy.int64)
        places = numpy.minimum(self.queue_ids.searchsorted(rows["queue_id"]), len(self.queue_ids) - 1)
        wanted = (self.queue_ids[places] == rows["queue_id"]) & live(rows, self._next_offsets[places])
        rows, places = rows[wanted], places[wanted]
        expected = self._next_offsets[places]
        numpy.maximum.at(self._next_offsets, places, rows["last_offset"] + 1)
        return rows, places, expected

    def gaps(self, rows: Rows) -> Gaps:
        """The rows at which a walk would go on behind offsets that no source had."""
        if not len(self.queue_ids) or not len(rows):
            return Gaps(self.queue_ids[:0], self._next_offsets[:0], self._next_offsets[:0])
        places = numpy.minimum(self.queue_ids.searchsorted(rows["queue_id"]), len(self.queue_ids) - 1)
        known = self.queue_ids[places] == rows["queue_id"]
        places, bases = places[known], rows["base_offset"][known]
        if not len(places):
            return Gaps(self.queue_ids[:0], self._next_offsets[:0], self._next_offsets[:0])
        firsts, queues = _first_rows(places)
        wide = bases[firsts] > self._next_offsets[queues]
        queues = queues[wide]
        return Gaps(self.queue_ids[queues], self._next_offsets[queues], bases[firsts[wide]])


class LiveBytes:
    """Bytes per queue from its log start on. An extent that lies on both sides does not count, as merges cut what is
    dead off, perhaps before the next pass; nor does one that an earlier source had a part of, as a file that was merged
    meanwhile may have it: better too few bytes, which keep records, than too many. `missing`: how many offsets before a
    queue's last no source had."""

    def __init__(self, queue_ids: QueueIds, log_starts: Numbers) -> None:
        self._extents = QueueExtents(queue_ids, log_starts)
        self.bytes: Numbers = numpy.zeros(len(queue_ids), numpy.int64)
        self.missing: Numbers = numpy.zeros(len(queue_ids), numpy.int64)

    def feed(self, rows: Rows) -> None:
        rows, places, expected = self._extents.take(rows)
        if len(rows):
            partly = rows["base_offset"] < expected
            numpy.add.at(self.bytes, places, numpy.where(partly, 0, rows["length"].astype(numpy.int64)))
            firsts, queues = _first_rows(places)
            self.missing[queues] += _missing_offsets(rows, firsts, expected)


class LogStarts:
    """New log starts of some queues.

    By time: the longest prefix of extents whose every timestamp is before now - `retention_ms`. By size: the longest
    prefix whose removal leaves at least `retention_bytes` of `live_bytes`. By number: the longest prefix that ends
    `retention_records` offsets before the high watermark. The furthest one counts. Limits per queue, -1 is unlimited;
    times in ms. Sources may come and go between two passes over all of them: where more offsets are missing than the
    `missing` ones were, the remaining bytes are unknown, and no more extents expire by size. A number needs no pass of
    its own, and what is missing does not matter to it: offsets say how many are left."""

    def __init__(
        self,
        queue_ids: QueueIds,
        log_starts: Numbers,
        *,
        retention_ms: Numbers,
        retention_bytes: Numbers,
        retention_records: Numbers,
        high_watermarks: Numbers,
        live_bytes: Numbers,
        missing: Numbers,
        now_ms: int,
        compacted: Numbers | None = None,
    ) -> None:
        """`compacted`: 1 for queues that may have gaps; of those every source is fed that can be read."""
        self._extents = QueueExtents(queue_ids, log_starts)
        self.log_starts: Numbers = log_starts.copy()
        """The result, once every source was fed."""
        self._oldest_kept = numpy.where(retention_ms < 0, numpy.iinfo(numpy.int64).min, now_ms - retention_ms)
        self._surplus = numpy.where(retention_bytes < 0, 0, numpy.maximum(live_bytes - retention_bytes, 0))
        self._first_kept = numpy.where(retention_records < 0, 0, high_watermarks - retention_records)
        """Offsets from here on are not removed for their number."""
        self._missing = missing.copy()
        self._compacted = compacted != 0 if compacted is not None else numpy.zeros(len(queue_ids), numpy.bool_)
        self._left_out_ms = self._unread_ms = -1
        """The newest time in the sources left out so far, and in those that could not be read; -1: none was."""
        self._aging = retention_ms >= 0
        """Queues whose every extent so far is too old."""
        self._shrinking = self._surplus > 0
        """Queues whose every extent so far is surplus."""

    def left_out(self, newest_ms: int, *, skipped: bool = False) -> None:
        """The next source is not fed; nothing in it is newer than this. A queue that goes on behind a gap loses no more
        extents by age, unless all that was left out is too old: extents in the gap may have to be kept. `skipped`: it
        has nothing of compacted queues."""
        self._left_out_ms = max(self._left_out_ms, newest_ms)
        if not skipped:
            self._unread_ms = max(self._unread_ms, newest_ms)

    def feed(self, rows: Rows, undated_ms: int, seen_ms: int) -> None:
        """Take the next source. `undated_ms` stands in for the time of batches without a timestamp. `seen_ms`: a time
        at which the source existed, so that nothing in it is younger, whatever its producers say."""
        rows, places, expected = self._extents.take(rows)
        if not len(rows):
            return
        firsts, queues = _first_rows(places)
        ends = numpy.append(firsts[1:], len(rows))

        missing = _missing_offsets(rows, firsts, expected)
        self._missing[queues] -= missing
        self._shrinking[queues] &= self._missing[queues] >= 0
        if self._left_out_ms >= 0:
            left_out_ms = numpy.where(self._compacted[queues], self._unread_ms, self._left_out_ms)
            gap = (missing > 0) & (left_out_ms >= self._oldest_kept[queues])
            self._aging[queues[gap & (left_out_ms >= 0)]] = False
        times = numpy.where(rows["max_timestamp"] < 0, undated_ms, rows["max_timestamp"])
        times = numpy.minimum(times, seen_ms)
        expired = _prefix(times < self._oldest_kept[places], firsts, ends)
        expired[~self._aging[queues]] = 0
        self._aging[queues] &= expired == ends - firsts

        sums = numpy.concatenate(([0], numpy.cumsum(rows["length"], dtype=numpy.int64)))
        removed = sums[1:] - numpy.repeat(sums[firsts], ends - firsts)
        surplus = _prefix(removed <= self._surplus[places], firsts, ends)
        surplus[~self._shrinking[queues]] = 0
        self._shrinking[queues] &= surplus == ends - firsts
        self._surplus[queues] -= sums[firsts + surplus] - sums[firsts]

        outnumbered = _prefix(rows["last_offset"] < self._first_kept[places], firsts, ends)
        leaving = numpy.maximum(numpy.maximum(expired, surplus), outnumbered)
        moved = leaving > 0
        starts = rows["last_offset"][firsts[moved] + leaving[moved] - 1] + 1
        self.log_starts[queues[moved]] = numpy.maximum(self.log_starts[queues[moved]], starts)


def _first_rows(
    places: numpy.typing.NDArray[numpy.intp],
) -> tuple[numpy.typing.NDArray[numpy.intp], numpy.typing.NDArray[numpy.intp]]:
    """The first row of each queue, and the places of these queues."""
    firsts = numpy.concatenate(([0], numpy.flatnonzero(places[1:] != places[:-1]) + 1))
    return firsts, places[firsts]


def _missing_offsets(rows: Rows, firsts: numpy.typing.NDArray[numpy.intp], expected: Numbers) -> Numbers:
    """Per queue, how many offsets are missing before its first row, behind the offset at which it was to go on, and
    between its rows: a merge of local files leaves out what lies in the remote tier alone."""
    begins = numpy.empty(len(rows), numpy.int64)
    begins[1:] = rows["last_offset"][:-1] + 1
    begins[firsts] = expected[firsts]
    found: Numbers = numpy.add.reduceat(numpy.maximum(rows["base_offset"] - begins, 0), firsts)
    return found


def _prefix(
    flags: Flags, firsts: numpy.typing.NDArray[numpy.intp], ends: numpy.typing.NDArray[numpy.intp]
) -> numpy.typing.NDArray[numpy.intp]:
    """Per stretch of rows [first, end), how many of its first rows are flagged without a break."""
    unflagged = numpy.where(flags, len(flags), numpy.arange(len(flags)))
    return numpy.minimum(numpy.minimum.reduceat(unflagged, firsts), ends) - firsts
