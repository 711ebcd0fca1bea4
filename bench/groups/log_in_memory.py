"""The log of one partition of `__consumer_offsets` in memory: as much of a storage as a coordinator asks for."""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from mainstem.model import AppendResult, BatchAppend, Outcome, QueueOffsets, QueueRead, QueueSlice, Tier
from mainstem.prompt_future import PromptFuture

QUEUE_ID = 1 << 32


class LogInMemory:
    """`MessageStore` and `QueueAdmin` of one queue. Every append is committed in the next turn of the event loop."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self._bases: list[int] = []
        self._batches: list[bytes] = []

    def append(
        self, batches: Sequence[BatchAppend], acks: int, *, owner_epoch: int | None = None
    ) -> PromptFuture[list[AppendResult]]:
        committed: PromptFuture[list[AppendResult]] = PromptFuture()
        asyncio.get_running_loop().call_soon(committed.set_result, [self._append(batch) for batch in batches])
        return committed

    def _append(self, batch: BatchAppend) -> AppendResult:
        data = bytearray(batch.data)
        struct.pack_into(">q", data, 0, self.end)
        self._bases.append(self.end)
        self._batches.append(bytes(data))
        base, self.end = self.end, self.end + batch.last_offset_delta + 1
        return AppendResult(Outcome.OK, base, log_start_offset=self.start)

    def offsets(self, queue_ids: Sequence[int]) -> PromptFuture[list[QueueOffsets | None]]:
        return PromptFuture.settled([self._offsets])

    @property
    def _offsets(self) -> QueueOffsets:
        return QueueOffsets(self.start, self.end, self.end, 0, self.end)

    async def read(self, reads: Sequence[QueueRead], bytes_max: int) -> list[QueueSlice]:
        [read] = reads
        found: list[Any] = []
        size = 0
        for data in self._batches[max(bisect_right(self._bases, read.offset) - 1, 0) :]:
            if found and size + len(data) > bytes_max:
                break
            found.append(data)
            size += len(data)
        return [QueueSlice(QUEUE_ID, Outcome.OK, found, self._offsets, Tier.WRITE_CACHE)]

    async def truncate(self, before: Mapping[int, int]) -> dict[int, Any]:
        self.start = max(self.start, *before.values())
        gone = max(bisect_right(self._bases, self.start) - 1, 0)
        del self._bases[:gone], self._batches[:gone]
        return {QUEUE_ID: self.start}

    async def own(self, queue_id: int, *, held: int | None = None) -> int:
        return 1
