"""Orders changes of topics: each waits its turn among those of the same topics, and runs beside all others.

A change touches metadata and queues, and may wait long for a write group without a leader. Two changes of one topic
follow each other in the order in which they were begun; a change of several topics waits for every change that is
before it at any of them. Changes cannot wait in a circle: a change takes its place at all its topics at once. Those
that one change kept waiting go on in the order in which they were begun (hence dictionaries without values where sets
would do: a set has no order).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class TopicChanges:
    """Holds the changes in line per topic. Bounded by the clients' requests: each makes one change at a
    time."""

    def __init__(self) -> None:
        self._newest: dict[str, dict[_Change, None]] = {}
        """By topic: the changes that its next change waits for."""

    @asynccontextmanager
    async def of(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Hold these topics while they are changed."""
        change = _Change(dict.fromkeys(names))
        for name in change.names:
            change.wait_for(self._newest.get(name, ()))
            self._newest[name] = {change: None}
        try:
            await change.turn()
            yield
        finally:
            change.end()
            for name in change.names:
                self._leave(name, change)

    @property
    def topics_in_line(self) -> int:
        """Topics that are being changed, or whose changes wait."""
        return len(self._newest)

    def _leave(self, name: str, change: _Change) -> None:
        newest = self._newest[name]
        if change in newest:
            del newest[change]
            newest |= {earlier: None for earlier in change.before if name in earlier.names}
        if not newest:
            del self._newest[name]


class _Change:
    """One change in line: it begins once no other is `before` it any more."""

    def __init__(self, names: dict[str, None]) -> None:
        self.names = names
        self.before: dict[_Change, None] = {}
        self.behind: dict[_Change, None] = {}
        """Those that have this one before them."""
        self._free = asyncio.Event()

    def wait_for(self, others: Iterable[_Change]) -> None:
        for other in others:
            self.before[other] = None
            other.behind[self] = None

    async def turn(self) -> None:
        if self.before:
            await self._free.wait()

    def go(self) -> None:
        """None is before it any more."""
        self._free.set()

    def end(self) -> None:
        """The change is over, or was given up while it waited: then those behind it wait for those before
        it."""
        for earlier in self.before:
            earlier.behind.pop(self, None)
        for later in self.behind:
            later.before.pop(self, None)
            later.wait_for(self.before)
            if not later.before:
                later.go()
