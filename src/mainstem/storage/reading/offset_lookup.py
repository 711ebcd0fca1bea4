"""Finds offsets by timestamp and by leader epoch.

Both walk a queue's batches through the read path's tiers. Timestamps are looked up in the indexes first (each row
knows the largest timestamp of its batches), and only the batches that can hold the answer are looked into
(`record_lookups.py`). Leader epochs never fall along a queue, so an epoch's end is a bisection over offsets.

Offsets that only the remote tier has are looked up on their own: the manifest says of each remote file how late its
records are, so that the index of one that cannot have the answer is not asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from mainstem.kernel import COMMITTED_END, LOG_START, NO_SLOT, QueueTable, RecentIndex
from mainstem.lru import Lru
from mainstem.model import Buffer, Outcome, QueueOffsets, QueueRead, TimestampOffset
from mainstem.protocol.records import BatchHeader, StoredBatch, read_batch_header
from mainstem.protocol.records.lookup import may_be_latest, may_have
from mainstem.storage.errors import SegmentGone, StorageError
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.reading.queue_history import QueueHistory
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.reading.record_lookups import RecordLookups

MAX_TIMESTAMP = -3
"""ListOffsets' special timestamp: the record with the largest one; a marker of a transaction is a record as well."""

EARLIEST_LOCAL_TIMESTAMP = -4
"""ListOffsets' special timestamp: the first offset on this node's disks."""

LATEST_TIERED_TIMESTAMP = -5
"""ListOffsets' special timestamp: the last offset in the remote tier."""

EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
"""ListOffsets' special timestamp: the first offset behind those in the remote tier."""

NO_TIMESTAMP = -1
NO_EPOCH = -1

LEAST_TIMESTAMP = -(1 << 63)

EPOCH_ENDS_MAX = 16384
"""Ends of former leader epochs that are remembered: readers that are far behind ask for them with each fetch, and to
find one takes some thirty reads, which may go to the remote tier."""

READ_BYTES = 1 << 18
"""Bytes read at once when records are searched: an extent and its neighbours, at most some thousand batches."""


class OffsetGone(Exception):
    """The log start moved past the offset while it was being looked for."""

    def __init__(self, log_start: int) -> None:
        super().__init__(log_start)
        self.log_start = log_start


class QueueGone(Exception):
    """The queue was deleted during the look-up."""


class Candidate(NamedTuple):
    """A stretch of a queue and the largest timestamp in it."""

    base_offset: int
    last_offset: int
    max_timestamp: int


class _Latest:
    """Of the stretches looked at, those that may have the record with the largest timestamp."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._cut: list[Candidate] = []
        """Stretches that hold the log start: the record with the largest timestamp of one may be gone."""
        self._best: Candidate | None = None

    def look(self, candidate: Candidate) -> None:
        best = self._best
        if candidate.base_offset < self._start:
            self._cut.append(candidate)
        elif best is None or (candidate.max_timestamp, -candidate.base_offset) > (
            best.max_timestamp,
            -best.base_offset,
        ):
            self._best = candidate

    def may_be_later(self, timestamp: int) -> bool:
        """Whether a stretch with this largest timestamp would be chosen."""
        return self._best is None or timestamp >= self._best.max_timestamp

    def candidates(self) -> list[Candidate]:
        return [*self._cut, *([] if self._best is None else [self._best])]


class OffsetLookup:
    """Looks offsets up over all tiers of a node."""

    def __init__(
        self,
        table: QueueTable,
        index: RecentIndex,
        journal: Journal,
        history: QueueHistory,
        read_path: ReadPath,
        placement: Placement,
        records: RecordLookups,
    ) -> None:
        self._table = table
        self._index = index
        self._journal = journal
        self._history = history
        self._read_path = read_path
        self._placement = placement
        self._records = records
        self._epoch_ends: Lru[tuple[int, int], tuple[int, int]] = Lru(EPOCH_ENDS_MAX)
        """By queue and leader epoch; they do not change."""

    # --- timestamps ---------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, queue_id: int, timestamp: int) -> TimestampOffset | None:
        """The first record with at least this timestamp (ms), or what one of the special timestamps asks for."""
        slot = self._table.find(queue_id)
        if slot == NO_SLOT:
            return None
        start = self._table.get(slot, LOG_START)
        end = self._table.get(slot, COMMITTED_END)
        try:
            if timestamp == EARLIEST_LOCAL_TIMESTAMP:
                return await self._earliest_local(queue_id, start, end)
            if timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
                last = await self._last_tiered(queue_id, start, end)
                behind = timestamp == EARLIEST_PENDING_UPLOAD_TIMESTAMP
                return None if last is None else TimestampOffset(last + behind, NO_TIMESTAMP, NO_EPOCH)
            if timestamp == MAX_TIMESTAMP:
                return await self._largest(queue_id, start, end)
            return await self._first(queue_id, timestamp, start, end)
        except QueueGone:
            return None

    async def _first(self, queue_id: int, timestamp: int, start: int, end: int) -> TimestampOffset | None:
        far = await self._first_far(queue_id, timestamp, start, end)
        if far is not None:
            end = min(end, far.offset)
        async with aclosing(self._candidates(queue_id, start, end)) as candidates:
            async for candidate in candidates:
                await self._records.passed_over()
                if candidate.max_timestamp >= timestamp:
                    found = await self._record_in(queue_id, candidate, timestamp)
                    if found is not None:
                        return found if far is None or found.offset < far.offset else far
        return far

    async def _largest(self, queue_id: int, start: int, end: int) -> TimestampOffset | None:
        chosen = _Latest(start)
        await self._largest_far(queue_id, start, end, chosen)
        async for candidate in self._candidates(queue_id, start, end):
            await self._records.passed_over()
            chosen.look(candidate)
        records = [await self._record_in(queue_id, candidate, MAX_TIMESTAMP) for candidate in chosen.candidates()]
        return max(
            (record for record in records if record is not None),
            key=lambda record: (record.timestamp, -record.offset),
            default=None,
        )

    async def _candidates(self, queue_id: int, start: int, end: int) -> AsyncGenerator[Candidate, None]:
        """All stretches of the queue in offset order that this node has, from the queue store, sealed segments and
        memory. While it goes on, batches may move from tier to tier; it then goes through the tiers once more."""
        position = start
        while position < end:
            before = position
            for tier in (self._stored, self._sealed, self._cached):
                try:
                    async with aclosing(tier(queue_id, position)) as candidates:
                        async for candidate in candidates:
                            if candidate.base_offset > position:
                                break
                            yield candidate
                            position = candidate.last_offset + 1
                except SegmentGone:
                    pass
            if position == before:
                position = await self._next_batch(queue_id, position, end)

    async def _next_batch(self, queue_id: int, position: int, end: int) -> int:
        """The offset at which the queue goes on, at or behind an offset that none of the node's own tiers had; `end`
        where it does not go on in these."""
        if self._read_path.remote_reads.concern(queue_id, position):
            here = await self._read_path.first_here(queue_id, position)
            if here is None or here > position:
                return end if here is None else here
        try:
            batches, _next_offset = await self._batches(queue_id, position)
        except OffsetGone as gone:
            return gone.log_start
        return max(read_batch_header(batches[0]).base_offset, position)

    async def _stored(self, queue_id: int, position: int) -> AsyncGenerator[Candidate, None]:
        for group, first, end in self._placement.stretches_from(queue_id, position):
            async with aclosing(self._history.extents(queue_id, group, first)) as extents:
                async for extent in extents:
                    if extent[0] >= end:
                        break
                    yield Candidate(*extent)

    async def _sealed(self, queue_id: int, position: int) -> AsyncGenerator[Candidate, None]:
        for segment in self._journal.segments():
            if not segment.index_ready:
                continue
            index = await self._journal.rows_with(segment.sequence, queue_id)
            first, end = index.queue_rows(queue_id)
            for row in index.rows[first:end]:
                if int(row["last_offset"]) >= position:
                    yield Candidate(int(row["base_offset"]), int(row["last_offset"]), int(row["max_timestamp"]))

    async def _cached(self, queue_id: int, position: int) -> AsyncGenerator[Candidate, None]:
        while (slot := self._table.find(queue_id)) != NO_SLOT:
            entries = self._index.window(slot, position)
            if not entries:
                return
            for entry in entries:
                yield Candidate(entry.base_offset, entry.last_offset, entry.max_timestamp)
            position = entries[-1].last_offset + 1

    # --- timestamps in the remote tier ------------------------------------------------------------------------

    async def _earliest_local(self, queue_id: int, start: int, end: int) -> TimestampOffset:
        first: int | None = start
        if self._read_path.remote_reads.concern(queue_id, start):
            first = await self._read_path.first_here(queue_id, start)
        return TimestampOffset(end if first is None else first, NO_TIMESTAMP, NO_EPOCH)

    async def _last_tiered(self, queue_id: int, start: int, end: int) -> int | None:
        """The last offset in the remote tier that is not dead; None: there is none."""
        if self._read_path.remote is not None:
            for stay in reversed(self._placement.stays_from(queue_id, start)):
                last = await self._read_path.remote.last_offset(queue_id, stay.group)
                if last is not None and last >= stay.first_offset:  # else it is that of an earlier stay there
                    last = min(last, end - 1)
                    return last if last >= start else None
        return None

    async def _first_far(self, queue_id: int, timestamp: int, start: int, end: int) -> TimestampOffset | None:
        """The first record with at least this timestamp that the remote tier has."""
        remote = self._read_path.remote
        if remote is None:
            return None
        for group, first, behind in self._placement.stretches_from(queue_id, start):
            async with aclosing(remote.extents_since(queue_id, group, first, timestamp)) as extents:
                async for extent in extents:
                    if extent.base_offset >= end:
                        return None
                    if extent.base_offset >= behind:
                        break
                    await self._records.passed_over()
                    found = await self._record_in(queue_id, Candidate(*extent), timestamp)
                    if found is not None:
                        return found
        return None

    async def _largest_far(self, queue_id: int, start: int, end: int, chosen: _Latest) -> None:
        """Look at the stretches in the remote tier that may have the record with the largest timestamp."""
        remote = self._read_path.remote
        if remote is None:
            return
        for group, first, behind in self._placement.stretches_from(queue_id, start):
            async with aclosing(remote.latest_extents(queue_id, group, first)) as extents:
                async for latest, extent in extents:
                    if not chosen.may_be_later(latest):
                        break
                    if extent.base_offset < min(end, behind):
                        await self._records.passed_over()
                        chosen.look(Candidate(*extent))

    async def _record_in(self, queue_id: int, candidate: Candidate, timestamp: int) -> TimestampOffset | None:
        """The record looked for, within the batches of a candidate that are still there."""
        best: TimestampOffset | None = None
        position = candidate.base_offset
        while position <= candidate.last_offset:
            slot = self._table.find(queue_id)
            if slot == NO_SLOT:
                return None
            start = self._table.get(slot, LOG_START)
            position = max(position, start)
            if position > candidate.last_offset:
                break
            try:
                batches, position = await self._batches(queue_id, position)
            except OffsetGone:
                continue
            for batch in batches:
                stored = StoredBatch.parse(batch)
                if stored.header.base_offset > candidate.last_offset:
                    break
                if timestamp == MAX_TIMESTAMP:
                    wanted = LEAST_TIMESTAMP if best is None else best.timestamp + 1
                    decides = may_be_latest(stored, wanted, start)
                else:
                    decides = may_have(stored, timestamp, start)
                if not decides:
                    await self._records.passed_over()
                    continue
                if timestamp == MAX_TIMESTAMP:
                    record = await self._records.greatest(queue_id, stored, start)
                else:
                    record = await self._records.first(queue_id, stored, timestamp, start)
                if record is None or (best is not None and record.timestamp <= best.timestamp):
                    continue
                best = TimestampOffset(record.offset, record.timestamp, stored.header.leader_epoch)
                if timestamp != MAX_TIMESTAMP:
                    return best
        return best

    # --- epochs -------------------------------------------------------------------------------------------

    async def epoch_end(self, queue_id: int, leader_epoch: int, current_epoch: int) -> tuple[int, int] | None:
        """(largest epoch at most `leader_epoch`, end offset of that epoch); (-1, -1) when unknown; None for an
        unknown queue."""
        offsets = self._read_path.offsets(queue_id)
        if offsets is None:
            return None
        if leader_epoch == current_epoch:
            return current_epoch, offsets.end
        if leader_epoch > current_epoch or leader_epoch < 0:
            return -1, -1
        known = self._epoch_ends.get((queue_id, leader_epoch))
        if known is not None and known[1] > offsets.log_start:
            return known
        try:
            found = await self._older_epoch_end(queue_id, leader_epoch, offsets)
        except QueueGone:
            return None
        if offsets.log_start < found[1] < offsets.high_watermark:  # a later epoch has begun in what is committed
            self._epoch_ends.put((queue_id, leader_epoch), found)
        return found

    async def _older_epoch_end(self, queue_id: int, leader_epoch: int, offsets: QueueOffsets) -> tuple[int, int]:
        start, end = offsets.log_start, offsets.high_watermark
        low, high = start, end
        epoch = -1
        here = await self._first_epoch_here(queue_id, start)
        if here is not None and here.leader_epoch <= leader_epoch:  # it ends on this node's own disks
            low, epoch = max(low, here.next_offset), here.leader_epoch
        elif here is not None:
            high = max(low, here.base_offset)
        while low < high:
            middle = (low + high) // 2
            try:
                header = await self._batch_header(queue_id, middle)
            except OffsetGone as gone:
                start, low = gone.log_start, max(low, gone.log_start)
                continue
            if header.leader_epoch <= leader_epoch:
                epoch = header.leader_epoch
                low = max(header.next_offset, middle + 1)
            else:
                high = min(max(header.base_offset, low), middle)
        return (epoch, min(low, end)) if epoch >= 0 else (leader_epoch, start)

    async def _first_epoch_here(self, queue_id: int, start: int) -> BatchHeader | None:
        """The first batch on this node's own disks, where what is in front of it is in the remote tier alone: a reader
        near the end must not depend on the object store. None: there is none, or all of the queue is here."""
        if not self._read_path.remote_reads.concern(queue_id, start):
            return None
        here = await self._read_path.first_here(queue_id, start)
        if here is None or here == start:
            return None
        try:
            return await self._batch_header(queue_id, here)
        except OffsetGone:
            return None

    async def _batch_header(self, queue_id: int, offset: int) -> BatchHeader:
        batches, _next_offset = await self._batches(queue_id, offset)
        return read_batch_header(batches[0])

    async def _batches(self, queue_id: int, offset: int) -> tuple[list[Buffer], int]:
        """Batches from the one that holds `offset`, or the next, on, and the offset behind them. Raises
        `OffsetGone` when the log start has moved on, `QueueGone`, `StorageError` when they cannot be read."""
        found = await self._read_path.read(QueueRead(queue_id, offset, READ_BYTES), READ_BYTES, True)
        if found.outcome is Outcome.UNKNOWN_QUEUE:
            raise QueueGone
        if found.outcome is Outcome.OFFSET_OUT_OF_RANGE and found.offsets.log_start > offset:
            raise OffsetGone(found.offsets.log_start)
        if found.outcome is not Outcome.OK or not found.batches:
            raise StorageError(f"queue {queue_id:#x}: nothing to read at offset {offset}: {found.outcome.value}")
        return found.batches, found.next_offset
