"""Tells what a topic has in the journal that is still to be split, and for how long it has been there.

The journal is split in its own order, whosever the batches are: what lies before a topic's batches is what they wait
for. The cost depends on the rows of what is unsplit alone: segments before it are not looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy

from mainstem.kernel import RecentIndex
from mainstem.model import PARTITION_BITS
from mainstem.storage.journal.encoding.blocks import Rows
from mainstem.storage.journal.encoding.format import position_of, sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.journal.journal_rows import all_rows
from mainstem.storage.queue_store.reading.stored_files import WriteGroupsAt

_NEVER = numpy.iinfo(numpy.int64).max


class Unsplit(NamedTuple):
    """The bytes that are still to be split, to the granularity of a mark of the journal's map, a mebibyte."""

    bytes: int
    """Of batches."""
    oldest_ms: int
    """When the oldest was written, ms since the epoch; -1: nothing tells."""

    def and_also(self, other: Unsplit) -> Unsplit:
        times = [one.oldest_ms for one in (self, other) if one.oldest_ms >= 0]
        return Unsplit(self.bytes + other.bytes, min(times, default=-1))


class UnsplitTopics:
    def __init__(
        self,
        journal: Journal,
        index: RecentIndex,
        journal_map: JournalMap,
        groups_at: WriteGroupsAt,
        begins: Callable[[], Sequence[int | None]],
    ) -> None:
        """`begins` gives per write group the journal position from which on it is to be split here; None: nothing."""
        self._journal = journal
        self._index = index
        self._map = journal_map
        self._groups_at = groups_at
        self._begins = begins

    async def by_topic(self) -> dict[int, Unsplit]:
        """By topic number, of all topics that have batches to split."""
        begins = numpy.array([_NEVER if begin is None else begin for begin in self._begins()], numpy.int64)
        first = int(begins.min(initial=_NEVER))
        if first == _NEVER:
            return {}
        marks = numpy.array(self._map.made_from(first), numpy.int64).reshape(-1, 2)
        found: dict[int, Unsplit] = {}
        async for sequence, rows in all_rows(self._journal, self._index, sequence_of(first)):
            groups = self._groups_at(rows["queue_id"], rows["base_offset"])
            for topic, one in (await asyncio.to_thread(_sums, sequence, rows, begins[groups], marks)).items():
                found[topic] = found[topic].and_also(one) if topic in found else one
        return found


def _sums(sequence: int, rows: Rows, begins: numpy.ndarray, marks: numpy.ndarray) -> dict[int, Unsplit]:
    """Of the rows of a segment, those that lie at or behind where their write group is to be split from. `marks`: where
    each begins, and when its first data was written."""
    positions = rows["position"].astype(numpy.int64) + position_of(sequence, 0)
    waits = positions >= begins
    if not waits.any():
        return {}
    rows, positions = rows[waits], positions[waits]
    made = marks[numpy.maximum(numpy.searchsorted(marks[:, 0], positions, "right") - 1, 0), 1]
    numbers = (rows["queue_id"] >> numpy.uint64(PARTITION_BITS)).astype(numpy.int64)
    firsts = numpy.concatenate(([0], numpy.flatnonzero(numpy.diff(numbers)) + 1))
    sizes = numpy.add.reduceat(rows["length"].astype(numpy.int64), firsts)
    oldest = numpy.minimum.reduceat(numpy.where(made < 0, _NEVER, made), firsts)
    return {
        topic: Unsplit(size, -1 if time == _NEVER else time)
        for topic, size, time in zip(numbers[firsts].tolist(), sizes.tolist(), oldest.tolist(), strict=True)
    }
