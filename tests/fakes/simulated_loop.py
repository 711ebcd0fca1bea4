"""An event loop on simulated time: it sleeps by moving its clock to the next timer, so that whole minutes pass in
microseconds and everything that happens on it depends on nothing but the code and the seeds given to it.

Work for threads is done by the loop itself, between two of its turns: one thread, no races with the outside, and
yet nobody gets a result on the turn on which it was asked for.

Tasks and futures are hashed by their number, in the order in which the loop made them, not by their address: sets of
them, those of `asyncio` itself included, are walked in the same order in every process. Otherwise a `TaskGroup` that
is cancelled would cancel its tasks in an order that depends on what memory looks like.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, ClassVar, Protocol, TypeVar

T = TypeVar("T")

STARTED_MS = 1_700_000_000_000


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait: what would have been waited is added to `elapsed_seconds`."""

    elapsed_seconds = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen again"
        self.elapsed_seconds += max(timeout, 0.0)
        return super().select(0)


class Told(Protocol):
    def __call__(self, at_seconds: float, callback: Callable[..., object], /) -> None: ...


class NumberedTask(asyncio.Task[T]):
    """Hashed by its number."""

    def __init__(
        self,
        number: int,
        work: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        self.number = number  # first: a task that is made is put into a set
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class NumberedFuture(asyncio.Future[Any]):
    """Hashed by its number."""

    def __init__(self, number: int, *, loop: asyncio.AbstractEventLoop) -> None:
        self.number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps; also a `ports.Clock`."""

    told: ClassVar[Told | None] = None
    """Is told of every callback that a loop is given: when, and which. Set in a process of its own (`steps.py`)."""

    def __init__(self, elapsed_seconds: float = 0.0) -> None:
        self._made = 0
        """Tasks and futures so far."""
        self._jumping = _JumpingSelector()
        self._jumping.elapsed_seconds = elapsed_seconds
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.elapsed_seconds

    def monotonic(self) -> float:
        return self._jumping.elapsed_seconds

    def now_ms(self) -> int:
        return STARTED_MS + int(self._jumping.elapsed_seconds * 1000)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self.told is not None:
            self.told(self.time(), callback)
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self.told is not None:
            self.told(when, callback)
        return super().call_at(when, callback, *args, context=context)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        self._made += 1
        return NumberedTask(self._made, coro, loop=self, name=None if name is None else str(name), context=context)

    def create_future(self) -> asyncio.Future[Any]:
        self._made += 1
        return NumberedFuture(self._made, loop=self)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that are not done, apart from the current one, oldest first. (`asyncio.all_tasks` has those of all
        loops in one set, whose order depends on what other loops have left there.)"""
        return sorted(asyncio.all_tasks(self) - {asyncio.current_task(self)}, key=hash)

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
