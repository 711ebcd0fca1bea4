"""The read path serves a queue from the write cache, else the journal, else the queue store, else the remote tier,
without a gap or a repeat.

It checks what a tier serves against the offset asked for: the first batch holds that offset or, where no tier has it,
is the next that exists in any tier. Pruning goes on meanwhile, and files of disk 2 go that the remote tier has; a read
that finds its segment recycled, or its file gone, starts over, and finds the batches one tier further down.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mainstem.kernel import (
    COMMITTED_END,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    FetchPlan,
    FollowedLog,
    IndexedBatch,
    QueueTable,
    RecentIndex,
    WriteGroupLog,
)
from mainstem.model import Buffer, Outcome, QueueOffsets, QueueRead, QueueSlice, Tier
from mainstem.protocol.records import build_empty_batch
from mainstem.storage.errors import CorruptJournal, OutOfReach, SegmentGone, StorageError
from mainstem.storage.journal.encoding.format import sequence_of
from mainstem.storage.journal.journal import Journal
from mainstem.storage.placement import Placement, StayPart
from mainstem.storage.queue_store.reading.stored_slice import StoredSlice
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.reading.plan_reads import (
    BUSY_WINDOW_BYTES,
    SPARSE_BYTES,
    SPARSE_WINDOW_BYTES,
    WINDOW_BYTES,
    LogsFor,
    PlanReads,
)
from mainstem.storage.reading.remote_reads import RemoteRead, RemoteReads
from mainstem.storage.reading.sealed_segments import BatchPlace, SealedSegments
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.supervised import Supervision

log = logging.getLogger(__name__)

BATCH_LENGTH = struct.Struct(">i")
BATCH_LENGTH_AT = 8
BATCH_LENGTH_EXCLUDES = 12
"""Bytes of a record batch's base offset and length; the length counts the bytes behind itself."""

ATTEMPTS = 5
"""How often a read starts over after it lost a race with pruning; each loss means a batch moved one tier down, and
there are four tiers."""

BUSY_BYTES_MAX = 256 << 10
"""The most that one read brings from a disk while producers publish: between two reads all others are served."""

OFFSETS_PASSED_MAX = 1 << 31
"""As many as one batch can take."""

STEPS = 16
"""The most stretches (segments, extents, windows) that one read of one queue strings together."""


class FoundBatches(NamedTuple):
    """Batches in offset order from one tier; `base_offset` is the first batch's, `next_offset` lies behind the last."""

    batches: list[Buffer]
    base_offset: int
    next_offset: int
    tier: Tier


class ReadPath:
    """Reads committed batches from all tiers of a node, and counts what each tier served."""

    def __init__(
        self,
        table: QueueTable,
        index: RecentIndex,
        journal: Journal,
        sealed: SealedSegments,
        store: QueueStore,
        placement: Placement,
        leader_epoch: Callable[[int], int],
        pacing: Pacing,
        damage_met: Callable[[int], None] = lambda position: None,
        *,
        remote: RemoteHistory | None = None,
        wake: Callable[[Iterable[int]], None] = lambda queue_ids: None,
        supervision: Supervision | None = None,
        may_have_lost: Callable[[int, int], bool] = lambda group, queue_id: False,
    ) -> None:
        """`damage_met` is called with the journal position of a batch that fails its checks; `wake` with queues of
        which batches came from the remote tier for readers that had not waited for them.
        `may_have_lost(group, queue_id)` tells whether files that were given up may have had batches of a queue."""
        self._table = table
        self._index = index
        self._journal = journal
        self._sealed = sealed
        self._store = store
        self.placement = placement
        self._leader_epoch = leader_epoch
        self._pacing = pacing
        self._damage_met = damage_met
        self._may_have_lost = may_have_lost
        self.remote = remote
        """The remote tier; None: this node reads none."""
        if remote is not None:
            remote.know_log_starts(self._log_start)
        store.stored.search.stay_of = self._stay_of
        self.remote_reads = RemoteReads(remote, placement, self._first_here, wake, supervision)
        self._served: dict[Tier, int] = dict.fromkeys(Tier, 0)
        self._served_bytes: dict[Tier, int] = dict.fromkeys(Tier, 0)
        self._served_to_plans = 0
        self._served_bytes_to_plans = 0
        """Slices and bytes from the write cache, counted apart: a plan may ask for a single partition, and hashing the
        tier takes longer than the look-up in the cache."""

    async def close(self) -> None:
        """Give up the reads of the remote tier that are under way."""
        await self.remote_reads.close()

    @property
    def served(self) -> dict[Tier, int]:
        """Slices with data, by the tier that served them."""
        at_once = self._served[Tier.WRITE_CACHE] + self._served_to_plans
        return {**self._served, Tier.WRITE_CACHE: at_once}

    @property
    def served_bytes(self) -> dict[Tier, int]:
        at_once = self._served_bytes[Tier.WRITE_CACHE] + self._served_bytes_to_plans
        return {**self._served_bytes, Tier.WRITE_CACHE: at_once}

    def _stay_of(self, queue_id: int, offset: int) -> StayPart | None:
        return self.placement.stay_of(queue_id, offset, self._log_start)

    def _log_start(self, queue_id: int) -> int:
        """0 of a queue that is not known."""
        slot = self._table.find(queue_id)
        return 0 if slot == NO_SLOT else self._table.get(slot, LOG_START)

    def offsets(self, queue_id: int) -> QueueOffsets | None:
        slot = self._table.find(queue_id)
        if slot == NO_SLOT:
            return None
        cells, base = self._table.cells(slot)
        return QueueOffsets(
            cells[base + LOG_START],
            cells[base + COMMITTED_END],
            cells[base + NEXT_OFFSET],
            self._leader_epoch(queue_id),
            self._table.last_stable(slot),
        )

    def read_at_once(self, read: QueueRead, bytes_max: int, whole_first: bool) -> QueueSlice | None:
        """The slice where memory alone can answer: out of range, nothing new, or cached. None: use `read`."""
        slot = self._table.find(read.queue_id)
        offsets = self.offsets(read.queue_id)
        if offsets is None:
            return QueueSlice(read.queue_id, Outcome.UNKNOWN_QUEUE, [], QueueOffsets(-1, -1, -1, -1, -1))
        if not offsets.log_start <= read.offset <= offsets.end:
            return QueueSlice(read.queue_id, Outcome.OFFSET_OUT_OF_RANGE, [], offsets)
        budget = min(read.bytes_max, bytes_max)
        if read.offset >= offsets.high_watermark or (budget <= 0 and not whole_first):
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, read.offset)
        found = self._cached(slot, read.offset, budget, whole_first)
        return None if found is None else self._slice(read, offsets, found)

    def read_plan(self, plan: FetchPlan, logs: Sequence[WriteGroupLog | FollowedLog | None], slots: Buffer) -> None:
        """Fill a plan's partitions, in order, up to the first that memory alone cannot answer."""
        before = plan.bytes
        self._served_to_plans += plan.read_cached(self._table, self._index, logs, slots)
        self._served_bytes_to_plans += plan.bytes - before

    def plan_reads(self, logs_for: LogsFor, slots: Buffer) -> PlanReads:
        """Make a reader of plans from the disks. `slots` has the write group of each slot; `logs_for` returns the log
        of each write group that a plan may be served from."""
        return PlanReads(self, self._table, self._index, self._sealed, self._store, self._pacing, logs_for, slots)

    def position_in_memory(self, queue_id: int, offset: int) -> int | None:
        """Journal position of the batch that holds the offset; None when the index in memory does not have it. The
        newest segments have no other index yet."""
        entries = self._indexed(queue_id, offset)
        return place_of(entries[0]).position if entries and entries[0].base_offset <= offset else None

    def may_be_in_journal(self, queue_id: int, offset: int) -> bool:
        """Whether the journal may have an offset of a queue; False is certain, True is not."""
        return self.position_in_memory(queue_id, offset) is not None or self._sealed.may_hold(queue_id)

    def count(self, tier: Tier, slices: int, size: int) -> None:
        """Count `slices` that a tier served, of `size` bytes in all."""
        self._served[tier] += slices
        self._served_bytes[tier] += size

    async def read(self, read: QueueRead, bytes_max: int, whole_first: bool) -> QueueSlice:
        """Read one queue from the first tier that has the offset. Data that is missing or fails its checksum is logged
        and answered with `STORAGE_FAILED`."""
        absent = False
        """Whether the last look into all tiers went to its end, and none had the offset or one behind it."""
        for _ in range(ATTEMPTS):
            absent = False
            answer = self.read_at_once(read, bytes_max, whole_first)
            if answer is not None:
                return answer
            budget = min(read.bytes_max, bytes_max)
            if not self._pacing.idle:
                budget = min(budget, BUSY_BYTES_MAX)
            try:
                found = await self._below(read.queue_id, read.offset, budget, whole_first)
            except SegmentGone:
                continue
            except (StorageError, OSError) as error:
                self._failed(read, error)
                break
            offsets = self.offsets(read.queue_id)
            if offsets is None or read.offset < offsets.log_start:
                continue
            if found is not None:
                await self._pacing.take(Lane.SERVE, sum(map(len, found.batches)))
                return self._slice(read, offsets, found)
            absent = True
        else:
            past = None
            if absent:
                past = self._past_lost(read, min(read.bytes_max, bytes_max), whole_first=whole_first)
            if past is not None:
                return past
            log.error(
                "queue %#x: offset %d is neither in the journal nor in the queue store",
                read.queue_id,
                read.offset,
            )
        offsets = self.offsets(read.queue_id) or QueueOffsets(-1, -1, -1, -1, -1)
        return QueueSlice(read.queue_id, Outcome.STORAGE_FAILED, [], offsets)

    def _past_lost(self, read: QueueRead, budget: int, *, whole_first: bool) -> QueueSlice | None:
        """If nothing of a queue is left from an offset on, since the files that had it were given up: a batch without
        records, behind which clients go on. They would stay where they are without one. None: nothing was given up that
        could have had the queue."""
        offsets = self.offsets(read.queue_id)
        groups = [stay.group for stay in self.placement.stays_from(read.queue_id, read.offset)]
        if offsets is None or not any(self._may_have_lost(group, read.queue_id) for group in groups):
            return None
        if offsets.last_stable > read.offset:
            end = min(offsets.last_stable, offsets.high_watermark)
        else:
            end = offsets.high_watermark
        count = min(end - read.offset, OFFSETS_PASSED_MAX)
        batch = bytearray(build_empty_batch(count).data)
        batch[:8] = read.offset.to_bytes(8, "big")  # not in the checksum
        if len(batch) > budget and not whole_first:
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, read.offset)
        return QueueSlice(read.queue_id, Outcome.OK, [bytes(batch)], offsets, None, read.offset + count)

    def _failed(self, read: QueueRead, error: Exception) -> None:
        """Report why a read failed."""
        if isinstance(error, OutOfReach):  # reported once, not for each of its readers
            return
        if isinstance(error, CorruptJournal) and error.position:
            self._damage_met(error.position)
        log.error("read of queue %#x at offset %d failed: %s", read.queue_id, read.offset, error)

    async def first_here(self, queue_id: int, offset: int) -> int | None:
        """The offset itself if this node's own disks have it, else the next that they have; None: there is none.
        Raises `StorageError`, OSError."""
        for _ in range(ATTEMPTS):
            try:
                return await self._first_here(queue_id, offset)
            except SegmentGone:
                continue
        raise StorageError(f"queue {queue_id:#x}: the journal's segments move on faster than they are read")

    async def committed(
        self, queue_id: int, offset: int, bytes_max: int, *, gaps: bool = False
    ) -> tuple[list[Buffer], int]:
        """Batches from the one that holds the offset on, and the offset behind them, for another replica that has lost
        them. They are served from any tier, also below the queue's start. The caller must know that they are committed.
        `gaps`: the queue is compacted, and they may begin with the next that its history on disk 2 has. Raises
        `StorageError`, OSError."""
        for _ in range(ATTEMPTS):
            try:
                found = await self._below(queue_id, offset, bytes_max, True)
            except SegmentGone:
                continue
            if found is None or not found.batches:
                break
            if found.base_offset > offset and not (gaps and found.tier in (Tier.READ_CACHE, Tier.QUEUE_STORE)):
                break
            return found.batches, found.next_offset
        raise StorageError(f"queue {queue_id:#x}: offset {offset} is neither in the journal nor in the queue store")

    def _slice(self, read: QueueRead, offsets: QueueOffsets, found: FoundBatches) -> QueueSlice:
        if not found.batches:
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, read.offset)
        self._served[found.tier] += 1
        self._served_bytes[found.tier] += sum(map(len, found.batches))
        return QueueSlice(read.queue_id, Outcome.OK, found.batches, offsets, found.tier, found.next_offset)

    # --- memory -------------------------------------------------------------------------------------------

    def _cached(self, slot: int, offset: int, budget: int, whole_first: bool) -> FoundBatches | None:
        """Batches from the write cache; None when it does not hold the offset."""
        found = self._index.read(slot, offset, budget, whole_first)
        if found is None:
            return None
        return FoundBatches(separated(found[0]), offset, found[1], Tier.WRITE_CACHE)

    # --- disks --------------------------------------------------------------------------------------------

    async def _below(self, queue_id: int, offset: int, budget: int, whole_first: bool) -> FoundBatches | None:
        """Batches from disk: from the journal where it holds the offset, else from the queue store where that does,
        else from the remote tier, else the next that exist."""
        places = await self._journal_places(queue_id, offset, budget)
        if places and places[0].base_offset <= offset:
            return await self._from_journal(queue_id, places, budget, whole_first)
        here: int | None = offset
        if self.remote_reads.concern(queue_id, offset):
            try:
                here = await self._first_here(queue_id, offset)
            except SegmentGone:
                raise
            except (StorageError, OSError):  # the tier may have what a damaged file of disk 2 has
                here = None
            if here != offset:
                away = self.remote_reads.begin(queue_id, offset, budget)
                await asyncio.shield(away.done)
                found = self.remote_reads.take(away, budget, whole_first)
                if found is not None:
                    return _of_tier(found)
        try:
            stored = await self._stored(queue_id, offset, max(budget, 1))
        except SegmentGone:
            raise
        except (StorageError, OSError):
            found = await self.remote_reads.in_place_of_disk(queue_id, offset, budget, whole_first)
            if found is None:
                raise
            return _of_tier(found)
        first = min((one.base_offset for one in (stored, *places[:1]) if one is not None), default=offset)
        if first > offset and self.remote_reads.concern(queue_id, offset) and (here is None or first > here):
            raise SegmentGone(f"queue {queue_id:#x}: what disk 2 had at offset {offset} left it meanwhile")
        if stored is not None and (not places or stored.base_offset < places[0].base_offset):
            tier = Tier.READ_CACHE if stored.from_cache else Tier.QUEUE_STORE
            batches: list[Buffer] = list(stored.batches)
            next_offset = stored.next_offset
            if not whole_first and sum(map(len, batches)) > budget:
                batches, next_offset = [], offset
            return FoundBatches(batches, stored.base_offset, next_offset, tier)
        if places:
            return await self._from_journal(queue_id, places, budget, whole_first)
        return None

    # --- the remote tier ------------------------------------------------------------------------------------

    def remote_slice(self, read: QueueRead, away: RemoteRead, bytes_max: int, whole_first: bool) -> QueueSlice | None:
        """The answer to a read with what came of its read of the remote tier, `bytes_max` bytes at most; while that is
        under way, an answer without batches that promises none; None: the tier is not what has the next batches."""
        offsets = self.offsets(read.queue_id)
        if offsets is None or not offsets.log_start <= read.offset <= offsets.end:
            return self.read_at_once(read, bytes_max, whole_first)
        if away.outcome is None:
            return QueueSlice(read.queue_id, Outcome.OK, [], offsets, None, offsets.high_watermark)
        try:
            found = self.remote_reads.take(away, bytes_max, whole_first)
        except (StorageError, OSError) as error:
            self._failed(read, error)
            return QueueSlice(read.queue_id, Outcome.STORAGE_FAILED, [], offsets)
        return None if found is None else self._slice(read, offsets, _of_tier(found))

    async def _first_here(self, queue_id: int, offset: int) -> int | None:
        """The offset itself if this node's disks have it, else the next that they have; None: there is none."""
        places = await self._journal_places(queue_id, offset, 1)
        firsts = [max(offset, places[0].base_offset)] if places else []
        if firsts != [offset]:
            for group, begin, end in self.placement.stretches_from(queue_id, offset):
                first = await self._store.history.first_offset(queue_id, group, begin)
                if first is not None and first < end:
                    firsts.append(first)
                    break
        return min(firsts, default=None)

    # --- disk 2 ---------------------------------------------------------------------------------------------

    async def _stored(self, queue_id: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the queue store, from the first of the queue's stays that has any from the offset on."""
        for group, first_offset, end in self.placement.stretches_from(queue_id, offset):
            stored = await self._store.history.read(queue_id, group, first_offset, bytes_max)
            if stored is not None and stored.base_offset < end:
                return stored
        return None

    async def _journal_places(self, queue_id: int, offset: int, budget: int) -> list[BatchPlace]:
        """Places in the journal of the batches from the offset on, or from the next one behind it. Memory is asked
        first and believed at once only if it holds the offset itself. Otherwise the nearer of two answers counts:
        segments with an index are usually older than the entries in memory, but where an older segment has lost its
        index, only memory knows what lies in it."""
        places = await self._sealed.places_of_reader(queue_id, offset, budget)
        if places:
            return places
        entries = self._indexed(queue_id, offset)
        if entries and entries[0].base_offset <= offset:
            return [place_of(entry) for entry in entries]
        places = await self._sealed.places(queue_id, offset, budget)
        if places and (not entries or places[0].base_offset <= entries[0].base_offset):
            return places
        return [place_of(entry) for entry in entries]

    def _indexed(self, queue_id: int, offset: int) -> list[IndexedBatch]:
        """Entries of the index in memory for a queue, from an offset on. Blocks may be applied in another order than
        the journal's, or long after they were split; entries whose segment was recycled are left out."""
        slot = self._table.find(queue_id)
        entries = self._index.window(slot, offset) if slot != NO_SLOT else []
        if entries and sequence_of(entries[0].block.header.position) < self._journal.oldest_sequence:
            oldest = self._journal.oldest_sequence
            return [entry for entry in entries if sequence_of(entry.block.header.position) >= oldest]
        return entries

    async def _from_journal(
        self, queue_id: int, places: list[BatchPlace], budget: int, whole_first: bool
    ) -> FoundBatches:
        window_bytes = WINDOW_BYTES if self._pacing.idle else BUSY_WINDOW_BYTES
        sparse_bytes = SPARSE_WINDOW_BYTES if self._pacing.idle else BUSY_WINDOW_BYTES
        found_bytes = 0
        batches: list[Buffer] = []
        first = places[0].position
        base_offset = position = places[0].base_offset
        for _ in range(STEPS):
            chosen: list[BatchPlace] = []
            for place in places:
                distance = self._sealed.distance(first, place.position)
                far = distance >= (window_bytes if found_bytes >= SPARSE_BYTES else sparse_bytes)
                if far or (place.length > budget and (batches or chosen or not whole_first)):
                    budget = 0
                    break
                chosen.append(place)
                budget -= place.length
                found_bytes += place.length
            if chosen:
                try:
                    batches += await self._sealed.read(chosen)
                except SegmentGone:
                    if not batches:
                        raise
                    break
                position = chosen[-1].last_offset + 1
                self._sealed.goes_on(queue_id, position, chosen[-1].position)
            if budget <= 0:
                break
            places = await self._journal_places(queue_id, position, budget)
            if not places or places[0].base_offset != position:
                break
        return FoundBatches(batches, base_offset, position, Tier.JOURNAL)


def _of_tier(found: StoredSlice) -> FoundBatches:
    """Batches of the remote tier."""
    return FoundBatches(list(found.batches), found.base_offset, found.next_offset, Tier.REMOTE)


def separated(stretches: Iterable[memoryview]) -> list[Buffer]:
    """Cut stretches of neighbouring batches into single batches."""
    batches: list[Buffer] = []
    for stretch in stretches:
        start = 0
        while start < len(stretch):
            (length,) = BATCH_LENGTH.unpack_from(stretch, start + BATCH_LENGTH_AT)
            batches.append(stretch[start : start + BATCH_LENGTH_EXCLUDES + length])
            start += BATCH_LENGTH_EXCLUDES + length
    return batches


def place_of(entry: IndexedBatch) -> BatchPlace:
    """The place in the journal of an indexed batch."""
    position = entry.block.header.payload_position + entry.position
    return BatchPlace(position, entry.length, entry.base_offset, entry.last_offset, entry.leader_epoch)
