"""Reads of old messages, so many at a time for each tenant.

A node gives what they need in the order of asking: the pace that publishing leaves to reads, the thread that
reads a disk, the memory for what is on its way. A tenant waits there for the reads that others have under way, however
many more of theirs wait here. In a node without tenants there are no such turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

READS_TOGETHER_MAX = 8
"""Reads that a tenant has under way: twice as many as a disk has requests at once, so that it always has the next. Each
brings at most `fetch_disk_bytes_max`, a mebibyte at a time while producers publish."""


class ReadTurns:
    """The reads of each tenant that wait or are under way. Bounded by the callers: a connection has one read at a
    time."""

    def __init__(self) -> None:
        self._reads: dict[str, _TenantReads] = {}

    def __len__(self) -> int:
        """Of how many tenants there are any."""
        return len(self._reads)

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncGenerator[None, None]:
        """For the time of one read of a tenant, which begins when one of those before it is over."""
        reads = self._reads.setdefault(tenant, _TenantReads())
        reads.count += 1
        try:
            async with reads.turns:
                yield
        finally:
            reads.count -= 1
            if not reads.count:
                del self._reads[tenant]


class _TenantReads:
    __slots__ = ("count", "turns")

    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(READS_TOGETHER_MAX)
        self.count = 0
        """Reads that wait or are under way."""
