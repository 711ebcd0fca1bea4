"""Times the turns of an event loop, in processor time of the loop's own thread."""

from __future__ import annotations

import asyncio
import asyncio.events
import gc
import time
from typing import NamedTuple


class LoopTurns(NamedTuple):
    """Of an event loop since it was asked last, in milliseconds of its thread's processor time."""

    longest: float
    all: float
    what: str
    """The callback that took longest."""
    collections: float
    """The part of the longest that collections of garbage took."""


def _told(handle: asyncio.Handle) -> str:
    """The callback, and the coroutine of the task that it goes on with, where asyncio tells."""
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle)[:150]
    waits_in = task.get_stack(limit=1)
    where = f" at {waits_in[-1].f_code.co_qualname}" if waits_in else ""
    return f"{task.get_name()}{where}: {task.get_coro()!r}"[:150]


class TurnTimer:
    """Times every callback of asyncio's own loops in this process, from its making on; uvloop's pass it by."""

    def __init__(self) -> None:
        self._longest = self._all = self._collections = 0.0
        self._what = ""
        self._collecting_since = self._collected = 0.0
        gc.callbacks.append(self._collector)
        run = asyncio.events.Handle._run  # noqa: SLF001  # asyncio has no other place where all callbacks pass
        timer = self

        def timed(self: asyncio.Handle) -> None:
            started = time.thread_time()
            timer._collected = 0.0
            try:
                run(self)
            finally:
                took = time.thread_time() - started
                timer._all += took
                if took > timer._longest:
                    timer._longest, timer._what, timer._collections = took, _told(self), timer._collected

        asyncio.events.Handle._run = timed  # type: ignore[method-assign]  # noqa: SLF001

    def _collector(self, phase: str, info: object) -> None:
        if phase == "start":
            self._collecting_since = time.thread_time()
        else:
            self._collected += time.thread_time() - self._collecting_since

    def take(self) -> LoopTurns:
        turns = LoopTurns(1000 * self._longest, 1000 * self._all, self._what, 1000 * self._collections)
        self._longest = self._all = self._collections = 0.0
        self._what = ""
        return turns
