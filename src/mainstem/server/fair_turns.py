"""Turns among those who share something: next comes whoever has had least, and of its own the one that has waited for
longest.

Each sharer has a virtual time, which goes on by what its turns took (start-time fair queuing). One that comes back
after a pause begins at the virtual time of the others: it has saved up nothing. With one sharer the order is that of
arrival.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

SHARERS_KEPT_MAX = 20_000
"""Sharers whose time is remembered: twice as many as there are tenants. Those go that are not ahead of the others."""

T = TypeVar("T", bound=Hashable)


class FairTurns(Generic[T]):
    """Items that wait, each of a sharer. Times and amounts are bytes."""

    def __init__(self) -> None:
        self._sharer_of: dict[T, str] = {}
        self._waiting: dict[str, dict[T, None]] = {}
        self._times: dict[str, int] = {}
        self._now = 0
        self._heap: list[tuple[int, int, str]] = []
        """Virtual time, entry and name of each sharer that waits. Entries that are not `_entries` any more are passed
        over."""
        self._entries: dict[str, int] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._sharer_of)

    def __iter__(self) -> Iterator[T]:
        return iter(self._sharer_of)

    def add(self, item: T, sharer: str) -> None:
        """Have an item wait behind the others of its sharer."""
        assert item not in self._sharer_of, "it waits already"
        self._sharer_of[item] = sharer
        items = self._waiting.setdefault(sharer, {})
        items[item] = None
        if len(items) == 1:
            self._enter(sharer)

    def remove(self, item: T) -> None:
        """An item waits no more, if it did."""
        if (sharer := self._sharer_of.pop(item, None)) is not None:
            self._left(item, sharer)
            self._start_over_if_empty()

    @property
    def next_sharer(self) -> str:
        """Whose turn it is."""
        assert self._sharer_of, "nobody waits"
        return self._next()[1]

    def take(self) -> T:
        """The item whose turn it is; it does not wait any more. Tell afterwards what it took (`charge`)."""
        assert self._sharer_of, "nobody waits"
        self._now, sharer = self._next()
        item = next(iter(self._waiting[sharer]))
        del self._sharer_of[item]
        self._left(item, sharer)
        return item

    def charge(self, sharer: str, amount: int, *, taken_up: bool = False) -> None:
        """A turn of the sharer took so much. `taken_up`: what they share is not free yet, so that those who come next
        wait for what it had, even if nobody waits now."""
        if not taken_up and self._start_over_if_empty():  # nobody waits for what it had too much of
            return
        self._times[sharer] = max(self._times.get(sharer, 0), self._now) + amount
        if sharer in self._waiting:
            self._enter(sharer)
        if len(self._times) > SHARERS_KEPT_MAX:
            self._times = {name: time for name, time in self._times.items() if time > self._now}

    def _start_over_if_empty(self) -> bool:
        if self._sharer_of:
            return False
        self._times.clear()
        self._heap.clear()
        self._now = 0
        return True

    def _enter(self, sharer: str) -> None:
        """From now on the sharer waits with its time of now."""
        self._times[sharer] = time = max(self._times.get(sharer, 0), self._now)
        self._entries[sharer] = number = next(self._numbers)
        heappush(self._heap, (time, number, sharer))

    def _next(self) -> tuple[int, str]:
        """Virtual time and name of the sharer whose turn it is."""
        while True:
            time, entry, sharer = self._heap[0]
            if self._entries.get(sharer) == entry:
                return time, sharer
            heappop(self._heap)

    def _left(self, item: T, sharer: str) -> None:
        items = self._waiting[sharer]
        del items[item]
        if not items:
            del self._waiting[sharer], self._entries[sharer]
