"""Chunks of a file that are asked for at the same time and lie beside each other are read in one request to the disk.

A request of several chunks keeps the disk busy for as long as it takes to have the interpreter back and to make the
next; the way to a reading thread and back, and the system call, are paid once for all of them. Each chunk has memory of
its own, so that none is held because of its neighbours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from mainstem.model import Buffer
from mainstem.storage.disks.chunk_memory import CHUNK_BYTES
from mainstem.storage.disks.disk_reads import DirectReads
from mainstem.storage.disks.read_threads import ReadThreads

CHUNKS_TOGETHER = 4
"""Chunks of one request. With four threads a disk has 16 MiB to do at a time, some ten milliseconds, which the first
commit behind an idle time may have to wait for, once. Eight gained nothing: the first of them waits for the last."""

_Asked = tuple[int, asyncio.Future[Buffer]]
"""A position, and what its reader waits for."""


class NeighbourReads:
    """Reads whole chunks of one file, together those that are asked for in one turn of the event loop."""

    def __init__(self, reads: DirectReads, threads: ReadThreads) -> None:
        self._reads = reads
        self._threads = threads
        self._asked: list[_Asked] = []
        """Since the last turn; bounded by the readers, each of which waits for what it asked for."""

    async def read(self, position: int) -> Buffer:
        """Return the chunk at a position; shorter at the end of the file."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Buffer] = loop.create_future()
        if not self._asked:
            loop.call_soon(self._begin)
        self._asked.append((position, done))
        return await done

    def _begin(self) -> None:
        asked, self._asked = sorted(self._asked, key=lambda one: one[0]), []
        first = 0
        for at in range(1, len(asked) + 1):
            if at == len(asked) or at - first == CHUNKS_TOGETHER or asked[at][0] != asked[at - 1][0] + CHUNK_BYTES:
                some = asked[first:at]
                self._threads.give(partial(self._read, some[0][0], len(some)), partial(_settle, some))
                first = at

    def _read(self, position: int, count: int) -> list[Buffer | OSError]:
        if count > 1:
            try:
                found = self._reads.read_neighbours(position, count)
            except OSError:  # of one of them: each by itself tells which
                found = None
            if found is not None:
                return [*found]
        return [self._alone(position + at * CHUNK_BYTES) for at in range(count)]

    def _alone(self, position: int) -> Buffer | OSError:
        try:
            return self._reads.read_at_once(position, CHUNK_BYTES)
        except OSError as error:
            return error


def _settle(asked: Sequence[_Asked], found: Sequence[Buffer | OSError] | None, error: BaseException | None) -> None:
    """`found` counts where there is no error."""
    for at, (_position, done) in enumerate(asked):
        outcome = error if error is not None or found is None else found[at]
        if done.done():  # the reader was cancelled
            continue
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        elif outcome is not None:
            done.set_result(outcome)
