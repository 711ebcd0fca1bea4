"""When the next lock of each window runs out."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mainstem.broker.share_groups.records import WindowKey


class LockDeadlines:
    """One deadline per window, in monotonic milliseconds."""

    def __init__(self) -> None:
        self._deadlines: dict[WindowKey, int] = {}
        self._heap: list[tuple[int, WindowKey]] = []

    def set(self, key: WindowKey, deadline_ms: int | None) -> None:
        """Move a window's deadline; None: it has none."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
        elif self._deadlines.get(key) != deadline_ms:
            self._deadlines[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 2 * len(self._deadlines) + 64:
                self._heap = [(at, of) for of, at in self._deadlines.items()]
                heapq.heapify(self._heap)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        heap = self._heap
        while heap and self._deadlines.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ms: int) -> Iterator[WindowKey]:
        """The windows whose deadlines have passed, earliest first; each is forgotten as it is given."""
        while (at := self.next_ms()) is not None and at <= now_ms:
            _, key = heapq.heappop(self._heap)
            del self._deadlines[key]
            yield key
