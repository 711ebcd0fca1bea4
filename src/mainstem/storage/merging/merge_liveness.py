"""Which offsets of each queue a merge keeps: asked of the node once per queue, and remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy

from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps, joined_gaps
from mainstem.storage.merging.merge_lines import Flags, Integers

ASKED_MAX = 1 << 16
"""Queues of one question: an answer of 1 MiB."""

NO_END = int(numpy.iinfo(numpy.int64).max)


class LiveOffsets(NamedTuple):
    """Per queue, the offsets that the write group has of it: from `starts` up to `ends`, not included. A queue that is
    gone starts at `NO_END`; one that nothing is known of starts at 0, for missing metadata never deletes data."""

    starts: Integers
    ends: Integers
    gaps: OffsetGaps = NO_GAPS
    """Offsets between these that other write groups have; no extent has some of them and others."""


AskLive = Callable[[QueueIds], LiveOffsets]
"""Asks for at most `ASKED_MAX` queues, ascending."""


class Liveness:
    """The answers of one merge: each queue is asked about once, so they do not change under it."""

    def __init__(self, ask: AskLive) -> None:
        self._ask = ask
        self._queue_ids: QueueIds = numpy.empty(0, numpy.uint64)
        self._starts: Integers = numpy.empty(0, numpy.int64)
        self._ends: Integers = numpy.empty(0, numpy.int64)
        self._gaps = NO_GAPS

    def of(self, queue_ids: QueueIds) -> LiveOffsets:
        """For queues in ascending order."""
        if not len(queue_ids):
            return LiveOffsets(numpy.empty(0, numpy.int64), numpy.empty(0, numpy.int64))
        self._learn(queue_ids)
        places = self._queue_ids.searchsorted(queue_ids)
        return LiveOffsets(self._starts[places], self._ends[places], self._gaps)

    def of_rows(self, rows: Rows) -> LiveOffsets:
        """For each of these rows, sorted by queue."""
        if not len(rows):
            return self.of(numpy.empty(0, numpy.uint64))
        queue_ids = numpy.ascontiguousarray(rows["queue_id"])
        firsts = numpy.concatenate(([0], numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1))
        counts = numpy.diff(firsts, append=len(rows))
        found = self.of(queue_ids[firsts])
        return LiveOffsets(numpy.repeat(found.starts, counts), numpy.repeat(found.ends, counts), found.gaps)

    def _learn(self, queue_ids: QueueIds) -> None:
        if len(self._queue_ids):
            places = numpy.minimum(self._queue_ids.searchsorted(queue_ids), len(self._queue_ids) - 1)
            queue_ids = queue_ids[self._queue_ids[places] != queue_ids]
        if not len(queue_ids):
            return
        answers = [self._ask(queue_ids[at : at + ASKED_MAX]) for at in range(0, len(queue_ids), ASKED_MAX)]
        known = numpy.concatenate([self._queue_ids, queue_ids])
        order = known.argsort(kind="stable")
        self._queue_ids = known[order]
        self._starts = numpy.concatenate([self._starts, *(answer.starts for answer in answers)])[order]
        self._ends = numpy.concatenate([self._ends, *(answer.ends for answer in answers)])[order]
        self._gaps = joined_gaps([self._gaps, *(answer.gaps for answer in answers)])


def alive(rows: Rows, live: LiveOffsets) -> Flags:
    """Which rows have an offset that is live."""
    flags: Flags = (rows["last_offset"] >= live.starts) & (rows["base_offset"] < live.ends)
    flags &= ~live.gaps.cover(rows)
    return flags
