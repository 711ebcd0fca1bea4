"""Compares the outputs of a merge with its inputs, by their indexes alone, before they take the inputs' place.

Per queue, counted from its log start on: the outputs begin where the inputs do or before, end where they end, have no
fewer records than the inputs have in extents that lie behind the log start whole, and no more than the inputs have at
all. Log starts only move up, so a merge that went by older ones has more than is asked for, never less.
"""

from __future__ import annotations

import numpy
import numpy.typing

from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds
from mainstem.storage.extents.offset_gaps import NO_GAPS, OffsetGaps

Integers = numpy.typing.NDArray[numpy.int64]

_REDUCED = (numpy.minimum, numpy.maximum, numpy.add, numpy.add)


class QueueSums:
    """Of each queue in some files: first and last offset from the log start on, records from there on, and records at
    all. The latest inputs are joined with the others when they are half as much, so that each queue is moved a few
    times only."""

    def __init__(self) -> None:
        self._parts: list[tuple[QueueIds, Integers]] = []

    def add(
        self, index: ExtentIndex, starts: Integers, ends: Integers, gaps: OffsetGaps = NO_GAPS, *, partly: bool
    ) -> None:
        """`starts` and `ends` have for each queue of the index the first live offset, and the one behind the last;
        nothing in `gaps` is live. `partly`: count the records of extents, too, of which only a part is live."""
        rows = index.rows
        if not len(rows):
            return
        queue_ids, firsts = index.queues()
        counts = numpy.diff(numpy.append(firsts, len(rows)))
        starts, ends = numpy.repeat(starts, counts), numpy.repeat(ends, counts)
        base, last = rows["base_offset"], rows["last_offset"]
        live = (last >= starts) & (base < ends) & ~gaps.cover(rows)
        whole = live if partly else live & (base >= starts) & (last < ends)
        records = rows["record_count"].astype(numpy.int64)
        far = numpy.int64(numpy.iinfo(numpy.int64).max)
        columns = (
            numpy.where(live, numpy.maximum(base, starts), far),
            numpy.where(live, numpy.minimum(last, ends - 1), -1),
            numpy.where(whole, records, 0),
            records,
        )
        sums = numpy.stack([reduce.reduceat(column, firsts) for reduce, column in zip(_REDUCED, columns, strict=True)])
        self._parts.append((queue_ids, sums))
        while len(self._parts) > 1 and 2 * len(self._parts[-1][0]) > len(self._parts[-2][0]):
            self._join()

    def result(self) -> tuple[QueueIds, Integers]:
        """The queues with something live, ascending, and four numbers of each."""
        while len(self._parts) > 1:
            self._join()
        if not self._parts:
            return numpy.zeros(0, numpy.uint64), numpy.zeros((4, 0), numpy.int64)
        queue_ids, sums = self._parts[0]
        live = sums[1] >= 0
        return queue_ids[live], sums[:, live]

    def _join(self) -> None:
        one, other = self._parts.pop(), self._parts.pop()
        queue_ids = numpy.concatenate([other[0], one[0]])
        order = queue_ids.argsort(kind="stable")
        queue_ids = queue_ids[order]
        sums = numpy.concatenate([other[1], one[1]], axis=1)[:, order]
        firsts = numpy.concatenate(([0], numpy.flatnonzero(queue_ids[1:] != queue_ids[:-1]) + 1))
        joined = numpy.stack([reduce.reduceat(row, firsts) for reduce, row in zip(_REDUCED, sums, strict=True)])
        self._parts.append((queue_ids[firsts], joined))


def compare(inputs: QueueSums, outputs: QueueSums) -> None:
    """Raises `StorageError` naming a queue unless the outputs have what the inputs have."""
    queue_ids, before = inputs.result()
    found_ids, after = outputs.result()
    if not numpy.array_equal(queue_ids, found_ids):
        other = numpy.setxor1d(queue_ids, found_ids)
        raise StorageError(f"queue {int(other[0]):#x} is live in the inputs of a merge or in its outputs, not in both")
    wrong = (after[0] > before[0]) | (after[1] != before[1]) | (after[3] < before[2]) | (after[2] > before[3])
    if wrong.any():
        at = int(wrong.argmax())
        raise StorageError(
            f"queue {int(queue_ids[at]):#x}: inputs of a merge have offsets {before[0][at]} to {before[1][at]} in "
            f"{before[2][at]} to {before[3][at]} records, outputs {after[0][at]} to {after[1][at]} in {after[3][at]}"
        )
