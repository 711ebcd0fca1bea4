"""The split service over its port: lease and fencing, splits that take turns with grants, status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.splitting.split_log import NOW_MS, SplitJournal
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.rpc.client import Client
from mainstem.rpc.errors import CallFailed, DeadlineExceeded
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.split import (
    ACQUIRE,
    PACE,
    PROGRESS,
    READ,
    RECORD_SPLIT,
    RELEASE,
    RENEW,
    RETENTION_CLASSES,
    AcquireLease,
    FileDescription,
    HeldLease,
    Lease,
    LeaseHeld,
    LeaseLost,
    RangeGone,
    ReadExtent,
    RecordSplit,
    ReportProgress,
    SplitPace,
    SplitProgress,
    WriteGroupPositions,
    WriteGroupRange,
)
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.method import Nothing
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.split.split_lease import LEASE_SECONDS, SplitLease
from mainstem.storage.split.split_service import (
    CATCH_UP,
    LAG_BYTES,
    PACE_BYTES_MAX,
    READ_CHUNK_BYTES,
    UPKEEP_LAG_BYTES,
    SplitService,
)

FILE = FileDescription(
    name="a.run",
    retention_class="default",
    bytes=1,
    batch_bytes=1,
    batch_count=1,
    record_count=1,
    queue_count=1,
    min_timestamp=0,
    max_timestamp=0,
)


class SlowRecording(SplitJournal):
    """A journal whose splits wait until the test lets them go."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, segment_bytes=4 << 20, classes={0: "default"})
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.unsplit_bytes: int | None = None
        """The bytes said to be unsplit; None: those that are."""

    def positions(self) -> list[WriteGroupPositions]:
        found = super().positions()
        if self.unsplit_bytes is None:
            return found
        return [WriteGroupPositions(group=0, committed=9, durable=9, split=0, pruned=0,
                               unsplit_bytes=self.unsplit_bytes, oldest_unsplit_ms=-1)]  # fmt: skip

    async def record(self, ranges: Sequence[WriteGroupRange], files: Sequence[FileDescription]) -> list[str]:
        self.begun.set()
        await self.go.wait()
        return await super().record(ranges, files)


class Bench:
    """A node's split service behind a server, and a client of it."""

    def __init__(self, directory: Path) -> None:
        self.journal = SlowRecording(directory)
        self.clock = FakeClock(NOW_MS)
        self.ids = 0
        self.pacing = Pacing(self.clock, slowdown_max=1.2, bytes_per_second_min=1 << 20)
        self.written = self.upkeep_bytes = 0
        self.service = self.start(1)

    def start(self, incarnation: int) -> SplitService:
        """The service as a start of the node makes it."""
        lease = SplitLease(self.clock, incarnation, self.new_id)
        return SplitService(
            self.journal,
            self.clock,
            lease,
            self.pacing,
            lambda: self.written,
            upkeep_bytes=lambda: self.upkeep_bytes,
        )

    def new_id(self) -> str:
        self.ids += 1
        return f"lease-{self.ids}"

    async def serve(self, service: SplitService) -> tuple[RpcServer, Client]:
        handlers = Handlers()
        service.register(handlers)
        server = RpcServer(handlers)
        host, port = await server.start("127.0.0.1", 0)
        return server, Client(host, port, name="test")

    def run(self, test: Callable[[Client], Awaitable[None]]) -> None:
        async def main() -> None:
            server, client = await self.serve(self.service)
            async with asyncio.timeout(PATIENCE_SECONDS), client:
                await test(client)
            await server.close()
            await self.service.close()

        asyncio.run(main())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def acquire(client: Client, holder: str, **options: object) -> Lease:
    request = AcquireLease(holder=holder, **options)  # type: ignore[arg-type]
    return (await client.call(ACQUIRE, request, timeout_seconds=15)).message


def held(lease: Lease) -> HeldLease:
    return HeldLease(lease.lease_id, lease.epoch)


async def commit(client: Client, lease: Lease, *ranges: WriteGroupRange) -> list[str]:
    request = RecordSplit(held(lease), ranges, (FILE,))
    return (await client.call(RECORD_SPLIT, request, timeout_seconds=15)).message.outcomes


def test_second_splitter_is_refused_naming_the_first(bench: Bench) -> None:
    async def test(client: Client) -> None:
        await acquire(client, "first splitter")
        with pytest.raises(LeaseHeld, match="held by first splitter"):
            await acquire(client, "second splitter")

    bench.run(test)


def test_renewed_lease_lives_and_a_silent_one_ends(bench: Bench) -> None:
    async def test(client: Client) -> None:
        lease = await acquire(client, "first")
        for _ in range(3):
            bench.clock.advance(LEASE_SECONDS * 0.9)
            await client.call(RENEW, held(lease), timeout_seconds=5)
        bench.clock.advance(LEASE_SECONDS)
        later = await acquire(client, "second")
        assert later.epoch > lease.epoch
        with pytest.raises(LeaseLost, match="second"):
            await client.call(RENEW, held(lease), timeout_seconds=5)

    bench.run(test)


def test_zombie_records_nothing(bench: Bench) -> None:
    async def test(client: Client) -> None:
        zombie = await acquire(client, "zombie")
        bench.clock.advance(LEASE_SECONDS)
        heir = await acquire(client, "heir")
        with pytest.raises(LeaseLost, match="has ended"):
            await commit(client, zombie, WriteGroupRange(0, 0, 5))
        assert bench.journal.split == {}
        assert await commit(client, heir, WriteGroupRange(0, 0, 5)) == ["committed"]
        with pytest.raises(LeaseLost):
            await commit(client, zombie, WriteGroupRange(0, 5, 9))
        assert bench.journal.split == {0: 5}

    bench.run(test)


def test_lease_from_before_a_restart_is_refused_and_epochs_rise(bench: Bench) -> None:
    async def test(client: Client) -> None:
        before = await acquire(client, "before the restart")
        server, restarted = await bench.serve(bench.start(2))
        async with restarted:
            with pytest.raises(LeaseLost, match="no splitter holds it"):
                await commit(restarted, before, WriteGroupRange(0, 0, 5))
            assert (await acquire(restarted, "after it")).epoch > before.epoch
        await server.close()

    bench.run(test)


def test_waiting_splitter_gets_the_lease_when_it_is_released(bench: Bench) -> None:
    async def test(client: Client) -> None:
        first = await acquire(client, "embedded", yields=True)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(acquire(client, "once", wait_seconds=30))
            wanted = ""
            while not wanted:
                wanted = (await client.call(RENEW, held(first), timeout_seconds=5)).message.wanted_by
            assert wanted.startswith("once")
            assert not waiting.done()
            await client.call(RELEASE, held(first), timeout_seconds=5)
        assert waiting.result().epoch > first.epoch

    bench.run(test)


def test_holder_that_does_not_yield_is_not_asked_to(bench: Bench) -> None:
    async def test(client: Client) -> None:
        first = await acquire(client, "detached")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(acquire(client, "once", wait_seconds=30))
            await asyncio.sleep(0.05)
            assert (await client.call(RENEW, held(first), timeout_seconds=5)).message.wanted_by == ""
            waiting.cancel()

    bench.run(test)


def test_grant_waits_for_a_split_that_was_begun(bench: Bench) -> None:
    async def test(client: Client) -> None:
        first = await acquire(client, "first")
        bench.journal.go.clear()
        async with asyncio.TaskGroup() as tasks:
            committing = tasks.create_task(commit(client, first, WriteGroupRange(0, 0, 5)))
            await bench.journal.begun.wait()
            bench.clock.advance(LEASE_SECONDS)
            granted = tasks.create_task(acquire(client, "second", wait_seconds=30))
            await asyncio.sleep(0.05)
            assert not granted.done()
            bench.journal.go.set()
        assert committing.result() == ["committed"]
        assert granted.result().epoch > first.epoch

    bench.run(test)


def test_split_is_finished_when_its_caller_gives_up(bench: Bench) -> None:
    async def test(client: Client) -> None:
        lease = await acquire(client, "first")
        bench.journal.go.clear()
        request = RecordSplit(held(lease), (WriteGroupRange(0, 0, 5),), (FILE,))
        with pytest.raises(DeadlineExceeded):
            await client.call(RECORD_SPLIT, request, timeout_seconds=0.05)
        bench.journal.go.set()
        assert await commit(client, lease, WriteGroupRange(0, 0, 5)) == ["replayed"]
        assert bench.journal.recorded == [((WriteGroupRange(0, 0, 5),), (FILE,))]

    bench.run(test)


def test_gap_is_refused_and_a_repeat_ignored(bench: Bench) -> None:
    async def test(client: Client) -> None:
        lease = await acquire(client, "first")
        outcomes = [
            await commit(client, lease, WriteGroupRange(0, after, upto))
            for after, upto in ((0, 5), (0, 5), (6, 9), (5, 9))
        ]
        assert [outcome.split(":")[0] for (outcome,) in outcomes] == ["committed", "replayed", "refused", "committed"]

    bench.run(test)


def test_extent_is_streamed_in_pieces(bench: Bench) -> None:
    async def test(client: Client) -> None:
        block = bench.journal.append(0, [(0, bytes(range(256)) * 12_000)])
        request = ReadExtent(block.sequence, block.start, block.end)
        pieces = [bytes(reply.buffers[0]) async for reply in client.stream(READ, request, timeout_seconds=10)]
        data = bench.journal.segment(block.sequence).read_bytes()
        assert b"".join(pieces) == data[block.start : block.end]
        assert max(map(len, pieces)) == READ_CHUNK_BYTES

    bench.run(test)


def test_recycled_segment_is_gone(bench: Bench) -> None:
    async def test(client: Client) -> None:
        with pytest.raises(RangeGone, match="segment 77 is gone"):
            async for _ in client.stream(READ, ReadExtent(77, 0, 10), timeout_seconds=10):
                pass

    bench.run(test)


def test_failing_metadata_fails_the_call_instead_of_dropping_topics(bench: Bench) -> None:
    async def test(client: Client) -> None:
        def not_loaded() -> None:
            raise RuntimeError("metadata is not loaded")

        bench.journal.before_classes = not_loaded
        with pytest.raises(CallFailed, match="metadata is not loaded"):
            await client.call(RETENTION_CLASSES, Nothing(), timeout_seconds=5)

    bench.run(test)


def test_status_tells_positions_lag_progress_and_error(bench: Bench) -> None:
    async def test(client: Client) -> None:
        block = bench.journal.append(3, [(0, b"x" * 1000)])
        bench.clock.advance(90)
        lease = await acquire(client, "first")
        progress = SplitProgress(
            batch_id=4, timestamp="2026-01-01T00:00:00Z", duration_ms={"addBatch": 7}, slices=2, bytes=10, batches=3
        )
        await client.call(
            PROGRESS, ReportProgress(lease=held(lease), progress=progress, error="disk full"), timeout_seconds=5
        )
        status = bench.service.status()
        assert status["groups"] == {
            "3": {
                "committed": 1,
                "durable": 1,
                "split": 0,
                "pruned": 0,
                "lag_bytes": block.end - block.start,
                "lag_seconds": 90.0,
                "files": 0,
            }
        }
        assert status["last_error"]["message"] == "disk full"
        assert status["progress"]["batch_id"] == 4
        assert status["splitter"].startswith("first")
        state = bench.service.lease_held()
        assert state is not None
        assert (state.epoch, state.expires_in_seconds) == (lease.epoch, LEASE_SECONDS)
        lag = bench.service.lag()
        assert (lag.unsplit_bytes, lag.oldest_seconds) == (block.end - block.start, 90.0)

    bench.run(test)


def test_zombie_cannot_report_either(bench: Bench) -> None:
    async def test(client: Client) -> None:
        lease = await acquire(client, "first")
        bench.clock.advance(LEASE_SECONDS)
        with pytest.raises(LeaseLost):
            await client.call(PROGRESS, ReportProgress(lease=held(lease), error="late"), timeout_seconds=5)
        assert bench.service.status()["last_error"] is None

    bench.run(test)


class Recorded(Pacing):
    """Grants everything, and remembers what it was asked."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock, slowdown_max=1.2, bytes_per_second_min=1 << 20)
        self.asked: list[tuple[Lane, int, float]] = []

    async def take(self, lane: Lane, size: int, *, least: float = 0.0) -> bool:
        self.asked.append((lane, size, least))
        return True


def test_the_more_is_unsplit_the_more_the_split_gets_whatever_publishing_feels(bench: Bench) -> None:
    bench.pacing = pacing = Recorded(bench.clock)
    bench.service = bench.start(1)

    async def test(client: Client) -> None:
        for lag, size in ((0, 1), (LAG_BYTES // 2, 2), (LAG_BYTES, 3), (100 * LAG_BYTES, PACE_BYTES_MAX + 1)):
            bench.clock.advance(2)
            bench.written += 2 * 1000
            bench.journal.unsplit_bytes = lag
            await client.call(PACE, SplitPace(size), timeout_seconds=15)
        bench.written += 10**9  # not looked at again so soon
        await client.call(PACE, SplitPace(-5), timeout_seconds=15)

    bench.run(test)
    assert pacing.asked == [
        (Lane.SPLIT, 1, 0.0), (Lane.SPLIT, 2, 500.0), (Lane.SPLIT, 3, 1000.0),
        (Lane.SPLIT, PACE_BYTES_MAX, 1000.0 * CATCH_UP), (Lane.SPLIT, 0, 1000.0 * CATCH_UP),
    ]  # fmt: skip


def test_the_more_waits_to_be_merged_and_uploaded_the_more_upkeep_gets(bench: Bench) -> None:
    bench.pacing = pacing = Recorded(bench.clock)
    bench.service = bench.start(1)

    async def test(client: Client) -> None:
        for lag, unsplit in (
            (0, 0),
            (UPKEEP_LAG_BYTES // 2, 0),
            (100 * UPKEEP_LAG_BYTES, 0),
            (0, LAG_BYTES),
            (0, 2 * LAG_BYTES),
        ):
            bench.clock.advance(2)
            bench.written += 2 * 1000
            bench.upkeep_bytes, bench.journal.unsplit_bytes = lag, unsplit
            await client.call(PACE, SplitPace(7, upkeep=True), timeout_seconds=15)

    bench.run(test)
    assert pacing.asked == [
        (Lane.UPKEEP, 7, 0.0), (Lane.UPKEEP, 7, 500.0), (Lane.UPKEEP, 7, 1000.0 * CATCH_UP),
        (Lane.UPKEEP, 7, 0.0), (Lane.UPKEEP, 7, 1000.0),  # a split may wait for the task
    ]  # fmt: skip
