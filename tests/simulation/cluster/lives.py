"""An event loop that several simulated processes share, each of which can be stopped, continued and killed.

All code of a process runs in a context that names its `Life`: tasks inherit it, and so do callbacks and timers. While a
life is stopped (SIGSTOP) its callbacks and timers are kept as they come due, and run in that order once it is
continued. A killed life stays stopped for ever: not even a `finally` of it runs. Only when the run is over the dead are
let go (`bury`), with disks and network switched off, so that their tasks end."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.fakes.simulated_loop import STARTED_MS, SimulatedLoop

T = TypeVar("T")

_LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("life", default=None)

BURIAL_SECONDS = 600.0
"""Simulated; whatever a dead process waited for has ended by then."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, node_id: int, number: int) -> None:
        self.node_id = node_id
        self.number = number
        self.alive = True
        self.stopped = False
        self.over = asyncio.Event()
        """It is not alive any more."""
        self.kept: list[_OfLife] = []
        """The callbacks that came due while it was stopped."""
        self.context = contextvars.copy_context()
        self.context.run(_LIFE.set, self)

    def __repr__(self) -> str:
        return f"life {self.number} of node {self.node_id}"


class _OfLife(asyncio.Handle):
    """The timers of a life, and is kept while that is stopped."""

    __slots__ = ()
    life: Life
    callback: Callable[..., Any]

    def _run(self) -> None:
        if self.life.stopped:
            self.life.kept.append(self)
        else:
            super()._run()


class _LifeHandle(_OfLife):
    """A callback of a life."""

    __slots__ = ("callback", "life")


class _LifeTimer(_OfLife, asyncio.TimerHandle):
    """A timer of a life."""

    __slots__ = ("callback", "life")


class ClusterLoop(SimulatedLoop):
    """The loop of all nodes, and of their clients, who have no life. There is no socket on it, so it never asks."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0

    _ready: deque[asyncio.Handle]

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def now_ms(self) -> int:
        return STARTED_MS + int(self._now * 1000)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        if self.told is not None:
            self.told(self._now, callback)
        life = context.get(_LIFE)
        if life is None:
            handle = asyncio.Handle(callback, args, self, context)
        else:
            handle = _LifeHandle(callback, args, self, context)
            handle.life, handle.callback = life, callback
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        if context is None:
            context = contextvars.copy_context()
        if self.told is not None:
            self.told(when, callback)
        life = context.get(_LIFE)
        if life is None:
            handle = asyncio.TimerHandle(when, callback, args, self, context)
        else:
            handle = _LifeTimer(when, callback, args, self, context)
            handle.life, handle.callback = life, callback
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _run_once(self) -> None:
        """One turn: when nothing is ready, time moves to the next timer."""
        ready, timers = self._ready, self._timers
        while not ready:
            assert timers, "nothing will ever happen again"
            when, _, timer = heapq.heappop(timers)
            if not timer.cancelled():
                self._now = max(self._now, when)
                ready.append(timer)
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001  # how every event loop runs a handle

    def stop_life(self, life: Life) -> None:
        life.stopped = True

    def continue_life(self, life: Life, lost: Callable[..., Any] | None = None) -> None:
        """`lost`: what this callback would have brought meanwhile never comes."""
        assert life.alive, f"{life} is over"
        life.kept = [handle for handle in life.kept if handle.callback != lost]
        self._release(life)

    def kill(self, life: Life) -> None:
        life.alive = False
        life.stopped = True
        life.over.set()

    def run_in(self, life: Life, coroutine: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """A task of this process."""
        return self.create_task(coroutine, name=name or None, context=life.context.copy())

    async def bury(self, lives: list[Life]) -> None:
        """Let everything end that runs for these lives. Nobody is interested in how."""
        for life in lives:
            life.alive = False
            self._release(life)
        tasks = self.tasks()
        for task in tasks:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), BURIAL_SECONDS)

    def _release(self, life: Life) -> None:
        life.stopped = False
        kept, life.kept = life.kept, []
        self._ready.extend(kept)
