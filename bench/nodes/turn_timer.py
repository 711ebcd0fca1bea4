"""Times the turns of an event loop, in processor time of the loop's own thread."""

from __future__ import annotations

import asyncio
import asyncio.events
import time
from typing import NamedTuple


class LoopTurns(NamedTuple):
    """Of an event loop since it was asked last, in milliseconds of its thread's processor time."""

    longest: float
    all: float
    what: str
    """The callback that took longest."""


def _told(handle: asyncio.Handle) -> str:
    """The callback, and the coroutine of the task that it goes on with, where asyncio tells."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    return repr(task.get_coro() if isinstance(task, asyncio.Task) else handle)[:150]


class TurnTimer:
    """Times every callback of asyncio's own loops in this process, from its making on; uvloop's pass it by."""

    def __init__(self) -> None:
        self._longest = self._all = 0.0
        self._what = ""
        run = asyncio.events.Handle._run  # noqa: SLF001  # asyncio has no other place where all callbacks pass
        timer = self

        def timed(self: asyncio.Handle) -> None:
            started = time.thread_time()
            try:
                run(self)
            finally:
                took = time.thread_time() - started
                timer._all += took
                if took > timer._longest:
                    timer._longest, timer._what = took, _told(self)

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001

    def take(self) -> LoopTurns:
        turns = LoopTurns(1000 * self._longest, 1000 * self._all, self._what)
        self._longest = self._all = 0.0
        self._what = ""
        return turns
