"""Changes of topics, each in its turn among those of the same topics, and beside all others.

A change touches metadata and queues, and may wait long for a write group without a leader. Two changes of one topic
follow each other in the order in which they were begun; a change of several topics waits for whoever is before it at
any of them. Nobody waits in a circle: a change takes its place at all its topics at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager


class TopicChanges:
    """Bounded by who changes something: each request is one change at a time."""

    def __init__(self) -> None:
        self._newest: dict[str, set[_Change]] = {}
        """By topic: whom the next change of it waits for."""

    @asynccontextmanager
    async def of(self, names: Iterable[str]) -> AsyncIterator[None]:
        """While these topics are changed."""
        change = _Change(frozenset(names))
        for name in change.names:
            change.wait_for(self._newest.get(name, set()))
            self._newest[name] = {change}
        try:
            await change.turn()
            yield
        finally:
            change.end()
            for name in change.names:
                self._leave(name, change)

    def _leave(self, name: str, change: _Change) -> None:
        newest = self._newest[name]
        if change in newest:
            newest.discard(change)
            newest |= {earlier for earlier in change.before if name in earlier.names}
        if not newest:
            del self._newest[name]


class _Change:
    """One in line: begun once nobody is `before` it any more."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.before: set[_Change] = set()
        self._behind: set[_Change] = set()
        self._free = asyncio.Event()

    def wait_for(self, others: Iterable[_Change]) -> None:
        for other in others:
            self.before.add(other)
            other._behind.add(self)

    async def turn(self) -> None:
        if self.before:
            await self._free.wait()

    def end(self) -> None:
        """Over, or given up while it waited: then those behind it wait for those before it."""
        for earlier in self.before:
            earlier._behind.discard(self)
        for later in self._behind:
            later.before.discard(self)
            later.wait_for(self.before)
            if not later.before:
                later._free.set()
