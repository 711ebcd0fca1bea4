"""Large fetch responses, shared out over turns of the event loop.

The kernel makes a response of many small batches by copying them, a millisecond for two megabytes. A few that are asked
for at once are made within their dispatch. Beyond `MADE_BYTES_MAX` in one turn of the loop the next ones wait for later
turns, in the order they came: a thousand readers far behind hold everybody else up no longer than one or two of them.
Small responses never wait: they cost no more than any other small request.
"""

from __future__ import annotations

import asyncio
from collections import deque

from mainstem.prompt_future import PromptFuture

MADE_BYTES_MAX = 1024 * 1024
"""In one turn of the loop, and what the last response has beyond it: half a millisecond of copying, one to two where
the memory for it is fresh. Clients ask for a mebibyte of a partition unless told otherwise."""

SMALL_BYTES_MAX = 32 * 1024
"""A response of this size or less is made at any time: ten microseconds, most of them not for copying."""


class FetchTurns:
    """Bounded by who waits: each connection with one fetch at a time."""

    def __init__(self) -> None:
        self._made_bytes = 0
        """In large responses, in this turn of the loop."""
        self._waiting: deque[tuple[PromptFuture[None], int]] = deque()
        self._due = False

    @property
    def full(self) -> bool:
        """Whether a large response has to wait for its turn."""
        return self._made_bytes >= MADE_BYTES_MAX or bool(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def made(self, size_bytes: int) -> None:
        """A response of so many bytes is made in this turn of the loop."""
        if size_bytes > SMALL_BYTES_MAX:
            self._made_bytes += size_bytes
            self._next_is_due()

    def wait(self, size_bytes: int = 0) -> PromptFuture[None]:
        """Settled in a later turn of the loop, for one large response. Cancel it to give up. `size_bytes`: what will be
        made of it, where that is not at once."""
        future: PromptFuture[None] = PromptFuture()
        self._waiting.append((future, size_bytes))
        self._next_is_due()
        return future

    def _next_is_due(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Another turn of the loop has begun."""
        self._due = False
        self._made_bytes = 0
        waiting = self._waiting
        while waiting and self._made_bytes < MADE_BYTES_MAX:
            future, size_bytes = waiting.popleft()
            if not future.done():  # not cancelled meanwhile
                self._made_bytes += max(SMALL_BYTES_MAX, size_bytes)  # for having looked, whatever comes of it
                future.set_result(None)
        if waiting:
            self._next_is_due()
