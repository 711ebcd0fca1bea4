"""Reads of old messages, so many at a time for each of those who share the node (`Session.sharer`).

A node gives what they need in the order of asking: the pace that publishing leaves to reads, the thread that
reads a disk, the memory for what is on its way. A sharer waits there for the reads that others have under way, however
many more of theirs wait here. One whose reads are the only ones waits for nothing, unless there are tenants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

READS_TOGETHER_MAX = 8
"""Reads that a sharer has under way: twice as many as a disk has requests at once, so that it always has the next. Each
brings at most `fetch_disk_bytes_max`, a mebibyte at a time while producers publish."""


class ReadTurns:
    """The reads of each sharer that wait or are under way. Bounded by the callers: a connection has one read at a
    time."""

    def __init__(self) -> None:
        self._reads: dict[str, _SharersReads] = {}

    def __len__(self) -> int:
        """Of how many sharers there are any."""
        return len(self._reads)

    @asynccontextmanager
    async def of(self, sharer: str, *, always: bool) -> AsyncGenerator[None, None]:
        """For the time of one read of a sharer. It begins when one of those before it is over, if others read as well,
        or `always`."""
        reads = self._reads.setdefault(sharer, _SharersReads())
        reads.always = always
        if reads.waiting or (reads.under_way >= READS_TOGETHER_MAX and (always or len(self._reads) > 1)):
            begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            reads.waiting[begun] = None
            try:
                await begun
            except asyncio.CancelledError:
                reads.waiting.pop(begun, None)
                if not begun.cancelled():  # its turn has come
                    self._end(sharer, reads)
                raise
        else:
            reads.under_way += 1
        try:
            yield
        finally:
            self._end(sharer, reads)

    def _end(self, sharer: str, reads: _SharersReads) -> None:
        """A read is over: the next of its sharer begins, and all of one whose reads are the only ones now."""
        reads.under_way -= 1
        reads.begin(READS_TOGETHER_MAX)
        if not reads.under_way:
            del self._reads[sharer]
            if len(self._reads) == 1:
                (only,) = self._reads.values()
                if not only.always:
                    only.begin(only.under_way + len(only.waiting))


class _SharersReads:
    __slots__ = ("always", "under_way", "waiting")

    def __init__(self) -> None:
        self.always = False
        """Whether they take turns beside nobody as well."""
        self.under_way = 0
        self.waiting: dict[asyncio.Future[None], None] = {}

    def begin(self, together_max: int) -> None:
        """Let those that wait begin, so that so many are under way."""
        while self.waiting and self.under_way < together_max:
            begun = next(iter(self.waiting))
            del self.waiting[begun]
            if not begun.done():  # it was given up just now
                self.under_way += 1
                begun.set_result(None)
