"""Tells which extents others have all offsets of, however these are cut."""

from __future__ import annotations

import numpy
import numpy.typing

from mainstem.storage.extents.extent_index import Rows

Numbers = numpy.typing.NDArray[numpy.int64]
Flags = numpy.typing.NDArray[numpy.bool_]


def covered(rows: Rows, others: Rows) -> Flags:
    """Per extent, whether others of its queue, in any order and cut otherwise, have all of its offsets."""
    if not len(others):
        return numpy.zeros(len(rows), numpy.bool_)
    order = numpy.lexsort((others["base_offset"], others["queue_id"]))
    queues = numpy.ascontiguousarray(others["queue_id"][order])
    bases, lasts = others["base_offset"][order], others["last_offset"][order]
    # stretches of a queue without a gap: each begins behind all that came before it
    first_of_queue = numpy.ones(len(queues), numpy.bool_)
    first_of_queue[1:] = queues[1:] != queues[:-1]
    reached = _running_max(lasts, first_of_queue)
    begins = first_of_queue.copy()
    begins[1:] |= bases[1:] > reached[:-1] + 1
    firsts = numpy.flatnonzero(begins)
    ends = numpy.append(firsts[1:], len(queues)) - 1
    stretch_queues, stretch_bases, stretch_lasts = queues[firsts], bases[firsts], reached[ends]
    # of each extent the last stretch that begins with it, or before it
    keys = numpy.concatenate([stretch_queues, numpy.ascontiguousarray(rows["queue_id"])])
    offsets = numpy.concatenate([stretch_bases, rows["base_offset"]])
    kinds = numpy.concatenate([numpy.zeros(len(firsts), numpy.int8), numpy.ones(len(rows), numpy.int8)])
    together = numpy.lexsort((kinds, offsets, keys))
    before = numpy.cumsum(kinds[together] == 0) - 1
    places = numpy.empty(len(rows), numpy.intp)
    is_row = kinds[together] == 1
    places[together[is_row] - len(firsts)] = before[is_row]
    known = places >= 0
    places = numpy.maximum(places, 0)
    flags: Flags = known & (stretch_queues[places] == rows["queue_id"]) & (stretch_lasts[places] >= rows["last_offset"])
    return flags


def _running_max(values: Numbers, first_of_queue: Flags) -> Numbers:
    """The largest value so far, of each queue by itself."""
    queues = numpy.cumsum(first_of_queue) - 1
    spread = int(values.max()) + 1
    if spread * (int(queues[-1]) + 1) < 1 << 62:  # else numbers would not fit
        result: Numbers = numpy.maximum.accumulate(values + queues * spread) - queues * spread
        return result
    firsts = numpy.flatnonzero(first_of_queue)
    parts = numpy.split(values, firsts[1:])
    joined: Numbers = numpy.concatenate([numpy.maximum.accumulate(part) for part in parts])
    return joined
