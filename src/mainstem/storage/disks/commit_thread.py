"""Hands durable writes to a thread that makes them without the interpreter.

A commit goes from the event loop to the thread, to the disk and back. A thread in Python would wait for the interpreter
on the way there and on the way back, and hold the event loop up each time; on a busy node that was as much as the disk
took. So the kernel has the thread (docs/decisions/0194-commits-do-not-wait-for-the-interpreter.md), and an eventfd
wakes the event loop.

A second one, of lower rank, fills files with zeros in memory.

Writes are made in the order they were given, and never abandoned: when a waiting caller is cancelled its write is still
made, and `idle` tells when.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence

from mainstem.kernel import DurableWriter
from mainstem.model import Buffer

_NO_FILE = -1


class CommitThread:
    """Makes durable writes, or writes zeros, on a thread that starts with the first. The owner calls `close` then."""

    def __init__(self, writer: DurableWriter | None = None) -> None:
        """`writer`: the kernel's own, unless it is said."""
        self._writer = writer or DurableWriter()
        self._waiting: deque[asyncio.Future[int]] = deque()
        """Of the writes that are not over, in their order; bounded by the callers: the journal has one under way."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that waits for the writer."""

    async def write(self, descriptor: int, position: int, buffers: Sequence[Buffer], *, whole_file: bool) -> None:
        """Return when the buffers are on the disk, and with `whole_file` all that was written to the file before.
        Raises `OSError`."""
        if error := await self._begun(descriptor, position, buffers, whole_file):
            raise OSError(error, os.strerror(error))

    async def write_zeros(self, descriptor: int, position: int, count: int) -> float:
        """Return when so many zeros are written, in memory: the seconds of the processor that the thread's zeros took
        meanwhile. Raises `OSError`."""
        done, before = self._awaited(), self._writer.zeros_seconds
        self._writer.begin_zeros(descriptor, position, count)
        self._waiting.append(done)
        if error := await done:
            raise OSError(error, os.strerror(error))
        return self._writer.zeros_seconds - before

    async def idle(self) -> None:
        """Return when all writes that were given so far are over."""
        if self._waiting:
            await self._begun(_NO_FILE, 0, (), False)

    async def close(self) -> None:
        """End the thread, once what it was given is over."""
        await self.idle()
        if self._loop is not None:
            self._loop.remove_reader(self._writer.wake)
            self._loop = None
            await asyncio.to_thread(self._writer.close)

    def _begun(
        self, descriptor: int, position: int, buffers: Sequence[Buffer], whole_file: bool
    ) -> asyncio.Future[int]:
        done = self._awaited()
        self._writer.begin(descriptor, position, buffers, whole_file)
        self._waiting.append(done)
        return done

    def _awaited(self) -> asyncio.Future[int]:
        """The outcome of a write that is to be begun."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            loop.add_reader(self._writer.wake, self._settle)
            self._loop = loop
        return loop.create_future()

    def _settle(self) -> None:
        for error in self._writer.over():
            done = self._waiting.popleft()
            if not done.done():  # else the caller was cancelled
                done.set_result(error)
