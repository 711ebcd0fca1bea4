"""Bounds how many producers are remembered, and decides which of too many are kept.

Producers of a single batch go first, then others, the oldest first, and always from the queues that have the most: a
client that invents producers pushes out its own, and those of its queues, before any others.
"""

from __future__ import annotations

import numpy
import numpy.typing

from mainstem.storage.state.producers.producer_rows import States

Values = numpy.typing.NDArray[numpy.int64]


def value_of(rows: States) -> Values:
    """The worth of keeping each producer: first whether it came back, then when it was last seen. Some bits of its id
    tell producers of the same time apart, since otherwise all or none of them would go."""
    times: Values = numpy.clip(rows["last_timestamp_ms"], 0, (1 << 45) - 1)
    came_back = (rows["count"] > 1).astype(numpy.int64)
    values: Values = (came_back << 61) + (times << 16) + (rows["producer_id"] & 0xFFFF)
    return values


class ProducerLimits:
    """Decides which of too many producers are kept: in each queue at most the same number, those that are worth
    most."""

    def __init__(self, queue_ids: numpy.typing.NDArray[numpy.uint64], values: Values, count_max: int) -> None:
        """`queue_ids` and `values` are those of all producers, sorted by queue."""
        self._queues, firsts, counts = numpy.unique(queue_ids, return_index=True, return_counts=True)
        share = fair_share(counts, count_max)
        self._least = numpy.full(len(self._queues), numpy.iinfo(numpy.int64).min)
        for place in numpy.flatnonzero(counts > share).tolist():
            of_queue = values[firsts[place] : firsts[place] + counts[place]]
            cut = counts[place] - share
            self._least[place] = numpy.partition(of_queue, cut)[cut] if share else numpy.iinfo(numpy.int64).max

    def keep(self, rows: States) -> numpy.typing.NDArray[numpy.bool_]:
        places = numpy.searchsorted(self._queues, rows["queue_id"])
        kept: numpy.typing.NDArray[numpy.bool_] = value_of(rows) >= self._least[places]
        return kept


def fair_share(counts: numpy.typing.NDArray[numpy.int64], total_max: int) -> int:
    """The largest number per queue with which all queues together have at most `total_max`."""
    low, high = 0, int(counts.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int(numpy.minimum(counts, middle).sum()) <= total_max:
            low = middle
        else:
            high = middle - 1
    return low
