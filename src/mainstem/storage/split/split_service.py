"""The split service answers a splitter's calls: positions of the write groups, the lease, slices, journal bytes, the
recording of a split.

The service translates calls into the port `SplitLog` and fences them with the lease. Grants and recordings take
turns, so a recording that passed the lease check is over before the next holder starts. It keeps the last
progress and the last error for `mainstem split status`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from mainstem.errors import MainstemError
from mainstem.ports import Clock
from mainstem.rpc.handlers import Handlers, RpcCall
from mainstem.rpc.messages.split import (
    ACQUIRE,
    DAMAGED,
    LIMIT,
    PACE,
    POSITIONS,
    PROGRESS,
    READ,
    RECORD_SPLIT,
    RELEASE,
    RENEW,
    RETENTION_CLASSES,
    SLICES,
    AcquireLease,
    DamageMet,
    DamageReply,
    FileDescription,
    HeldLease,
    Lease,
    LeaseHeld,
    Limit,
    LimitReply,
    PlannedSlices,
    PlanSlices,
    PositionsReply,
    RangeGone,
    ReadExtent,
    RecordSplit,
    RecordSplitReply,
    RenewReply,
    ReportProgress,
    RetentionClasses,
    Slice,
    SplitLag,
    SplitPace,
    SplitProgress,
    WaitsFor,
    WriteGroupPositions,
    WriteGroupRange,
)
from mainstem.rpc.wire.identity import host_identity
from mainstem.rpc.wire.method import Nothing, Reply
from mainstem.storage.errors import SegmentGone
from mainstem.storage.journal.encoding.format import position_of
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.split.split_lease import LeaseState, SplitLease
from mainstem.supervised import Errands, Supervision

READ_CHUNK_BYTES = 1 << 20
"""One element of a streamed extent: large beside a call's cost, small beside what a stream's window holds."""

LEASE_POLL_SECONDS = 0.2
"""How often a waiting splitter looks whether the lease is free."""

LEASE_WAIT_SECONDS_MAX = 300.0

LEASE_WAITERS_MAX = 16
"""Splitters that may wait at once; more than a few is a mistake of the operator's."""

ERROR_CHARACTERS_MAX = 4000
"""Characters kept of the last error: a stack trace's informative end fits."""


PACE_BYTES_MAX = 64 << 20
"""Bytes paced at once: at the least rate they are granted within seconds, which is what a caller waits."""

LAG_BYTES = 128 << 20
"""With this many unsplit bytes the split gets at least the rate of publishing, however slow commits become, so that
disk 1 does not fill up; with fewer it may get less, in proportion. Half of what a trigger takes: about what is always
unsplit."""

CATCH_UP = 3.0
"""The split gets at most this many times the rate of publishing in that way. So does a task of upkeep, for which a
split may wait, by the unsplit bytes beyond `LAG_BYTES`: so many are unsplit although nothing waits."""

UPKEEP_LAG_BYTES = 8 << 30
"""The same for upkeep, by the bytes of runs that are not merged and of files that are not uploaded. Both take twice the
rate of publishing, so that twice as many wait where publishing feels all of it."""

LOOK_SECONDS = 1.0
"""Seconds between two measurements of how much was published, and how much of it is unsplit."""


class SplitLog(Protocol):
    """The journal as splitters see it; implemented by the storage role."""

    def positions(self) -> list[WriteGroupPositions]: ...

    def limit(self, after: Mapping[int, int], bytes_max: int) -> dict[int, int]:
        """Per write group, the block up to which about `bytes_max` bytes of journal behind `after` reach: committed and
        durable blocks only."""
        ...

    def slices(self, after: Mapping[int, int], upto: Mapping[int, int], bytes_max: int) -> list[Slice]:
        """The journal between `after` and `upto` in pieces of about `bytes_max`, in journal order. Every
        block of the ranges of a slice lies in its extents."""
        ...

    async def read(self, sequence: int, offset: int, length: int) -> bytes:
        """Raw bytes of one segment. Raises `SegmentGone`."""
        ...

    async def record(self, ranges: Sequence[WriteGroupRange], runs: Sequence[FileDescription]) -> list[str]:
        """Record the split of a slice, compare-and-set per write group; durable when it returns. Per range:
        'committed', 'replayed' or 'refused: …'. A file that is not whole in the queue store is refused."""
        ...

    async def damaged(self, position: int) -> bool:
        """Have the block at this journal position examined and made whole, because it cannot be read. Returns whether
        it is sound."""
        ...

    def waiting_for(self) -> list[WaitsFor]:
        """The damaged blocks that the split waits before."""
        ...

    async def retention_classes(self) -> dict[int, str]:
        """Topic number → retention class, of all topics that ever held a record. Raises when the metadata is not
        loaded: a topic that is absent counts as deleted and the split drops its batches."""
        ...


class SplitService:
    """The node's split service. `register` it with a server; `close` it after the server."""

    def __init__(
        self,
        log: SplitLog,
        clock: Clock,
        lease: SplitLease,
        pacing: Pacing,
        written_bytes: Callable[[], int] = lambda: 0,
        supervision: Supervision | None = None,
        merging: Callable[[], bool] = lambda: False,
        upkeep_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`written_bytes` returns the bytes appended since the start; `merging`: a merge is under way; `upkeep_bytes`:
        bytes of files that wait to be merged or uploaded."""
        self._upkeep_bytes = upkeep_bytes
        self._merging = merging
        self._pacing = pacing
        self._written_bytes = written_bytes
        self._looked_at, self._written_before = clock.monotonic(), written_bytes()
        self._least_bytes_per_second = self._upkeep_least_bytes_per_second = 0.0
        self._log = log
        self._clock = clock
        self._lease = lease
        self._turn = asyncio.Lock()
        """Held while the lease is granted and while a split is recorded."""
        self._recordings = Errands(supervision, "recording of a split", answers=(MainstemError,))
        self._waiters = 0
        self._progress: SplitProgress | None = None
        self._progress_ms = -1
        self._error = ""
        self._error_ms = -1

    def register(self, handlers: Handlers) -> None:
        handlers.unary(POSITIONS, self._positions)
        handlers.unary(ACQUIRE, self._acquire)
        handlers.unary(RENEW, self._renew)
        handlers.unary(RELEASE, self._release)
        handlers.unary(LIMIT, self._limit)
        handlers.unary(SLICES, self._slices)
        handlers.stream(READ, self._read)
        handlers.unary(RETENTION_CLASSES, self._retention_classes)
        handlers.unary(RECORD_SPLIT, self._record)
        handlers.unary(PROGRESS, self._report)
        handlers.unary(PACE, self._pace)
        handlers.unary(DAMAGED, self._damaged)

    async def close(self) -> None:
        """Wait for recordings that were begun."""
        await self._recordings.ended()

    def lag(self) -> SplitLag:
        groups = [  # a write group that waits for a damaged block has no work
            group for group in self._log.positions() if group.unsplit_bytes and group.durable > group.split
        ]
        times = [group.oldest_unsplit_ms for group in groups if group.oldest_unsplit_ms >= 0]
        oldest = min(times, default=-1)
        seconds = max(0.0, (self._clock.now_ms() - oldest) / 1000) if oldest >= 0 else 0.0
        return SplitLag(sum(group.unsplit_bytes for group in groups), seconds, self._lease.holder, self._merging())

    def lease_held(self) -> LeaseState | None:
        """The lease in force; None when no splitter holds it."""
        return self._lease.held

    def record_error(self, error: str) -> None:
        """Keep an error for `status`, from a splitter or from its supervisor."""
        self._error, self._error_ms = error[-ERROR_CHARACTERS_MAX:], self._clock.now_ms()

    def status(self) -> dict[str, Any]:
        """The values that `mainstem split status` shows, as plain JSON. Write groups are keyed by their number."""
        now_ms = self._clock.now_ms()
        groups = {}
        for group in self._log.positions():
            oldest = group.oldest_unsplit_ms
            groups[str(group.group)] = {
                "committed": group.committed,
                "durable": group.durable,
                "split": group.split,
                "pruned": group.pruned,
                "lag_bytes": group.unsplit_bytes,
                "lag_seconds": max(0.0, (now_ms - oldest) / 1000) if oldest >= 0 else 0.0,
                "files": group.files,
            }
        return {
            "groups": groups,
            "lag_bytes": sum(group["lag_bytes"] for group in groups.values()),
            "lag_seconds": max((group["lag_seconds"] for group in groups.values()), default=0.0),
            "splitter": self._lease.holder or None,
            "last_error": {"message": self._error, "at_ms": self._error_ms} if self._error else None,
            "damaged_blocks": [
                {
                    "group": entry.group,
                    "block": entry.index,
                    "fault": entry.fault,
                    "seconds": max(0.0, (now_ms - entry.since_ms) / 1000),
                }
                for entry in self._log.waiting_for()
            ],
            "progress": msgspec.to_builtins(self._progress) if self._progress else None,
            "progress_at_ms": self._progress_ms if self._progress else None,
        }

    # handlers

    async def _positions(self, call: RpcCall[Nothing]) -> Reply[PositionsReply]:
        return Reply(PositionsReply(groups=self._log.positions(), now_ms=self._clock.now_ms()))

    async def _acquire(self, call: RpcCall[AcquireLease]) -> Reply[Lease]:
        request = call.request
        holder = f"{request.holder} ({call.peer})"
        give_up = self._clock.monotonic() + min(request.wait_seconds, LEASE_WAIT_SECONDS_MAX)
        if self._waiters >= LEASE_WAITERS_MAX:
            raise LeaseHeld(f"the split lease is held by {self._lease.holder}, and {self._waiters} wait")
        self._waiters += 1
        self._lease.wait(holder)
        try:
            while True:
                try:
                    async with self._turn:
                        return Reply(self._lease.acquire(holder, yields=request.yields))
                except LeaseHeld:
                    if self._clock.monotonic() >= give_up:
                        raise
                await asyncio.sleep(LEASE_POLL_SECONDS)
        finally:
            self._waiters -= 1
            self._lease.leave(holder)

    async def _renew(self, call: RpcCall[HeldLease]) -> Reply[RenewReply]:
        return Reply(RenewReply(wanted_by=self._lease.renew(call.request)))

    async def _release(self, call: RpcCall[HeldLease]) -> Reply[Nothing]:
        self._lease.release(call.request)
        return Reply(Nothing())

    async def _limit(self, call: RpcCall[Limit]) -> Reply[LimitReply]:
        return Reply(LimitReply(self._log.limit(call.request.after, call.request.bytes_max)))

    async def _slices(self, call: RpcCall[PlanSlices]) -> Reply[PlannedSlices]:
        slices = self._log.slices(call.request.after, call.request.upto, call.request.bytes_max)
        return Reply(PlannedSlices(slices=slices, host=host_identity()))

    async def _read(self, call: RpcCall[ReadExtent]) -> AsyncIterator[Reply[Nothing]]:
        extent = call.request
        for start in range(extent.start, extent.end, READ_CHUNK_BYTES):
            length = min(READ_CHUNK_BYTES, extent.end - start)
            try:
                data = await self._log.read(extent.sequence, start, length)
            except SegmentGone as error:
                raise RangeGone(str(error)) from error
            yield Reply(Nothing(), data)

    async def _pace(self, call: RpcCall[SplitPace]) -> Reply[Nothing]:
        size = min(max(0, call.request.bytes), PACE_BYTES_MAX)
        self._look()
        if call.request.upkeep:
            await self._pacing.take(Lane.UPKEEP, size, least=self._upkeep_least_bytes_per_second)
        else:
            await self._pacing.take(Lane.SPLIT, size, least=self._least_bytes_per_second)
        return Reply(Nothing())

    def _look(self) -> None:
        """Measure, about once a second, how many bytes a second the split and upkeep get at least, however slow commits
        become."""
        now = self._clock.monotonic()
        elapsed = now - self._looked_at
        if elapsed >= LOOK_SECONDS:
            written = self._written_bytes()
            growth = (written - self._written_before) / elapsed
            self._looked_at, self._written_before = now, written
            lag = sum(group.unsplit_bytes for group in self._log.positions())
            self._least_bytes_per_second = growth * min(lag / LAG_BYTES, CATCH_UP)
            waiting = max(lag / LAG_BYTES - 1, self._upkeep_bytes() / UPKEEP_LAG_BYTES)
            self._upkeep_least_bytes_per_second = growth * min(waiting, CATCH_UP)

    async def _damaged(self, call: RpcCall[DamageMet]) -> Reply[DamageReply]:
        place = call.request
        return Reply(DamageReply(await self._log.damaged(position_of(place.sequence, place.offset))))

    async def _retention_classes(self, call: RpcCall[Nothing]) -> Reply[RetentionClasses]:
        return Reply(RetentionClasses(await self._log.retention_classes()))

    async def _record(self, call: RpcCall[RecordSplit]) -> Reply[RecordSplitReply]:
        # A recording that has begun runs to its end, even when its caller hangs up: the caller will ask again.
        task = self._recordings.start(self._record_fenced(call.request))
        return Reply(RecordSplitReply(await asyncio.shield(task)))

    async def _record_fenced(self, request: RecordSplit) -> list[str]:
        async with self._turn:
            self._lease.check(request.lease)
            return await self._log.record(request.ranges, request.files)

    async def _report(self, call: RpcCall[ReportProgress]) -> Reply[Nothing]:
        self._lease.check(call.request.lease)
        if call.request.progress is not None:
            self._progress, self._progress_ms = call.request.progress, self._clock.now_ms()
        if call.request.error:
            self.record_error(call.request.error)
        return Reply(Nothing())
