"""The aborted transactions of a write group whose markers are not split yet, by queue, in memory.

Readers of committed transactions are told which transactions overlap what they read. The transactions of a queue stand
in the order of their markers; each knows a bound for the last stable offset behind its marker, so that a look-up ends
at the first one that everything later begins behind (as in Kafka's index of aborted transactions). Transactions
that the split has moved to files are found there, and go from here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter, itemgetter
from typing import NamedTuple

from mainstem.model import AbortedRange, topic_number_of

ABORTED_MAX = 100_000
"""Aborted transactions that a write group holds before it takes no new transactions: some 20 MB. The split takes them
every few seconds."""


class UnsplitAborted(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """At least; behind the marker."""
    block_index: int
    """The block that has the marker."""


class AbortedIndex:
    def __init__(self) -> None:
        self._queues: dict[int, list[UnsplitAborted]] = {}
        self._order: list[tuple[int, int]] = []
        """(block index, queue id) of each, oldest first."""
        self.pruned_index: int | None = None
        """The last block up to which transactions were forgotten; None: nobody knows, as this is what a checkpoint or a
        snapshot had left."""
        self.clears = 0
        """How often all was forgotten: blocks are counted anew then."""

    def __len__(self) -> int:
        return len(self._order)

    @property
    def is_full(self) -> bool:
        return len(self._order) >= ABORTED_MAX

    def add(self, queue_id: int, aborted: UnsplitAborted) -> None:
        """Note a transaction whose marker was applied. One that is known, as its block is applied again, is passed
        over. Behind a snapshot, blocks may come whose transactions are not known while later ones are: the sender had
        split these blocks when it told of its transactions."""
        known = self._queues.setdefault(queue_id, [])
        place = bisect_left(known, aborted.last_offset, key=attrgetter("last_offset"))
        if place < len(known) and known[place].last_offset == aborted.last_offset:
            return
        known.insert(place, aborted)
        insort(self._order, (aborted.block_index, queue_id), key=itemgetter(0))

    def find(self, queue_id: int, from_offset: int, to_offset: int) -> list[AbortedRange]:
        """The transactions that have offsets in [`from_offset`, `to_offset`), by their first offsets."""
        known = self._queues.get(queue_id)
        if not known:
            return []
        found = []
        for place in range(bisect_left(known, from_offset, key=attrgetter("last_offset")), len(known)):
            one = known[place]
            if one.first_offset < to_offset:
                found.append(AbortedRange(one.producer_id, one.first_offset, one.last_offset))
            if one.last_stable_offset >= to_offset:
                break
        return sorted(found, key=attrgetter("first_offset"))

    def prune(self, upto_index: int) -> None:
        """Forget the transactions whose markers are in blocks up to this one."""
        self.pruned_index = max(upto_index, self.pruned_index or 0)
        end = bisect_right(self._order, upto_index, key=itemgetter(0))
        forgotten = self._order[:end]
        del self._order[:end]
        for _index, queue_id in forgotten:
            known = self._queues.get(queue_id)
            if known is None:
                continue  # its topic is gone
            del known[0]
            if not known:
                del self._queues[queue_id]

    def forget_topics(self, topic_numbers: Iterable[int]) -> None:
        gone = set(topic_numbers)
        for queue_id in [queue_id for queue_id in self._queues if topic_number_of(queue_id) in gone]:
            del self._queues[queue_id]
        self._order = [entry for entry in self._order if topic_number_of(entry[1]) not in gone]

    def clear(self) -> None:
        self._queues.clear()
        self._order.clear()
        self.pruned_index = None
        self.clears += 1

    def __iter__(self) -> Iterator[tuple[int, UnsplitAborted]]:
        """All of them, with their queues, in the order of their blocks."""
        places: dict[int, int] = {}
        for _index, queue_id in self._order:
            place = places.get(queue_id, 0)
            places[queue_id] = place + 1
            yield queue_id, self._queues[queue_id][place]
