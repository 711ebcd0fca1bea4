"""An event loop on simulated time: it sleeps by moving its clock to the next timer, so that whole minutes pass in
microseconds and everything that happens on it depends on nothing but the code and the seeds given to it.

Work for threads is done by the loop itself, between two of its turns: one thread, no races with the outside, and
yet nobody gets a result on the turn on which it was asked for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

STARTED_MS = 1_700_000_000_000


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: what would have been waited is added to `elapsed_seconds`."""

    elapsed_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again"
        self.elapsed_seconds += max(timeout, 0.0)
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps; also a `ports.Clock`."""

    def __init__(self, elapsed_seconds: float = 0.0) -> None:
        self._jumping = _JumpingSelector()
        self._jumping.elapsed_seconds = elapsed_seconds
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.elapsed_seconds

    def monotonic(self) -> float:
        return self._jumping.elapsed_seconds

    def now_ms(self) -> int:
        return STARTED_MS + int(self._jumping.elapsed_seconds * 1000)

    def run_in_executor(  # type: ignore[override]  # typeshed spells the same with a type variable tuple
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.create_future()
        self.call_soon(self._work, future, func, args)
        return future

    def _work(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Like a thread's work, it is done whether or not somebody still waits for it."""
        try:
            result = func(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
