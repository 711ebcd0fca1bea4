"""A bound on the bytes of all requests that are being read or answered, shared by all connections.

A request takes its whole frame's length before its buffer grows, and gives it back when it is answered. The
budget grants while anything is left, whatever the length asked for: it may be overdrawn by one frame, but no
set of half-read frames can wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class RequestBudget:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._waiting: deque[Callable[[], object]] = deque()

    def take(self, size_bytes: int) -> bool:
        """Take the bytes of one request; False when there is nothing left (then `wait`)."""
        if self.bytes_taken >= self.bytes_max:
            return False
        self.bytes_taken += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Return bytes taken earlier and wake, in the order they came, as many waiters as may find some."""
        self.bytes_taken -= size_bytes
        assert self.bytes_taken >= 0, "gave back more than was taken"
        for _ in range(len(self._waiting)):
            if self.bytes_taken >= self.bytes_max:
                break
            self._waiting.popleft()()

    def wait(self, woken: Callable[[], object]) -> None:
        """Have `woken` called, once, when `take` is worth another try. It may call `wait` again."""
        self._waiting.append(woken)
