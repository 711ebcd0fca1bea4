"""Compares the outputs of a compaction with its inputs, by their indexes alone, before they take the inputs' place.

All that is not to be compacted, queues that are not in the pass and all from their clean end on, is there as it was:
first and last offset, records, batches and bytes. Of what is, no offset lies outside of what the inputs had, the last
one is the same, and there are no more records than before; of a covered topic the first is the same, too, and so is the
number of batches."""

from __future__ import annotations

from collections.abc import Collection

import numpy
import numpy.typing

from mainstem.model import PARTITION_BITS
from mainstem.storage.compacting.compact_plan import Flags, Integers, QueueRows
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds

_REDUCED = (numpy.minimum, numpy.maximum, numpy.add, numpy.add, numpy.add)


class PassSums:
    """First and last offset, records, batches and bytes of each queue in some files, apart for what is compacted and
    what is not."""

    def __init__(self, queues: QueueRows) -> None:
        self._queue_ids: QueueIds = numpy.ascontiguousarray(queues["queue_id"])
        self._ends = queues["end"]
        self._parts: list[tuple[QueueIds, Flags, Integers]] = []

    def add(self, index: ExtentIndex) -> None:
        rows = index.rows
        if not len(rows):
            return
        queue_ids = numpy.ascontiguousarray(rows["queue_id"])
        compacted = numpy.zeros(len(rows), numpy.bool_)
        if len(self._queue_ids):
            places = numpy.minimum(self._queue_ids.searchsorted(queue_ids), len(self._queue_ids) - 1)
            compacted = (self._queue_ids[places] == queue_ids) & (rows["base_offset"] < self._ends[places])
        columns = numpy.stack(
            [
                rows[field].astype(numpy.int64)
                for field in ("base_offset", "last_offset", "record_count", "batch_count", "length")
            ]
        )
        self._parts.append(_reduced(queue_ids, compacted, columns))

    def result(self) -> tuple[QueueIds, Flags, Integers]:
        """Per queue and whether it is compacted, ascending, the five numbers."""
        if not self._parts:
            return numpy.zeros(0, numpy.uint64), numpy.zeros(0, numpy.bool_), numpy.zeros((5, 0), numpy.int64)
        queue_ids, compacted = (numpy.concatenate([part[column] for part in self._parts]) for column in (0, 1))
        self._parts = [_reduced(queue_ids, compacted, numpy.concatenate([part[2] for part in self._parts], axis=1))]
        return self._parts[0]


def _reduced(queue_ids: QueueIds, compacted: Flags, columns: Integers) -> tuple[QueueIds, Flags, Integers]:
    order = numpy.lexsort((compacted, queue_ids))
    queue_ids, compacted, columns = queue_ids[order], compacted[order], columns[:, order]
    new = numpy.ones(len(queue_ids), numpy.bool_)
    new[1:] = (queue_ids[1:] != queue_ids[:-1]) | (compacted[1:] != compacted[:-1])
    firsts = numpy.flatnonzero(new)
    sums = numpy.stack([reduce.reduceat(column, firsts) for reduce, column in zip(_REDUCED, columns, strict=True)])
    return queue_ids[firsts], compacted[firsts], sums


def compare(inputs: PassSums, outputs: PassSums, covered: Collection[int] = ()) -> None:
    """Raises `StorageError` naming a queue unless the outputs are what compaction may leave of the inputs. `covered`:
    numbers of topics of whose queues no batch is left out."""
    queue_ids, compacted, before = inputs.result()
    found_ids, found_compacted, after = outputs.result()
    if not (numpy.array_equal(queue_ids, found_ids) and numpy.array_equal(compacted, found_compacted)):
        other = numpy.setxor1d(queue_ids, found_ids)
        name = f"queue {int(other[0]):#x}" if len(other) else "a queue"
        raise StorageError(f"{name} is in the inputs of a compaction or in its outputs, not in both")
    same: Flags = (before == after).all(axis=0)
    less = (after[0] >= before[0]) & (after[1] == before[1]) & (after[2] <= before[2]) & (after[3] <= before[3])
    whole = numpy.isin(queue_ids >> numpy.uint64(PARTITION_BITS), numpy.fromiter(covered, numpy.uint64))
    less &= ~whole | ((after[0] == before[0]) & (after[3] == before[3]))
    wrong = ~numpy.where(compacted, less, same)
    if wrong.any():
        at = int(wrong.argmax())
        raise StorageError(
            f"queue {int(queue_ids[at]):#x}: inputs of a compaction have offsets {before[0][at]} to {before[1][at]} in "
            f"{before[2][at]} records and {before[3][at]} batches, outputs {after[0][at]} to {after[1][at]} in "
            f"{after[2][at]} and {after[3][at]}"
            + ("" if compacted[at] else ", and nothing of these is to be compacted")
        )
