"""Gives memory back that the operating system holds segments in, where memory for new ones is slow to come.

The host of a virtual machine may give memory only once it is touched, which takes some milliseconds for a megabyte. The
event loop, which copies blocks to the page cache, waits for it, and everybody with the loop. Memory
that was just given back is there at once. So once writes have been slow, the journal has the system forget the pages of
segments that are on the disk, but for the newest: what comes next finds their memory. As long as writes are fast it
only remembers which segments these would be, and the system keeps all that it likes.

Under `sync` durability a thread of the disk waits for memory, and none of this is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainstem.ports import File
from mainstem.supervised import Supervision

SEGMENTS_KEPT = 4
"""The newest that are on the disk stay in memory: at the default size as much as the write cache holds, and what a
splitter that keeps up reads."""

SEGMENTS_REMEMBERED = 16
"""So many can be given back as soon as a write was slow: what a flood brings in two or three seconds. Each has its file
open."""

LARGE_BYTES_MIN, LARGE_BYTES_MAX = 256 * 1024, 2 * 1024 * 1024
"""The time of a smaller write tells nothing: some other thread may have had the processor. Nor does that of a larger
one, which a thread makes beside the event loop."""

SLOW_SECONDS_PER_BYTE = 1.2e-9
"""A megabyte takes 0.15 to 0.5 ms where memory is there, and 2 to 7 where the host has to give it."""

SLOW_WRITES = 2
"""So many within `SLOW_WITHIN_SECONDS` show it: a single one may have waited for something else."""

SLOW_WITHIN_SECONDS = 0.2

SLOW_FOR_SECONDS = 600.0
"""Memory counts as slow for so long after that. Writes are fast while memory is given back, which says nothing of what
comes without it."""


class ResidentSegments:
    def __init__(self, monotonic: Callable[[], float], supervision: Supervision, turn: asyncio.Lock) -> None:
        """`turn` is held while a segment is given back, and by syncs: one of them has the processor at a time."""
        self._monotonic = monotonic
        self._supervision = supervision
        self._files: dict[int, File] = {}
        """Those of segments that are complete and on the disk, by sequence, oldest first."""
        self._slow_at = float("-inf")
        self._slow_writes = 0
        self._slow_until = float("-inf")
        self._wake = asyncio.Event()
        self._turn = turn
        self._task: asyncio.Task[None] | None = None
        self.forgotten = 0
        """Segments whose pages were given back."""

    @property
    def memory_is_slow(self) -> bool:
        """Whether memory is slow to come."""
        return self._monotonic() < self._slow_until

    def start(self) -> None:
        """Give back from now on; `close` ends it."""
        self._task = self._supervision.start(self._give_back, "journal memory")

    def wrote(self, size_bytes: int, seconds: float) -> None:
        """A write without sync took so long."""
        is_telling = LARGE_BYTES_MIN <= size_bytes <= LARGE_BYTES_MAX
        if not is_telling or seconds < SLOW_SECONDS_PER_BYTE * size_bytes:
            return
        now = self._monotonic()
        self._slow_writes = self._slow_writes + 1 if now - self._slow_at <= SLOW_WITHIN_SECONDS else 1
        self._slow_at = now
        if self._slow_writes >= SLOW_WRITES:
            self._slow_until = now + SLOW_FOR_SECONDS
            self._wake.set()

    def add(self, sequence: int, file: File) -> None:
        """Take over the file of a segment that is complete and on the disk."""
        self._files[sequence] = file
        self._wake.set()

    async def leave(self, sequence: int) -> None:
        """A segment is given up: nobody is to hold its file, whose room on the disk may be wanted."""
        if (file := self._files.pop(sequence, None)) is not None:
            await file.close()

    async def close(self) -> None:
        """Give nothing back any more, and close the files."""
        if self._task is not None:
            async with self._turn:  # a file that is being closed would stay open
                self._task.cancel()
            await asyncio.wait([self._task])
        while self._files:
            await self.leave(next(iter(self._files)))

    async def _give_back(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while await self._give_back_one():
                pass

    async def _give_back_one(self) -> bool:
        """Whether there was one too many."""
        is_slow = self.memory_is_slow
        if len(self._files) <= (SEGMENTS_KEPT if is_slow else SEGMENTS_REMEMBERED):
            return False
        async with self._turn:
            if not self._files:  # all were given up meanwhile
                return False
            file = self._files.pop(next(iter(self._files)))
            try:
                if is_slow:
                    await file.forget()
                    self.forgotten += 1
            finally:
                await file.close()
        return True
