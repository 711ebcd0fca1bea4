"""Reads the queues of one fetch from the disks together: one look at the indexes, one plan of chunks, one check of all
batches, so that Python runs per chunk and not per queue.

Queues that are read together mostly lie together: in a sealed segment their batches are interleaved, in a run they are
neighbours. So the reader looks for the other queues in the files where the first pending queue lies, and the kernel's
`DiskPicks` settles in one go all that it finds. It repeats this around the first queue that is left. Batches that are
too sparse, damaged, or gone meanwhile are read queue by queue (`read_path.py`), which also reports what is wrong with
them.

Batches of the remote tier come by themselves (`remote_reads.py`): with the first partition that needs it, the reads of
all others that may need it begin. A partition whose batches are not there yet is settled without any, as if it had none
yet, so that the others are answered now, and a fetch that found too little is woken when they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mainstem.kernel import (
    DiskPicks,
    FetchPlan,
    FollowedLog,
    PickLimits,
    PickSource,
    QueueTable,
    RecentIndex,
    WriteGroupLog,
)
from mainstem.lru import Lru
from mainstem.model import Buffer, QueueRead, QueueSlice, Tier
from mainstem.storage.errors import StorageError
from mainstem.storage.placement import Placement
from mainstem.storage.queue_store.reading.near_files import NearFile
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.reading.reader_stays import ReaderStay, ReaderStays
from mainstem.storage.reading.remote_reads import ReadKey, RemoteRead, RemoteReads
from mainstem.storage.reading.sealed_segments import NearSegment, SealedSegments

log = logging.getLogger(__name__)

PARTITIONS_MAX = 4096
"""Queues looked for at once: a millisecond of searching indexes."""

PARTITIONS_LEAST = 16
"""Queues looked for at once where hardly any were found before; the number grows with those found."""

ALONE_MAX = 64
"""Queues read one by one before the reader looks again for others beside them."""

WINDOW_BYTES = 12 << 20
"""How far apart in the journal the batches of one read of a queue may lie. Readers of interleaved queues then go
through the journal together: bytes that one of them has read are still in memory for the others."""

SPARSE_BYTES = 64 << 10
SPARSE_WINDOW_BYTES = 48 << 20
"""A read that has found less than `SPARSE_BYTES` goes on up to `SPARSE_WINDOW_BYTES`: a read per batch would cost more
than the batch. A window of this size still fits into the read cache."""

BUSY_WINDOW_BYTES = 4 << 20
"""Both windows while producers publish…"""

BUSY_BYTES_MAX = 1 << 20
"""…and the bytes put into an answer in one turn of the event loop then."""

FULL_PART = 64
"""A response of which less than this part is empty is full: few batches would still fit, and to find one that does may
take a look into a file for each partition."""

ANYWHERE = 1 << 60
"""A window that a whole run lies in."""


REMOTE_READS_MAX = 64
"""Partitions of one fetch that are read from the remote tier at once."""

REMOTE_PATIENCE_SECONDS = 0.002
"""How long a fetch waits for the remote tier before it answers what it has: enough for what memory holds of it, and
little beside a read of a disk."""

DEFERRED_MAX = 4096
"""Fetches of which it is remembered what they wait for."""

LogsFor = Callable[[FetchPlan], Sequence[WriteGroupLog | FollowedLog | None]]
"""Returns the logs that a plan may be served from, as `FetchPlan.read_cached` takes them."""


class SingleReads(Protocol):
    """Reads of one queue, to which the reader of many leaves what it does not find together."""

    @property
    def placement(self) -> Placement: ...

    @property
    def remote_reads(self) -> RemoteReads: ...

    async def read(self, read: QueueRead, bytes_max: int, whole_first: bool) -> QueueSlice: ...

    def remote_slice(
        self, read: QueueRead, away: RemoteRead, bytes_max: int, whole_first: bool
    ) -> QueueSlice | None: ...

    def read_plan(self, plan: FetchPlan, logs: Sequence[WriteGroupLog | FollowedLog | None], slots: Buffer) -> None:
        """Settle what memory has of a plan."""
        ...

    def position_in_memory(self, queue_id: int, offset: int) -> int | None: ...

    def may_be_in_journal(self, queue_id: int, offset: int) -> bool:
        """Whether the journal may have an offset of a queue; False is certain, True is not."""
        ...

    def count(self, tier: Tier, slices: int, size: int) -> None:
        """Note what a tier has served."""
        ...


class _RemoteRound:
    """The part that a round of a fetch has met of the remote tier."""

    __slots__ = ("deferred", "not_there", "patience_ends")

    def __init__(self) -> None:
        self.patience_ends: float | None = None
        """Until when the round waits, by the time of the event loop; None: it has not begun to."""
        self.deferred: list[asyncio.Future[None]] = []
        """Of reads that took longer: their partitions were settled without batches."""
        self.not_there: set[ReadKey] = set()
        """Places that the tier was found not to have, or that other tiers have as well."""


class _Deferred(NamedTuple):
    """A round of a fetch that was settled without what the remote tier has for it."""

    round: int
    done: list[asyncio.Future[None]]
    """Settled when a read of what it has is done."""


class _Near(NamedTuple):
    """The files around the place where a queue is read, and how far to read in them."""

    segments: list[NearSegment]
    runs: list[NearFile]
    limits: PickLimits


TOGETHER_MIN = 16
"""Partitions of a fetch from which on it is worth reading an index of megabytes: that takes as long as dozens of its
pages."""


HELD_BYTES_MAX = 2 << 20
"""Of what the read cache holds, put into an answer within the dispatch of its request: a tenth of a millisecond of
checking. A reader of one queue asks for half of it."""


class PlanReads:
    """Settles the partitions of a plan that memory left pending. `slots` are as `FetchPlan.read_cached` takes
    them."""

    def __init__(
        self,
        path: SingleReads,
        table: QueueTable,
        index: RecentIndex,
        sealed: SealedSegments,
        store: QueueStore,
        pacing: Pacing,
        logs_for: LogsFor,
        slots: Buffer,
    ) -> None:
        self._path = path
        self._table = table
        self._index = index
        self._sealed = sealed
        self._store = store
        self._pacing = pacing
        self._logs_for = logs_for
        self._slots = slots
        self._remote = path.remote_reads
        self._stays = ReaderStays()
        self._deferred: Lru[int, _Deferred] = Lru(DEFERRED_MAX)
        """By the id of the plan. One that was answered is not asked for any more; another plan that gets its id looks
        once too often, at worst."""
        self.together = 0
        """How many queues were read beside others so far."""

    async def settle(self, plan: FetchPlan, bytes_max: int) -> None:
        """Settle all pending partitions, with about `bytes_max` bytes in all, those the round has already found
        included. Returns early when a later round takes the plan over."""
        begun = plan.round
        reach = PARTITIONS_MAX
        alone = again = 0
        remote = _RemoteRound()
        stay = self._stays.of(plan.reader)
        place = stay.begin()
        while (read := plan.pending()) is not None:
            if plan.bytes and bytes_max - plan.bytes < bytes_max // FULL_PART:
                bytes_max, place = plan.bytes, None
            if place is not None:
                place = await self._go_on(plan, place, bytes_max, stay)
                if plan.round != begun:
                    return
                self._path.read_plan(plan, self._logs_for(plan), self._slots)
                continue
            before = plan.bytes
            key = read.queue_id, read.offset
            away = None if key in remote.not_there else self._remote.known(*key)
            if away is not None:
                await self._put_remote(plan, read, bytes_max, away, remote)
            elif not alone:
                found = await self._read_together(plan, read, bytes_max, reach, stay)
                if plan.round != begun:
                    return
                reach = min(PARTITIONS_MAX, max(PARTITIONS_LEAST, 4 * found))
                alone = again = 0 if found else min(2 * again + 1, ALONE_MAX)
            elif key not in remote.not_there and await self._remote.are_for(*key):
                if plan.round == begun:
                    self._begin_remote(plan, bytes_max)
                    continue
            else:
                alone -= 1
                await self._read_alone(plan, read, bytes_max)
            if plan.round != begun:
                return
            if plan.bytes > before:
                stay.turn_taken()
            self._path.read_plan(plan, self._logs_for(plan), self._slots)
        if remote.deferred:
            self._deferred.put(id(plan), _Deferred(begun, remote.deferred))

    async def _go_on(self, plan: FetchPlan, place: QueueRead, bytes_max: int, stay: ReaderStay) -> QueueRead | None:
        """Settle what lies beside the place where the reader's last response ended. Returns the place, or None where
        this response has no more from there."""
        before = plan.bytes
        if await self._read_together(plan, place, bytes_max, PARTITIONS_MAX, stay):
            return place
        if not before:  # and not because the response has no room for the next batch
            stay.place = None
        return None

    # --- the remote tier ------------------------------------------------------------------------------------

    def is_served(self, plan: FetchPlan) -> bool:
        """Whether batches have come for a plan whose last round was settled without them."""
        deferred = self._deferred.pop(id(plan))
        return deferred is not None and deferred.round == plan.round and any(done.done() for done in deferred.done)

    def _begin_remote(self, plan: FetchPlan, bytes_max: int) -> None:
        """Begin to read the pending partition from the remote tier, and those behind it that may need it as well."""
        for read in plan.wanted(REMOTE_READS_MAX, bytes_max).reads:
            if self._remote.concern(read.queue_id, read.offset):
                self._remote.begin(read.queue_id, read.offset, read.bytes_max)

    async def _put_remote(
        self, plan: FetchPlan, read: QueueRead, bytes_max: int, away: RemoteRead, remote: _RemoteRound
    ) -> None:
        """Settle the pending partition with what its read of the remote tier found. If that is not there in time the
        partition is settled as if it had nothing yet; if the tier is not what has it, it stays pending."""
        begun = plan.round
        now = asyncio.get_running_loop().time()
        if remote.patience_ends is None:
            remote.patience_ends = now + REMOTE_PATIENCE_SECONDS
        left = remote.patience_ends - now
        if away.outcome is None and left > 0:
            await asyncio.wait([away.done], timeout=left)
            if plan.round != begun:
                return
        room = max(0, min(read.bytes_max, bytes_max - plan.bytes))
        found = self._path.remote_slice(read, away, room, plan.whole_first)
        if found is None:
            remote.not_there.add(away.key)
            return
        if away.outcome is None:
            remote.deferred.append(away.done)
        before = plan.bytes
        plan.put(found)
        await self._pacing.take(Lane.SERVE, plan.bytes - before)

    # --- this node's disks ----------------------------------------------------------------------------------

    async def _read_alone(self, plan: FetchPlan, read: QueueRead, bytes_max: int) -> None:
        begun = plan.round
        room = max(0, min(read.bytes_max, bytes_max - plan.bytes))
        found = await self._path.read(read, room, plan.whole_first)
        if plan.round == begun:
            plan.put(found)

    def settle_held(self, plan: FetchPlan) -> None:
        """Settle, within the call, the pending partition of a reader that goes on in a file of the queue store, if the
        read cache has what it wants next. That takes no task, whose way there and back costs as much as what it does.
        For all other readers, those of many queues among them, and while producers publish, nothing is done."""
        if len(plan) >= TOGETHER_MIN or not self._pacing.idle or not self._store.cache.enabled:
            return
        read = plan.pending()
        if read is None or self._remote.known(read.queue_id, read.offset) is not None:
            return
        room = plan.wanted(1, HELD_BYTES_MAX).bytes_max
        if room < min(read.bytes_max, HELD_BYTES_MAX // 2) or self._path.may_be_in_journal(read.queue_id, read.offset):
            return
        stays = self._path.placement.history(read.queue_id)
        runs = self._store.near.held_around(read.queue_id, stays[0].group, read.offset) if len(stays) == 1 else None
        if runs is None:
            return
        picks = self._pick(plan, _Near([], runs, self._limits(HELD_BYTES_MAX, HELD_BYTES_MAX, PARTITIONS_LEAST)))
        if not len(picks):
            return
        wanted = [(runs[source].source, number, asked) for source, number, asked in picks.chunks()]
        chunks = self._store.near.held_chunks(wanted, plan.queue_id_max)
        if chunks is not None:
            before = plan.bytes
            self._put(plan, picks, chunks, Tier.READ_CACHE)
            self._pacing.took(Lane.SERVE, plan.bytes - before)
            self._path.read_plan(plan, self._logs_for(plan), self._slots)

    async def _read_together(
        self, plan: FetchPlan, read: QueueRead, bytes_max: int, reach: int, stay: ReaderStay
    ) -> int:
        """Settle the pending queues that lie beside a place, as far as that is possible, and note in `stay` that the
        reader is there. Returns how many were settled."""
        begun = plan.round
        if 0 < bytes_max <= plan.bytes:
            self._leave_rest(plan)
            return 0
        try:
            near = await self._near(read, bytes_max, reach, few=len(plan) < TOGETHER_MIN)
        except (StorageError, OSError) as error:  # the read of the queue alone meets the error again, and reports it
            log.debug("queue %#x cannot be read together with others: %s", read.queue_id, error)
            return 0
        if near is None or plan.round != begun:
            return 0
        picks = self._pick(plan, near)
        if not len(picks):
            return 0
        if near.segments:
            tier = Tier.JOURNAL
            chunks, _hit = await self._sealed.chunks(
                [(near.segments[source].source, number, asked) for source, number, asked in picks.chunks()]
            )
        else:
            chunks, hit = await self._store.near.chunks(
                [(near.runs[source].source, number, asked) for source, number, asked in picks.chunks()],
                plan.queue_id_max,
            )
            tier = Tier.READ_CACHE if hit else Tier.QUEUE_STORE
        if not self._pacing.idle:
            await asyncio.sleep(0)  # to look for batches and to check them take a third of a millisecond each
        if plan.round != begun:
            return 0
        before = plan.bytes
        served = self._put(plan, picks, chunks, tier)
        if served and near.runs and near.runs[0].has_several_queues:
            stay.place = read
        await self._pacing.take(Lane.SERVE, plan.bytes - before)
        return served

    def _pick(self, plan: FetchPlan, near: _Near) -> DiskPicks:
        """Pick what the pending partitions want of files, and settle those between them that memory can answer."""
        files: Sequence[NearSegment | NearFile] = near.segments or near.runs
        sources = [PickSource(file.extents.content, file.groups) for file in files]
        picks = DiskPicks(plan, self._store.cache.chunk_bytes, extents=bool(near.runs))
        before = plan.bytes
        picks.choose(self._table, self._index, self._logs_for(plan), self._slots, sources, near.limits)
        self._path.count(Tier.WRITE_CACHE, picks.served_from_memory, plan.bytes - before)
        return picks

    def _put(self, plan: FetchPlan, picks: DiskPicks, chunks: Sequence[memoryview | None], tier: Tier) -> int:
        """Settle what was picked. Returns how many partitions that were."""
        before = plan.bytes
        served = picks.put(self._table, chunks)
        self.together += served
        self._path.count(tier, served, plan.bytes - before)
        return served

    def _leave_rest(self, plan: FetchPlan) -> None:
        """Settle what is pending with what memory has, and without batches where that is nothing. Some of it, if it is
        very much."""
        picks = DiskPicks(plan, self._store.cache.chunk_bytes, extents=True)
        before = plan.bytes
        limits = PickLimits(0, ANYWHERE, PARTITIONS_MAX, 0, 0, ANYWHERE, 0, ANYWHERE)
        picks.choose(self._table, self._index, self._logs_for(plan), self._slots, [], limits)
        self._path.count(Tier.WRITE_CACHE, picks.served_from_memory, plan.bytes - before)

    @staticmethod
    def _limits(room: int, bytes_max: int, partitions_max: int) -> PickLimits:
        """Of picks from whole files."""
        return PickLimits(
            room=room,
            bytes_max=bytes_max,
            partitions_max=partitions_max,
            source_bytes=0,
            start=0,
            window_bytes=ANYWHERE,
            sparse_bytes=SPARSE_BYTES,
            sparse_window_bytes=ANYWHERE,
        )

    async def _near(self, read: QueueRead, bytes_max: int, reach: int, *, few: bool) -> _Near | None:
        """The place on a disk where the queue lies; None when only a read of its own can find it. `few`: the fetch has
        so few partitions that no large index is read for them."""
        if not self._store.cache.enabled:
            return None
        idle = self._pacing.idle
        window = WINDOW_BYTES if idle else BUSY_WINDOW_BYTES
        sparse_window = SPARSE_WINDOW_BYTES if idle else BUSY_WINDOW_BYTES
        limits = self._limits(bytes_max, bytes_max if idle else BUSY_BYTES_MAX, reach)
        known = self._path.position_in_memory(read.queue_id, read.offset)
        segments, position = await self._sealed.near(read.queue_id, read.offset, sparse_window, known, few=few)
        if segments:
            return _Near(segments, [], limits._replace(
                source_bytes=self._sealed.segment_bytes, start=max(0, position - window),
                window_bytes=window, sparse_window_bytes=window + sparse_window,
            ))  # fmt: skip
        stays = self._path.placement.history(read.queue_id)
        if len(stays) > 1:
            return None  # the kernel's picks go by one write group per queue
        runs = await self._store.near.around(read.queue_id, stays[0].group, read.offset, few=few)
        return _Near([], runs, limits) if runs else None
