"""Transactions in the directory of a block: which batches are part of one, and how and where one ended.

A batch of a transaction has the transactional bit among the attributes of its row, as in its own header. A marker, the
control batch that ends a transaction, has the control bit as well, and its row says more than the batch does, so that
whoever reads directories knows all about ended transactions:

    attributes      bit 7: it was committed, otherwise aborted. Bits 8 to 13: 0: no other transaction is open in the
                    queue, so the last stable offset is the one behind the marker; k: it is 2^(k - 1) before that one
                    at most
    base sequence   as u32, how far before the marker the transaction began; 0: it has no batch in the queue
    records         the coordinator epoch. A marker has one record

A leader refuses batches that would take an open transaction's beginning further away than a row can say
(`UNSTABLE_DISTANCE_MAX`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.kernel.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT
from mainstem.storage.extents.aborted import ABORTED_ROW, NO_PRODUCER, joined_rows
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW

Rows = numpy.typing.NDArray[numpy.void]
Integers = numpy.typing.NDArray[numpy.int64]

COMMITTED_BIT = 0x80
UNSTABLE_SHIFT = 8
UNSTABLE_MASK = 0x3F

DISTANCE_MAX = (1 << 32) - 1
"""From a transaction's first offset to its marker; four billion messages within the fifteen minutes that a transaction
may last."""

MARKER_BITS = TRANSACTIONAL_BIT | CONTROL_BIT


class MarkerRow(NamedTuple):
    """The fields of a marker's row that differ from the batch's own."""

    attributes: int
    base_sequence: int
    record_count: int


class EndedTransaction(NamedTuple):
    """How a marker's row says that a transaction ended."""

    committed: bool
    first_offset: int
    """-1: it has no batch in the queue."""
    last_stable_offset: int
    """At least; exact where no other transaction was open."""
    coordinator_epoch: int


def marker_row(
    offset: int, first_offset: int, last_stable_offset: int, *, committed: bool, coordinator_epoch: int
) -> MarkerRow:
    """The row of a marker at `offset`. `first_offset`: of its transaction, -1 where that has no batch in the queue;
    `last_stable_offset`: as it is once the marker is committed."""
    distance = offset - first_offset if first_offset >= 0 else 0
    assert 0 <= distance <= DISTANCE_MAX, (offset, first_offset)
    assert last_stable_offset <= offset + 1, (offset, last_stable_offset)
    behind = offset + 1 - last_stable_offset
    power = (behind - 1).bit_length() + 1 if behind else 0
    attributes = MARKER_BITS | (COMMITTED_BIT if committed else 0) | power << UNSTABLE_SHIFT
    return MarkerRow(attributes, distance - (1 << 32) if distance >> 31 else distance, coordinator_epoch)


def is_marker(attributes: int) -> bool:
    return attributes & MARKER_BITS == MARKER_BITS


def ended_transaction(offset: int, attributes: int, base_sequence: int, record_count: int) -> EndedTransaction:
    """Read the row of a marker at `offset`."""
    distance = base_sequence & 0xFFFFFFFF
    power = attributes >> UNSTABLE_SHIFT & UNSTABLE_MASK
    return EndedTransaction(
        bool(attributes & COMMITTED_BIT),
        offset - distance if distance else -1,
        max(0, offset + 1 - (1 << power - 1 if power else 0)),
        record_count,
    )


def ended_transactions(rows: Rows) -> Rows:
    """The aborted transactions whose markers are among these directory rows, of any queues, as rows of `ABORTED_ROW` by
    (queue, first offset). Transactions without a batch in a queue are left out."""
    assert rows.dtype == DIRECTORY_ROW, rows.dtype
    attributes = rows["attributes"]
    aborted = (attributes & (MARKER_BITS | COMMITTED_BIT) == MARKER_BITS) & (rows["base_sequence"] != 0)
    ends = rows[aborted]
    found = numpy.zeros(len(ends), ABORTED_ROW)
    for name in ("queue_id", "producer_id"):
        found[name] = ends[name]
    offsets: Integers = ends["base_offset"].astype(numpy.int64)
    found["first_offset"] = offsets - ends["base_sequence"].view(numpy.uint32).astype(numpy.int64)
    found["last_offset"] = offsets
    found["last_stable_offset"] = _stable_offsets(ends, offsets)
    return found[numpy.lexsort((found["first_offset"], found["queue_id"]))]


def section_rows(rows: Rows) -> Rows:
    """The index of aborted transactions of a file with the batches of these directory rows."""
    markers = rows[rows["attributes"] & MARKER_BITS == MARKER_BITS]
    if not len(markers):
        return numpy.zeros(0, ABORTED_ROW)
    stable = numpy.zeros(len(markers), ABORTED_ROW)
    offsets: Integers = markers["base_offset"].astype(numpy.int64)
    stable["queue_id"] = markers["queue_id"]
    stable["producer_id"] = NO_PRODUCER
    stable["first_offset"] = -1
    stable["last_offset"] = offsets
    stable["last_stable_offset"] = _stable_offsets(markers, offsets)
    return joined_rows([ended_transactions(markers), stable])


def _stable_offsets(markers: Rows, offsets: Integers) -> Integers:
    powers = (markers["attributes"].astype(numpy.int64) >> UNSTABLE_SHIFT) & UNSTABLE_MASK
    behind = numpy.where(powers > 0, numpy.left_shift(1, numpy.maximum(powers - 1, 0)), 0)
    return numpy.maximum(offsets + 1 - behind, 0)


def record_counts(rows: Rows) -> Integers:
    """The records of the batches of these directory rows."""
    is_control = rows["attributes"] & CONTROL_BIT != 0
    counts: Integers = numpy.where(is_control, 1, rows["record_count"]).astype(numpy.int64)
    return counts
