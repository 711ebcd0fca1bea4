"""Reads of files for the cache: at the pace that the disk has for them, and so many bytes under way at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mainstem.model import Buffer
from mainstem.ports import Clock
from mainstem.storage.read_cache.bytes_under_way import BytesUnderWay
from mainstem.storage.read_cache.extent import CachedFile


class PacedReads:
    """Reads parts of files."""

    def __init__(
        self,
        clock: Clock,
        *,
        bytes_per_second: int,
        sleep: Callable[[float], Awaitable[None]],
        pace: Callable[[int], Awaitable[bool]] | None,
        under_way: BytesUnderWay | None,
    ) -> None:
        """`bytes_per_second` 0, `under_way` None: without a bound. `pace` as `ReadCache` has it."""
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._sleep = sleep
        self._pace = pace
        self._under_way = under_way
        self._paid_until = 0.0
        self.bytes = 0
        """Read so far."""

    async def read(self, source: CachedFile, position: int, length: int) -> Buffer:
        if self._under_way is None:
            return await self.read_now(source, position, length)
        async with self._under_way.of(length):
            return await self.read_now(source, position, length)

    async def read_now(self, source: CachedFile, position: int, length: int) -> Buffer:
        at_once = await self.paced(length)
        data = await source.read(position, length, at_once=at_once)
        self.bytes += len(data)
        return data

    async def paced(self, length: int) -> bool:
        """Return when so many bytes may be read; whether no commits want the disk."""
        if self._bytes_per_second:
            now = self._clock.monotonic()
            start = max(self._paid_until, now)
            self._paid_until = start + length / self._bytes_per_second
            if start > now:
                await self._sleep(start - now)
        return self._pace is not None and await self._pace(length)
