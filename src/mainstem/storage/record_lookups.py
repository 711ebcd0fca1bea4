"""Looking into batches for records of some time, without holding up the event loop.

A plain batch is walked where it lies, the loop's turn given up after every half a megabyte. A compressed or a large one
goes to the thread beside the loop. What was found out there is remembered by queue and offset, so that a batch that is
costly to look into is so once, whoever asks, and for whatever time in most cases.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from mainstem.ports import SideWork
from mainstem.protocol.records import Compression, RecordPosition, StoredBatch
from mainstem.protocol.records.lookup import BatchTimes, look_into
from mainstem.turns import Turns

REMEMBERED_MAX = 4096
"""Batches, of at most 2 KB each: 8 MB."""

WALKED_AT_ONCE_BYTES = 512 * 1024
"""Walked in one turn of the loop: half a millisecond, even if the records are as small as can be."""

BATCHES_PER_TURN = 500
"""Looked at in one turn of the loop: their headers alone take a millisecond."""

_Key = tuple[int, int, int, int]


class RecordLookups:
    """`looked_into` counts the batches that went beside the loop, `remembered` the answers that did not need to."""

    def __init__(self, side_work: SideWork, turns: Turns) -> None:
        self._side_work = side_work
        self._turns = turns
        self._kept: OrderedDict[tuple[int, int, int], BatchTimes] = OrderedDict()
        """By queue id, base offset, and the first offset that counts."""
        self._exact: OrderedDict[_Key, RecordPosition | None] = OrderedDict()
        """Answers for one time (the last in the key) that a batch's `BatchTimes` cannot give."""
        self._walked = 0
        self._batches = 0
        self.looked_into = 0
        self.remembered = 0

    async def first(
        self, queue_id: int, batch: StoredBatch, timestamp: int, offset_min: int
    ) -> RecordPosition | None:
        """The first record of a batch at `offset_min` or later with at least this timestamp."""
        if self._in_place(batch):
            return (await self._walk(batch, timestamp, offset_min)).found
        offset_min = max(offset_min, batch.header.base_offset)
        key = queue_id, batch.header.base_offset, offset_min
        known = self._kept.get(key)
        if known is not None and known.answers(timestamp):
            self.remembered += 1
            self._kept.move_to_end(key)
            return known.first(timestamp)
        if (*key, timestamp) in self._exact:
            self.remembered += 1
            self._exact.move_to_end((*key, timestamp))
            return self._exact[*key, timestamp]
        times = await self._look_into(key, batch, timestamp)
        if not times.answers(timestamp):
            self._exact[*key, timestamp] = times.found
            if len(self._exact) > REMEMBERED_MAX:
                self._exact.popitem(last=False)
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
            self._kept.move_to_end(key)
            return known.greatest
        return (await self._look_into(key, batch, timestamp)).greatest

    async def passed_over(self) -> None:
        """A batch was looked at by its header alone."""
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
        self._kept[key] = times
        if len(self._kept) > REMEMBERED_MAX:
            self._kept.popitem(last=False)
        return times
