"""Which logs of an internal topic are loaded first: a few at a time, those that somebody asks for before others.

All of them side by side would all be ready at the end alone; in turns, the groups of the first ones go on much sooner,
and nothing takes longer. A log that gets nowhere while others wait, for a disk or another node, goes behind them.

To write a log afresh takes three times as long as to load it, and nobody waits for that: it begins when all logs are
loaded, and one log does it at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping

AT_ONCE = 2
"""Logs that are loaded side by side: while one waits for its disk, the other is replayed."""

PATIENCE_SECONDS = 1.0
"""For which those in front may get nowhere while others wait."""


class LoadTurns:
    """Of the logs of one topic."""

    def __init__(self, at_once: int = AT_ONCE, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._at_once = at_once
        self._patience_seconds = patience_seconds
        self._loading: list[Hashable] = []
        """In the order in which they go on."""
        self._slices: dict[Hashable, int] = {}
        """How many each has done."""
        self._changed = asyncio.Event()
        self._rewritten: Hashable | None = None
        """The log that is being written afresh."""
        self._to_rewrite: dict[Hashable, Callable[[], None]] = {}
        """Those that wait for that, with the call by which they hear that they may ask again."""

    async def take(self, log: Hashable) -> None:
        """A slice of a load is done: return when it is time for the next."""
        if log not in self._slices:
            self._loading.append(log)
        self._slices[log] = self._slices.get(log, 0) + 1
        if log in self._loading[: self._at_once]:
            await asyncio.sleep(0)
        while log in self._loading[self._at_once :]:
            before = {first: self._slices[first] for first in self._loading[: self._at_once]}
            try:
                async with asyncio.timeout(self._patience_seconds):
                    self._changed.clear()
                    await self._changed.wait()
            except TimeoutError:
                self._put_back(before)

    def _put_back(self, before: Mapping[Hashable, int]) -> None:
        """A log that has got nowhere since `before` goes behind the others."""
        for first, slices in before.items():
            if self._slices.get(first) == slices and first in self._loading[: self._at_once]:
                self._loading.remove(first)
                self._loading.append(first)
                self._changed.set()

    def prefer(self, log: Hashable) -> None:
        """Somebody asks for a log that is being loaded: it goes before those that nobody has asked for yet."""
        if log in self._loading[self._at_once :]:
            self._loading.remove(log)
            self._loading.insert(self._at_once - 1, log)
            self._changed.set()

    def ended(self, log: Hashable) -> None:
        """A load has come to its end, or has failed."""
        if self._slices.pop(log, None) is not None:
            self._loading.remove(log)
            self._changed.set()
            self._let_rewrite()

    def may_rewrite(self, log: Hashable, tell: Callable[[], None]) -> bool:
        """Whether a log may be written afresh now; it does so until `rewrite_ended`. If not, `tell` is called when it
        may ask again."""
        if self._loading or self._rewritten is not None:
            self._to_rewrite[log] = tell
            return False
        self._to_rewrite.pop(log, None)
        self._rewritten = log
        return True

    def rewrite_ended(self, log: Hashable) -> None:
        """A log was written afresh, or will not be: it need not have begun."""
        self._to_rewrite.pop(log, None)
        if self._rewritten is log:
            self._rewritten = None
            self._let_rewrite()

    def _let_rewrite(self) -> None:
        """Have all that wait ask again, if one of them may begin."""
        if self._loading or self._rewritten is not None:
            return
        waiting, self._to_rewrite = self._to_rewrite, {}
        for tell in waiting.values():
            tell()
