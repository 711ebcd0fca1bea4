"""How far the transactions of a pass's queues are decided, and which of them were aborted.

A record counts as the latest of its key once its transaction is committed, and goes once it is aborted. So a queue is
compacted up to the last stable offset at most that the markers in the inputs of the pass tell: the inputs have all of
the queue up to its clean end, and so all markers of what is decided there. If no transaction is open behind the last
marker, that is no bound.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.storage.compacting.compact_plan import QUEUE_ROW, Flags, Integers, QueueRows
from mainstem.storage.extents.aborted import ABORTED_ROW, NO_PRODUCER, AbortedRows, joined_rows, no_rows
from mainstem.storage.extents.extent_format import TRANSACTIONAL
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.merging.merge_inputs import InputFile, InputReader, index_pieces, read_aborted

log = logging.getLogger(__name__)

ABORTED_MAX = 1 << 18
"""Aborted transactions of one pass, 10 MiB, which every executor has. With more, the queues with the highest ids are
left as they are, and the log says so, each time: rows stay as long as their markers do, which compaction keeps."""

_NO_OFFSET = -1


class DecidedQueues(NamedTuple):
    queues: QueueRows
    """Those of the pass, each with the clean end up to which its transactions are decided."""
    aborted: AbortedRows
    """The aborted transactions among what is compacted."""
    has_transactions: bool
    """Whether there are any batches of transactions, of which markers may be empty."""

    def packed(self) -> tuple[bytes, bytes, bool]:
        return self.queues.tobytes(), self.aborted.tobytes(), self.has_transactions

    @classmethod
    def unpacked(cls, queues: bytes, aborted: bytes, has_transactions: bool) -> DecidedQueues:
        return cls(numpy.frombuffer(queues, QUEUE_ROW), numpy.frombuffer(aborted, ABORTED_ROW), has_transactions)


def decided(inputs: Sequence[InputFile], queues: QueueRows, reader: InputReader | None = None) -> DecidedQueues:
    """Reads the indexes of all inputs of a pass. Raises `InputDamaged`, and what the reader raises."""
    queue_ids: QueueIds = numpy.ascontiguousarray(queues["queue_id"])
    first = numpy.full(len(queues), numpy.iinfo(numpy.int64).max, numpy.int64)
    last = numpy.full(len(queues), _NO_OFFSET, numpy.int64)
    """Per queue, the first and the last offset of extents with batches of transactions."""
    sections: list[AbortedRows] = []
    for file in inputs:
        for rows in index_pieces(file, reader):
            marked = rows[rows["flags"] & TRANSACTIONAL != 0]
            places, known = _places(queue_ids, marked["queue_id"])
            numpy.minimum.at(first, places[known], marked["base_offset"][known])
            numpy.maximum.at(last, places[known], marked["last_offset"][known])
        found = read_aborted(file, reader)
        sections.append(found[_places(queue_ids, found["queue_id"])[1]])
    ended = joined_rows(sections)
    made = queues.copy()
    made["end"] = numpy.minimum(queues["end"], _ends(queue_ids, first, last, ended))
    aborted = ended[ended["producer_id"] != NO_PRODUCER]
    if len(aborted) > ABORTED_MAX:
        too_far = aborted["queue_id"][ABORTED_MAX]
        log.warning(
            "%d aborted transactions in the queues of one pass are too many: those from queue %#x on are not compacted",
            len(aborted),
            int(too_far),
        )
        made["end"][queue_ids >= too_far] = 0
        aborted = aborted[aborted["queue_id"] < too_far]
    return DecidedQueues(made, aborted, bool((last != _NO_OFFSET).any()))


def _places(queue_ids: QueueIds, wanted: QueueIds) -> tuple[Integers, Flags]:
    """The place of each of these queues among those of the pass, and whether it is one of them."""
    if not len(queue_ids):
        return numpy.zeros(len(wanted), numpy.int64), numpy.zeros(len(wanted), numpy.bool_)
    wanted = numpy.ascontiguousarray(wanted)
    places: Integers = numpy.minimum(queue_ids.searchsorted(wanted), len(queue_ids) - 1)
    return places, queue_ids[places] == wanted


def _ends(queue_ids: QueueIds, first: Integers, last: Integers, ended: AbortedRows) -> Integers:
    """Up to which offset the transactions of each queue are decided."""
    no_bound = numpy.iinfo(numpy.int64).max
    stable = numpy.full(len(queue_ids), _NO_OFFSET, numpy.int64)
    newest = numpy.full(len(queue_ids), _NO_OFFSET, numpy.int64)
    """Per queue, the largest last stable offset, and its last marker."""
    places, _known = _places(queue_ids, ended["queue_id"])
    numpy.maximum.at(stable, places, ended["last_stable_offset"])
    numpy.maximum.at(newest, places, ended["last_offset"])
    has_some = last != _NO_OFFSET
    none_open = (stable == newest + 1) & (last <= newest)
    ends = numpy.where(stable == _NO_OFFSET, first, stable)
    found: Integers = numpy.where(has_some & ~none_open, ends, no_bound)
    return found


class AbortedBatches:
    """Tells batches of aborted transactions from others."""

    def __init__(self, aborted: AbortedRows | None = None) -> None:
        rows = no_rows() if aborted is None else aborted
        self._rows = rows[numpy.lexsort((rows["first_offset"], rows["producer_id"], rows["queue_id"]))]

    def __len__(self) -> int:
        return len(self._rows)

    def among(self, queue_ids: QueueIds, producers: Integers, base_offsets: Integers) -> Flags:
        """Whether each of these batches of transactions was aborted."""
        rows = self._rows
        if not len(rows) or not len(queue_ids):
            return numpy.zeros(len(queue_ids), numpy.bool_)
        is_batch = numpy.arange(len(rows) + len(queue_ids)) >= len(rows)
        order = numpy.lexsort(
            (
                is_batch,
                numpy.concatenate((rows["first_offset"], base_offsets)),
                numpy.concatenate((rows["producer_id"], producers)),
                numpy.concatenate((rows["queue_id"], queue_ids)),
            )
        )
        before = numpy.empty(len(order), numpy.int64)
        before[order] = numpy.cumsum(~is_batch[order]) - 1
        at = before[len(rows) :]
        """Per batch, the last transaction that does not begin behind it."""
        found = numpy.maximum(at, 0)
        flags: Flags = (at >= 0) & (rows["queue_id"][found] == queue_ids) & (rows["producer_id"][found] == producers)
        flags &= rows["last_offset"][found] >= base_offsets
        return flags
