"""The local `MessageStore`: what a broker in the same process appends to and reads from.

`append` runs to its end on the caller's turn of the event loop: checks, offsets and the copy into the open
blocks are done when it returns; only the disk is waited for. `read` answers from memory on the spot where it
can and goes to the disks, one queue after the other, where it cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from mainstem.model import (
    AppendResult,
    BatchAppend,
    Outcome,
    QueueOffsets,
    QueueRead,
    QueueSlice,
    TimestampOffset,
)
from mainstem.ports import Clock
from mainstem.protocol.records import read_batch_header, stamp_log_append_time
from mainstem.storage.offset_lookup import OffsetLookup
from mainstem.storage.read_path import ReadPath
from mainstem.storage.waiters import Waiters
from mainstem.storage.write_group import Ticket, WriteGroup
from mainstem.storage.write_loop import WriteLoop


def with_log_append_time(batch: BatchAppend, now_ms: int) -> BatchAppend:
    """The batch with the broker's time for its timestamps, and the CRC that goes with it."""
    data = bytearray(batch.data)
    stamp_log_append_time(data, now_ms)
    header = read_batch_header(data)
    return batch._replace(
        data=memoryview(data), max_timestamp=now_ms, crc=header.checksum, attributes=header.attributes
    )


class LocalMessageStore:
    """`ports.MessageStore` over the write groups of this node."""

    def __init__(
        self,
        groups: Sequence[WriteGroup],
        group_of: Callable[[int], int],
        write_loop: WriteLoop,
        read_path: ReadPath,
        lookup: OffsetLookup,
        waiters: Waiters,
        clock: Clock,
        *,
        batch_bytes_max: int,
        backlog_bytes_max: int,
    ) -> None:
        self._groups = groups
        self._group_of = group_of
        self._write_loop = write_loop
        self._read_path = read_path
        self._lookup = lookup
        self._waiters = waiters
        self._clock = clock
        self._batch_bytes_max = batch_bytes_max
        self._backlog_bytes_max = backlog_bytes_max
        self.refusing = False
        """Disk 1 is too full for anything but control blocks."""
        self.refused_batches = 0

    @property
    def appended_bytes(self) -> int:
        """Bytes of batches appended since the start; what was refused or a duplicate is not among them."""
        return sum(group.appended_bytes for group in self._groups)

    @property
    def appended_batches(self) -> int:
        return sum(group.appended_batches for group in self._groups)

    # --- append -------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[BatchAppend], acks: int) -> asyncio.Future[list[AppendResult]]:
        future: asyncio.Future[list[AppendResult]] = asyncio.get_running_loop().create_future()
        refusal = self._refusal()
        if refusal is not None:
            self.refused_batches += len(batches)
            future.set_result([AppendResult(refusal) for _ in batches])
            return future
        now_ms = self._clock.now_ms()
        results: list[AppendResult] = []
        ticket = Ticket(future, results)
        for batch in batches:
            if len(batch.data) > self._batch_bytes_max:
                results.append(AppendResult(Outcome.TOO_LARGE))
                continue
            group = self._groups[self._group_of(batch.queue_id)]
            results.append(group.append(batch, ticket, now_ms, with_log_append_time))
        if ticket.blocks:
            self._write_loop.wake()
        if acks == 0 or not ticket.blocks:
            future.set_result(results)
        return future

    def _refusal(self) -> Outcome | None:
        if self._write_loop.ended is not None:
            return Outcome.STORAGE_FAILED
        if (
            self.refusing
            or self._write_loop.out_of_space
            or self._write_loop.backlog_bytes > self._backlog_bytes_max
        ):
            return Outcome.STORAGE_BUSY
        return None

    # --- read ---------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[QueueRead], bytes_max: int) -> list[QueueSlice]:
        slices: list[QueueSlice] = []
        remaining = bytes_max
        empty = True
        for read in reads:
            found = self._read_path.read_at_once(read, remaining, empty)
            if found is None:
                found = await self._read_path.read(read, remaining, empty)
            if found.batches:
                empty = False
                remaining -= sum(map(len, found.batches))
            slices.append(found)
        return slices

    def offsets(self, queue_ids: Sequence[int]) -> list[QueueOffsets | None]:
        return [self._read_path.offsets(queue_id) for queue_id in queue_ids]

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        return await self._lookup.offset_for_timestamp(queue_id, timestamp)

    async def wait(self, ends: Mapping[int, int], bytes_min: int, timeout_seconds: float) -> None:
        for queue_id, end in ends.items():
            offsets = self._read_path.offsets(queue_id)
            if offsets is None or offsets.high_watermark > end:
                return
        await self._waiters.wait(ends, bytes_min, timeout_seconds)
