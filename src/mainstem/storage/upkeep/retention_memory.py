"""Remembers facts about runs between rounds of retention, so that a round need not read the index of every run.

A run never changes, so some facts about it hold until a topic's limits change: when its first live extent will be too
old (`due_ms`), and whether it has extents of a queue whose size, or number of records, is limited. They take 13 bytes
for each file, within a bound (`row_facts`). For a run that retention has not read yet, the manifest knows how old its
oldest batch is. A change of any limit makes retention read all runs once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.queue_store.changes.row_facts import RowFacts
from mainstem.storage.queue_store.manifest.in_memory.file_table import FileTable
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.upkeep.retention import UNLIMITED

Numbers = numpy.typing.NDArray[numpy.int64]

NEVER_MS = int(numpy.iinfo(numpy.int64).max)


class TopicLimits(NamedTuple):
    """The limits of all topics that hold batches, ascending by number; all are UNLIMITED where retention does not
    apply."""

    numbers: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers
    retention_records: Numbers
    compacted: Numbers
    """1: its queues may have gaps; else 0."""


class LimitedQueues(NamedTuple):
    """The queues that hold batches and that retention applies to, ascending by id, and the limits of each."""

    queue_ids: QueueIds
    log_starts: Numbers
    high_watermarks: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers
    retention_records: Numbers
    compacted: Numbers


FACTS = numpy.dtype([("due_ms", "<i8"), ("groups", "<u4"), ("flags", "u1")])
"""Of a run: when its first live extent is too old, the write groups that this was found for, and what it has."""

IS_KNOWN, HAS_SIZED, HAS_COUNTED, HAS_COMPACTED = 1, 2, 4, 8


class _Known(NamedTuple):
    due_ms: int
    flags: int


class RunMemory:
    """The facts about a node's runs, and the limits they were found under. Of runs for which there is no room it
    remembers nothing: they are read again when they may have something that is due."""

    def __init__(self, files: FileTable, bytes_max: int) -> None:
        none = numpy.zeros(0, numpy.int64)
        self._limits = TopicLimits(none, none, none, none, none)
        self._files = files
        self._facts = RowFacts(FACTS, files.page_files, bytes_max)
        self._last: tuple[str, int, _Known | None] = "", 0, None
        """The file that was asked about last, and its write groups."""
        self._shortest_ms = NEVER_MS
        self._sized = self._counted = self._compacted = False

    @property
    def held_bytes(self) -> int:
        return self._facts.held_bytes

    def begin(self, limits: TopicLimits) -> None:
        """Begin a round with these limits. Topics that were not in the last round had no live record then, so the runs
        known by then have none of theirs now."""
        _numbers, mine, before = numpy.intersect1d(
            limits.numbers, self._limits.numbers, assume_unique=True, return_indices=True
        )
        same = all((new[mine] == old[before]).all() for new, old in zip(limits[1:], self._limits[1:], strict=True))
        if same:
            self._facts.keep(self._files.pages)
        else:
            self._facts.clear()
        self._last = "", 0, None
        self._limits = limits
        timed = limits.retention_ms[limits.retention_ms >= 0]
        self._shortest_ms = int(timed.min()) if len(timed) else NEVER_MS
        self._sized = bool((limits.retention_bytes != UNLIMITED).any())
        self._counted = bool((limits.retention_records != UNLIMITED).any())
        self._compacted = bool(limits.compacted.any())

    def has_sized(self, file: StoreFile, groups: Sequence[int]) -> bool:
        """Whether a run may have extents of queues whose size is limited."""
        known = self._recall(file, groups)
        return self._sized if known is None else bool(known.flags & HAS_SIZED)

    def has_counted(self, file: StoreFile, groups: Sequence[int]) -> bool:
        """Whether a run may have extents of queues whose number of records is limited."""
        known = self._recall(file, groups)
        return self._counted if known is None else bool(known.flags & HAS_COUNTED)

    def has_compacted(self, file: StoreFile, groups: Sequence[int]) -> bool:
        """Whether a run may have extents of compacted queues, whose gaps say nothing."""
        known = self._recall(file, groups)
        return self._compacted if known is None else bool(known.flags & HAS_COMPACTED)

    def has_expired(self, file: StoreFile, groups: Sequence[int], now_ms: int, seen_ms: int) -> bool:
        """Whether a run may have live extents that are too old; the run existed by `seen_ms`."""
        known = self._recall(file, groups)
        if known is not None:
            return known.due_ms < now_ms
        if self._shortest_ms == NEVER_MS:
            return False
        return file.min_timestamp < 0 or min(file.min_timestamp, seen_ms) < now_ms - self._shortest_ms

    def learn(
        self,
        file: StoreFile,
        groups: Sequence[int],
        rows: Rows,
        undated_ms: int,
        seen_ms: int,
        limited: LimitedQueues,
    ) -> None:
        """Learn from the extents of a run that count, and the limits of all queues in them; times are as in
        `LogStarts.feed`."""
        due_ms, sized, counted, compacted = NEVER_MS, False, False, False
        queue_ids = limited.queue_ids
        if len(rows) and len(queue_ids):
            places = numpy.minimum(queue_ids.searchsorted(rows["queue_id"]), len(queue_ids) - 1)
            live = (queue_ids[places] == rows["queue_id"]) & (rows["last_offset"] >= limited.log_starts[places])
            places, times = places[live], rows["max_timestamp"][live]
            sized = bool((limited.retention_bytes[places] != UNLIMITED).any())
            counted = bool((limited.retention_records[places] != UNLIMITED).any())
            compacted = bool(limited.compacted[places].any())
            timed = limited.retention_ms[places] >= 0
            if timed.any():
                times = numpy.minimum(numpy.where(times < 0, undated_ms, times)[timed], seen_ms)
                keeps = numpy.minimum(limited.retention_ms[places][timed], NEVER_MS - numpy.maximum(times, 0))
                due_ms = int((times + keeps).min())
        row = self._files.row_of(file.name)
        if row is not None:
            flags = IS_KNOWN | HAS_SIZED * sized | HAS_COUNTED * counted | HAS_COMPACTED * compacted
            self._facts.put(row, (due_ms, _signature(groups), flags))
        self._last = "", 0, None

    def _recall(self, file: StoreFile, groups: Sequence[int]) -> _Known | None:
        signature = _signature(groups)
        name, asked, found = self._last
        if (name, asked) != (file.name, signature):
            row = self._files.row_of(file.name)
            facts = self._facts.get(row) if row is not None else None
            found = None
            if facts is not None and facts[1] == signature:
                found = _Known(facts[0], facts[2])
            self._last = file.name, signature, found
        return found


def _signature(groups: Sequence[int]) -> int:
    """Tells sets of write groups apart."""
    return hash(tuple(groups)) & ((1 << 32) - 1)
