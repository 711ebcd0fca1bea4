"""The batches of transactions whose markers are not among them: of what a returning replica keeps, those that end in
what it copies."""

from __future__ import annotations

import numpy
import numpy.typing

from mainstem.storage.compacting.window import Window
from mainstem.storage.store_files.transaction_scan import producers_of

PLACED = numpy.dtype([("queue_id", "<u8"), ("producer_id", "<i8"), ("offset", "<i8"), ("control", "u1")])
"""A batch of a transaction: its queue, its producer, its base offset, and 1 for a marker."""

PlacedBatches = numpy.typing.NDArray[numpy.void]


def transactions_in(queue_id: int, data: bytes) -> PlacedBatches:
    """The batches of transactions in an extent."""
    window = Window.of(data)
    chosen = numpy.flatnonzero(window.transactional())
    found = numpy.empty(len(chosen), PLACED)
    found["queue_id"], found["offset"] = queue_id, window.batches[chosen, 2]
    found["producer_id"] = producers_of(data, numpy.ascontiguousarray(window.batches[chosen, 0]))
    found["control"] = window.control()[chosen]
    return found


def open_batches(batches: PlacedBatches) -> PlacedBatches:
    """Those behind the last marker of their producer in their queue."""
    batches = batches[numpy.lexsort((batches["offset"], batches["producer_id"], batches["queue_id"]))]
    markers = numpy.cumsum(batches["control"], dtype=numpy.int64)
    last = numpy.ones(len(batches), numpy.bool_)
    last[:-1] = (batches["queue_id"][1:] != batches["queue_id"][:-1]) | (
        batches["producer_id"][1:] != batches["producer_id"][:-1]
    )
    ends = numpy.flatnonzero(last)
    upto = numpy.repeat(markers[ends], numpy.diff(ends, prepend=-1))
    found: PlacedBatches = batches[(markers == upto) & (batches["control"] == 0)]
    return found
