"""Finds records by time inside batches, without holding up the event loop.

It walks a plain batch where it lies, and yields to the loop after every half a megabyte. A compressed or a large batch
goes to the thread beside the loop; its result is remembered by queue and offset, so that a batch is costly to read only
once, in most cases for every time that clients ask for.
"""

from __future__ import annotations

from functools import partial

from mainstem.lru import Lru
from mainstem.ports import SideWork
from mainstem.protocol.records import Compression, RecordPosition, StoredBatch
from mainstem.protocol.records.lookup import BatchTimes, look_into
from mainstem.turns import Turns

REMEMBERED_MAX = 4096
"""Remembered batches, of at most 2 KB each: 8 MB."""

WALKED_AT_ONCE_BYTES = 512 * 1024
"""Bytes walked in one turn of the loop: half a millisecond, even with the smallest records."""

BATCHES_PER_TURN = 500
"""Batches checked in one turn of the loop: their headers alone take a millisecond."""

_Key = tuple[int, int, int, int]


class RecordLookups:
    """`looked_into` counts the batches that went beside the loop, `remembered` the answers that did not need to."""

    def __init__(self, side_work: SideWork, turns: Turns) -> None:
        self._side_work = side_work
        self._turns = turns
        self._kept: Lru[tuple[int, int, int], BatchTimes] = Lru(REMEMBERED_MAX)
        """Results by queue id, base offset, and the first offset that counts."""
        self._exact: Lru[_Key, tuple[RecordPosition | None]] = Lru(REMEMBERED_MAX)
        """Answers for one time (the last in the key) that a batch's `BatchTimes` cannot give."""
        self._walked = 0
        self._batches = 0
        self.looked_into = 0
        self.remembered = 0

    async def first(self, queue_id: int, batch: StoredBatch, timestamp: int, offset_min: int) -> RecordPosition | None:
        """The first record of a batch at `offset_min` or later with at least this timestamp."""
        if self._in_place(batch):
            return (await self._walk(batch, timestamp, offset_min)).found
        offset_min = max(offset_min, batch.header.base_offset)
        key = queue_id, batch.header.base_offset, offset_min
        known = self._kept.get(key)
        if known is not None and known.answers(timestamp):
            self.remembered += 1
            return known.first(timestamp)
        exact = self._exact.get((*key, timestamp))
        if exact is not None:
            self.remembered += 1
            return exact[0]
        times = await self._look_into(key, batch, timestamp)
        if not times.answers(timestamp):
            self._exact.put((*key, timestamp), (times.found,))
        return times.found

    async def greatest(self, queue_id: int, batch: StoredBatch, offset_min: int) -> RecordPosition | None:
        """The first record at `offset_min` or later with the greatest timestamp in a batch."""
        timestamp = batch.header.max_timestamp
        if self._in_place(batch):
            return (await self._walk(batch, timestamp, offset_min)).greatest
        offset_min = max(offset_min, batch.header.base_offset)
        key = queue_id, batch.header.base_offset, offset_min
        known = self._kept.get(key)
        if known is not None:
            self.remembered += 1
            return known.greatest
        return (await self._look_into(key, batch, timestamp)).greatest

    async def passed_over(self) -> None:
        """Count a batch that was judged by its header alone, and yield to the loop now and then."""
        self._batches += 1
        if self._batches >= BATCHES_PER_TURN:
            self._batches = 0
            await self._turns.take()

    def _in_place(self, batch: StoredBatch) -> bool:
        compressed = batch.header.compression_code != Compression.NONE
        return not compressed and len(batch.data) <= WALKED_AT_ONCE_BYTES

    async def _walk(self, batch: StoredBatch, timestamp: int, offset_min: int) -> BatchTimes:
        self._walked += len(batch.data)
        if self._walked >= WALKED_AT_ONCE_BYTES:
            self._walked = 0
            await self._turns.take()
        await self.passed_over()
        return look_into(batch, timestamp, offset_min)

    async def _look_into(self, key: tuple[int, int, int], batch: StoredBatch, timestamp: int) -> BatchTimes:
        self.looked_into += 1
        times = await self._side_work.run(partial(look_into, batch, timestamp, key[2]))
        self._kept.put(key, times)
        return times
