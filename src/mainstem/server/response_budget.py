"""A bound on what responses hold in memory, from when a fetch has found its batches until the client has taken them.

The less there is left, the smaller responses become (`bytes_free`), and the less a connection may have unsent before
its next request is dispatched. When nothing is left, connections that hold nothing still get small responses, so that
those who read are served beside those who do not, up to twice the bound; and connections that have taken nothing for a
while are closed, who has taken nothing for longest first.

What many responses share, and what they only point to in the store's cache, is held once whatever is unsent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RESPONSE_SHARE = 8
"""One response gets one part in so many of what is left."""

RESPONSE_BYTES_LEAST = 64 * 1024
"""What a response may have in any case."""

HARD_FACTOR = 2
"""Beyond so many times the bound nothing is dispatched at all."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    def go_on(self) -> None:
        """Dispatch what was held back."""
        ...


class ResponseBudget:
    """`ports.ResponseRoom` of all connections of a node."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.bytes_most = 0
        """Held at any time since this was last set."""
        self._waiting: dict[Holder, None] = {}
        self.on_short: Callable[[], None] = lambda: None
        """Called, perhaps often, when more than half of the bound is held."""

    @property
    def exhausted(self) -> bool:
        return self.bytes_held >= self.bytes_max

    @property
    def full(self) -> bool:
        return self.bytes_held >= HARD_FACTOR * self.bytes_max

    def bytes_free(self) -> int:
        """What one response should have at most."""
        return max(RESPONSE_BYTES_LEAST, (self.bytes_max - self.bytes_held) // RESPONSE_SHARE)

    def change(self, more: int) -> None:
        """So many bytes more are held than before, or fewer."""
        self.bytes_held = held = self.bytes_held + more
        if held > self.bytes_most:
            self.bytes_most = held
        if more > 0 and 2 * held >= self.bytes_max:
            self.on_short()
        elif self._waiting and held < self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.go_on()

    def wait(self, holder: Holder) -> None:
        """Have a holder go on when there is something left again."""
        self._waiting[holder] = None

    def forget(self, holder: Holder) -> None:
        self._waiting.pop(holder, None)
