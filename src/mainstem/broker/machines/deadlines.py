"""The deadlines of one machine.

One heap entry per key: moving a deadline further out (as every heartbeat does) only notes the new time,
and the entry is put back when it surfaces too early. So the heap does not grow with the number of heartbeats.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

from mainstem.kernel import untrack

K = TypeVar("K")
"""The names of deadlines: texts and numbers, or tuples of these. Those of one machine can be ordered, which breaks
ties."""


class Deadlines(Generic[K]):
    """Deadlines by key, in monotonic milliseconds."""

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._queued: dict[K, int] = {}  # the heap entry that counts for a key
        self._heap: list[tuple[int, K]] = []
        self.given_ms = 0
        """When the timer that `due` gave last was to run out."""

    @property
    def entries(self) -> int:
        """How many entries the heap has, those of deadlines that have moved included."""
        return len(self._heap)

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def set(self, key: K, deadline_ms: int) -> None:
        """Start a timer, or move it."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        if queued is None or deadline_ms < queued:
            self._queued[key] = deadline_ms
            heapq.heappush(self._heap, _entry(deadline_ms, key))

    def cancel(self, key: K) -> None:
        self._deadlines.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        """When to call `due` next; None when no timer runs."""
        self._settle()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[K]:
        """The timers that have run out, earliest first; each is stopped as it is given."""
        while True:
            self._settle()
            if not self._heap or self._heap[0][0] > now_ms:
                return
            self.given_ms, key = heapq.heappop(self._heap)
            del self._queued[key]
            del self._deadlines[key]
            yield key

    def _settle(self) -> None:
        """Put back or drop heap entries until the first one is a true deadline."""
        heap = self._heap
        while heap:
            queued_ms, key = heap[0]
            if self._queued.get(key) != queued_ms:
                heapq.heappop(heap)  # an earlier deadline took its place
                continue
            deadline_ms = self._deadlines.get(key)
            if deadline_ms == queued_ms:
                return
            if deadline_ms is None:
                heapq.heappop(heap)
                del self._queued[key]
            else:
                self._queued[key] = deadline_ms
                heapq.heapreplace(heap, _entry(deadline_ms, key))


def _entry(deadline_ms: int, key: K) -> tuple[int, K]:
    """Of the heap. There is one for each member of each group, which no collection of garbage needs to visit."""
    entry = deadline_ms, key
    untrack(key)
    untrack(entry)
    return entry
