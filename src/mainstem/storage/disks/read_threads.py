"""Several threads make reads of a disk, for files that several threads may read at a time.

A disk that has one request at a time rests from the end of each until its thread has the interpreter again, which the
event loop may hold for tenths of a millisecond, and has made the next. With several requests it goes on with another.
That is for catch-up reads while nobody publishes: a commit waits for all that the disk was given before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from mainstem.storage.disks.disk_thread import DiskThread

T = TypeVar("T")

READS_TOGETHER = 4
"""Requests that a disk has at once: as many as the chunks that a read of many queues asks for together. The first
commit behind an idle time may wait for so many reads of 1 MiB, a few milliseconds."""


class ReadThreads:
    """Threads that share the reads; each starts with its first. The owner calls `close` after the last read."""

    def __init__(self, name: str, count: int = READS_TOGETHER) -> None:
        self._threads = [DiskThread(f"{name}-{number}") for number in range(1, count + 1)]

    async def run(self, work: Callable[[], T]) -> T:
        """Have the thread with the fewest jobs do this one. Returns and raises what the job does."""
        return await min(self._threads, key=_jobs_left).run(work)

    def give(self, work: Callable[[], T], over: Callable[[T | None, BaseException | None], None]) -> None:
        """As `run`, with `over` called by the event loop when the job is done."""
        min(self._threads, key=_jobs_left).give(work, over)

    async def idle(self) -> None:
        """Return when everything the threads were given so far is done."""
        await asyncio.gather(*(thread.idle() for thread in self._threads))

    async def close(self) -> None:
        """End the threads, once what they were given is done."""
        await asyncio.gather(*(thread.close() for thread in self._threads))


def _jobs_left(thread: DiskThread) -> int:
    return thread.jobs_left
