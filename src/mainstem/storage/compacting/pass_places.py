"""Places of records in a pass, what is given to the tasks that write, and which of a file's rows are of the pass.

A record of a pass is its queue, the hash of its key, and one number, its *place*, the largest of which stays for each
key: its offset, then whether it is a tombstone, then whether that may go, and the number of the file it is in. No
record that stays has the bit that says it may go; rows with it are of empty markers (`ended_markers`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from mainstem.storage.compacting.compact_plan import INPUTS_MAX, OFFSETS_MAX, Flags, Integers, QueueRows
from mainstem.storage.errors import FormatError
from mainstem.storage.extents.extent_format import EXTENT_ROW
from mainstem.storage.extents.extent_index import QueueIds, Rows
from mainstem.storage.merging.merge_files import MergedRows
from mainstem.storage.merging.merge_inputs import InputFile, InputReader, index_pieces
from mainstem.storage.merging.merge_liveness import NO_END

INPUT_BITS = (INPUTS_MAX - 1).bit_length()
GOES_BIT = 1 << INPUT_BITS
TOMBSTONE_BIT = GOES_BIT << 1
OFFSET_SHIFT = INPUT_BITS + 2
assert OFFSETS_MAX << OFFSET_SHIFT <= 1 << 63

NOTHING_STAYS = -1
"""A place that is no record's: it names an input only (`nothing_of`)."""


class KeyColumns(NamedTuple):
    """Records with keys, a number of each in every column. Queues and hashes are u64, seen as i64."""

    queue: Integers
    high: Integers
    low: Integers
    place: Integers


class Staying(NamedTuple):
    """The records with keys of a file that stay, sorted by (queue, offset), as i64 columns."""

    queue: Integers
    place: Integers


def nothing_of(inputs: int) -> KeyColumns:
    """A row for each input, which sorts before its records: so that one of which nothing stays has a row, too."""
    none = numpy.zeros(inputs, numpy.int64)
    return KeyColumns(none, none, none, (NOTHING_STAYS << OFFSET_SHIFT) | numpy.arange(inputs))


class PassQueues:
    """Looks queues of the pass up."""

    def __init__(self, queues: QueueRows) -> None:
        self._queues = queues
        self._queue_ids: QueueIds = numpy.ascontiguousarray(queues["queue_id"])

    def places(self, queue_ids: QueueIds) -> Integers:
        """The position of each queue in the pass, or would."""
        places: Integers = numpy.minimum(self._queue_ids.searchsorted(queue_ids), len(self._queue_ids) - 1)
        return places

    def compacted(self, queue_ids: QueueIds, base_offsets: Integers) -> Flags:
        """Whether what begins with this offset of a queue is to be compacted."""
        return base_offsets < self.ends(queue_ids)

    def ends(self, queue_ids: QueueIds) -> Integers:
        """The clean end of each queue; 0 for those that are not in the pass."""
        queue_ids = numpy.ascontiguousarray(queue_ids)
        if not len(self._queue_ids):
            return numpy.zeros(len(queue_ids), numpy.int64)
        places = self.places(queue_ids)
        ends: Integers = numpy.where(self._queue_ids[places] == queue_ids, self._queues["end"][places], 0)
        return ends

    def are_whole(self, queue_ids: QueueIds) -> Flags:
        """Whether each queue is in the pass, and has been in its write group only."""
        if not len(self._queue_ids):
            return numpy.zeros(len(queue_ids), numpy.bool_)
        places = self.places(queue_ids)
        whole: Flags = (self._queue_ids[places] == queue_ids) & (self._queues["drops"][places] > 0)
        return whole


def all_rows(file: InputFile, reader: InputReader) -> Rows:
    return numpy.concatenate([numpy.empty(0, EXTENT_ROW), *index_pieces(file, reader)])


def of_one_input(rows: Rows) -> MergedRows:
    zeros = numpy.zeros(len(rows), numpy.int64)
    return MergedRows(rows, zeros, zeros, numpy.full(len(rows), NO_END), zeros)


def checked(staying: Staying, number: int) -> None:
    """Raises FormatError unless all rows are of this input, in order."""
    foreign = (staying.place & (INPUTS_MAX - 1)) != number
    if foreign.any():
        raise FormatError(f"input {number} of a compaction was given the records of another")
