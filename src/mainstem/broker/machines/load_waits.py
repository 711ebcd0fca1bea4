"""Requests that wait for the log of their coordinator, which is being loaded, instead of being told to ask again.

A client that has just been told of its coordinator comes while the log is being read, a matter of milliseconds where
the topic is new, and some clients take the refusal for the end of their membership. Waiting is bounded, in time and in
number: past either bound the request is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAITING_MAX = 1000
"""Requests of one topic that wait at the same time."""


class LoadWaits:
    """Of the partitions of one topic, by number."""

    def __init__(self, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._waiting = 0
        self._changes: dict[int, asyncio.Event] = {}
        """Of partitions for which somebody waits."""

    async def wait(self, index: int, is_loading: Callable[[], bool], seconds_max: float) -> None:
        """Return as soon as the partition is not being loaded, or when this one has waited for long enough, or at once
        when many wait already."""
        if not is_loading() or self._waiting >= self._waiting_max:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds_max):
                while is_loading():
                    await self._changes.setdefault(index, asyncio.Event()).wait()
        except TimeoutError:
            pass
        finally:
            self._waiting -= 1

    def changed(self, index: int) -> None:
        """The partition was loaded, or is served here no more: those that wait look again."""
        if (change := self._changes.pop(index, None)) is not None:
            change.set()

    def end(self) -> None:
        """The topic is served here no more."""
        for index in list(self._changes):
            self.changed(index)
