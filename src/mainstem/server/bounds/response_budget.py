"""Bounds the memory that responses hold, from when a fetch has found its batches until the client has taken
them.

The less there is left, the smaller responses become (`bytes_free`), and the less a connection may have unsent before
its next request is dispatched. When nothing is left, connections that hold nothing still get small responses, so that
clients that read are served beside those that do not, up to twice the bound; and connections that have taken nothing
for a while are closed, the longest idle first.

Bytes that many responses share, or that lie in the store's cache, are held once, however many responses are
unsent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

RESPONSE_SHARE = 8
"""One response gets one part in so many of the bytes left."""

RESPONSE_BYTES_LEAST = 64 * 1024
"""The bytes that a response may have in any case."""

HARD_FACTOR = 2
"""Beyond so many times the bound no request is dispatched."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    def go_on(self) -> None:
        """Dispatch the requests that were held back."""
        ...


class ResponseBudget:
    """Implements `ports.ResponseRoom` for all connections of a node."""

    def __init__(self, bytes_max: int, on_short: Callable[[], object] = lambda: None) -> None:
        """`on_short` is called, perhaps often, when more than half of the bound is held."""
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self.bytes_most = 0
        """The most bytes held at any time since this was last set."""
        self._waiting: dict[Holder, None] = {}
        self._on_short = on_short

    @property
    def exhausted(self) -> bool:
        return self.bytes_held >= self.bytes_max

    @property
    def full(self) -> bool:
        return self.bytes_held >= HARD_FACTOR * self.bytes_max

    def bytes_free(self) -> int:
        """The bytes that one response should have at most."""
        return max(RESPONSE_BYTES_LEAST, (self.bytes_max - self.bytes_held) // RESPONSE_SHARE)

    def change(self, more: int) -> None:
        """Note that responses hold `more` additional bytes, or fewer if negative."""
        self.bytes_held = held = self.bytes_held + more
        if held > self.bytes_most:
            self.bytes_most = held
        if more > 0 and 2 * held >= self.bytes_max:
            self._on_short()
        elif self._waiting and held < self.bytes_max:
            waiting, self._waiting = self._waiting, {}
            for holder in waiting:
                holder.go_on()

    def wait(self, holder: Holder) -> None:
        """Have a holder go on when there are bytes left again."""
        self._waiting[holder] = None

    def forget(self, holder: Holder) -> None:
        self._waiting.pop(holder, None)
