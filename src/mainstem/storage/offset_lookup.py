"""Finding offsets by what the records say: by timestamp, and by leader epoch.

Both walk a queue's batches through the read path's tiers. Timestamps are looked up in the indexes first (each
row knows the largest timestamp of its batches), and only the one batch that can hold the answer is decoded.
Leader epochs never fall along a queue, so an epoch's end is a bisection over offsets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from mainstem.model import Buffer, Outcome, QueueRead, TimestampOffset
from mainstem.protocol.records import BatchHeader, StoredBatch, find_timestamp, read_batch_header
from mainstem.storage.errors import StorageError
from mainstem.storage.journal.journal import Journal
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queue_table import COMMITTED_END, LOG_START, NO_SLOT, QueueTable
from mainstem.storage.read_path import ReadPath
from mainstem.storage.unsplit_index import UnsplitIndex

MAX_TIMESTAMP = -3
"""ListOffsets' special timestamp: the record with the largest one."""


class Candidate(NamedTuple):
    """A stretch of a queue and the largest timestamp in it."""

    base_offset: int
    last_offset: int
    max_timestamp: int


class OffsetLookup:
    """Looks offsets up over all tiers of a node."""

    def __init__(
        self,
        table: QueueTable,
        index: UnsplitIndex,
        journal: Journal,
        store: QueueStore,
        read_path: ReadPath,
        group_of: Callable[[int], int],
    ) -> None:
        self._table = table
        self._index = index
        self._journal = journal
        self._store = store
        self._read_path = read_path
        self._group_of = group_of

    # --- timestamps ---------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        """The first record with at least this timestamp (ms), or with the largest one (`MAX_TIMESTAMP`)."""
        slot = self._table.find(queue_id)
        if slot == NO_SLOT:
            return None
        start = self._table.get(slot, LOG_START)
        end = self._table.get(slot, COMMITTED_END)
        if timestamp == MAX_TIMESTAMP:
            return await self._largest(queue_id, start, end)
        async for candidate in self._candidates(queue_id, start, end):
            if candidate.max_timestamp < timestamp:
                continue
            found = await self._record_in(queue_id, candidate, timestamp, start)
            if found is not None:
                return found
        return None

    async def _largest(self, queue_id: int, start: int, end: int) -> TimestampOffset | None:
        best: Candidate | None = None
        async for candidate in self._candidates(queue_id, start, end):
            if best is None or candidate.max_timestamp > best.max_timestamp:
                best = candidate
        if best is None:
            return None
        return await self._record_in(queue_id, best, best.max_timestamp, start)

    async def _candidates(self, queue_id: int, start: int, end: int) -> AsyncIterator[Candidate]:
        """All stretches of the queue in offset order, from the queue store, sealed segments and memory."""
        position = start
        async for first, last, largest in self._store.extents(queue_id, self._group_of(queue_id), position):
            if first > position:
                break
            yield Candidate(first, last, largest)
            position = last + 1
        for segment in self._journal.segments():
            if not segment.index_ready or position >= end:
                continue
            index = await self._journal.index(segment.sequence)
            row, row_end = index.queue_rows(queue_id)
            for entry in index.rows[row:row_end]:
                if int(entry["last_offset"]) >= position:
                    yield Candidate(
                        int(entry["base_offset"]), int(entry["last_offset"]), int(entry["max_timestamp"])
                    )
                    position = int(entry["last_offset"]) + 1
        while position < end:
            slot = self._table.find(queue_id)
            entries = self._index.window(slot, position) if slot != NO_SLOT else []
            if not entries:
                return
            for entry in entries:
                yield Candidate(entry.base_offset, entry.last_offset, entry.max_timestamp)
            position = entries[-1].last_offset + 1

    async def _record_in(
        self, queue_id: int, candidate: Candidate, timestamp: int, start: int
    ) -> TimestampOffset | None:
        """The record looked for, within the batches of a candidate."""
        position = max(candidate.base_offset, start)
        while position <= candidate.last_offset:
            batches, position = await self._batches(queue_id, position)
            for batch in batches:
                stored = StoredBatch.parse(batch)
                record = find_timestamp([stored], timestamp, start)
                if record is not None:
                    return TimestampOffset(record.offset, record.timestamp, stored.header.leader_epoch)
        return None

    # --- epochs -------------------------------------------------------------------------------------------

    async def epoch_end(self, queue_id: int, leader_epoch: int, current_epoch: int) -> tuple[int, int] | None:
        """(largest epoch at most `leader_epoch`, end offset of that epoch); (-1, -1) when unknown; None for an
        unknown queue."""
        offsets = self._read_path.offsets(queue_id)
        if offsets is None:
            return None
        start, end = offsets.log_start, offsets.high_watermark
        if leader_epoch == current_epoch:
            return current_epoch, offsets.end
        if leader_epoch > current_epoch or leader_epoch < 0:
            return -1, -1
        low, high = start, end
        epoch = -1
        while low < high:
            middle = (low + high) // 2
            header = await self._batch_header(queue_id, middle)
            if header.leader_epoch <= leader_epoch:
                epoch = header.leader_epoch
                low = max(header.next_offset, middle + 1)
            else:
                high = min(max(header.base_offset, low), middle)
        return (epoch, min(low, end)) if epoch >= 0 else (leader_epoch, start)

    async def _batch_header(self, queue_id: int, offset: int) -> BatchHeader:
        batches, _next_offset = await self._batches(queue_id, offset)
        return read_batch_header(batches[0])

    async def _batches(self, queue_id: int, offset: int) -> tuple[list[Buffer], int]:
        found = await self._read_path.read(QueueRead(queue_id, offset, 1 << 20), 1 << 20, True)
        if found.outcome is not Outcome.OK or not found.batches:
            raise StorageError(
                f"queue {queue_id:#x}: nothing to read at offset {offset}: {found.outcome.value}"
            )
        return found.batches, found.next_offset
