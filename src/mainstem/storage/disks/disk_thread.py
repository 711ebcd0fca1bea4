"""A disk thread runs one kind of work on a disk, one job after the other, with as little as possible around each.

The journal's writes with their syncs have one of their own so that no other work of the disk delays them. It is not an
executor because handing a job over and back is a third of what a small write costs: here a job crosses a queue in C on
the way there and one wake-up of the event loop on the way back.

Jobs run in the order they were given and are never abandoned: when a waiting caller is cancelled its job is still done,
and `idle` tells when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    __slots__ = ("loop", "over", "work")

    def __init__(self, work: Callable[[], T], over: Callable[[T | None, BaseException | None], None]) -> None:
        """`over` is called by the event loop with what the job returned or raised."""
        self.work = work
        self.over = over
        self.loop = asyncio.get_running_loop()


def _settle(done: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    """`result` counts where there is no error."""
    if done.done():  # the caller was cancelled
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class DiskThread:
    """Runs jobs on one thread, which starts with the first job. The owner calls `close` after the last."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        """The jobs; bounded by their callers: the journal has one under way at a time, each reader of a file one."""
        self._thread: Thread | None = None
        self._given = 0
        """Jobs put into the queue, counted by the event loop…"""
        self._done = 0
        """…and jobs that are over, counted by the thread."""

    @property
    def jobs_left(self) -> int:
        """How many jobs wait or are under way, those of cancelled callers included."""
        return self._given - self._done

    async def run(self, work: Callable[[], T]) -> T:
        """Have the thread do a job behind those it was given before. Returns and raises what the job does."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.give(work, partial(_settle, done))
        return await done

    def give(self, work: Callable[[], T], over: Callable[[Any, BaseException | None], None]) -> None:
        """As `run`, with `over` called by the event loop with what the job returned, or raised."""
        if self._thread is None:
            # a process that ends without `close` must not wait for it for ever
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        job = _Job(work, over)
        self._given += 1
        self._jobs.put(job)

    async def idle(self) -> None:
        """Return when everything the thread was given so far is done."""
        if self._thread is not None:
            await self.run(_nothing)

    async def close(self) -> None:
        """End the thread, once what it was given is done."""
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as raised:  # every exception belongs to the caller
                error = raised
            self._done += 1
            try:
                job.loop.call_soon_threadsafe(job.over, result, error)
            except RuntimeError:  # the loop is closed, no caller waits any more
                pass
            del job, result, error  # not held until the next job comes


def _nothing() -> None:
    pass
