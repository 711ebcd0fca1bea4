"""The queue store as its callers see it: splits, reads, retention, orphans."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock
from tests.harness.patience import PATIENCE_SECONDS
from tests.storage.queue_store.runs import Batch, WatchedFiles, make_batch, write_run

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.changes.file_retention import LogStartsOf
from mainstem.storage.queue_store.changes.splits import SplitOutcome
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.store_file import StoreFile

GONE = numpy.iinfo(numpy.int64).max


class Bench:
    """A store on a simulated disk, its manifest in a directory, a clock that stands still."""

    def __init__(self, directory: Path | str, config: QueueStoreConfig | None = None) -> None:
        self.files = WatchedFiles()
        self.clock = FakeClock()
        self.database = str(Path(directory) / "manifest.sqlite")
        self.config = config or QueueStoreConfig()
        self.store: QueueStore

    async def start(self) -> QueueStore:
        self.store = await QueueStore.open(self.files, self.database, self.config, self.clock)
        return self.store

    async def restart(self) -> QueueStore:
        await self.store.close()
        assert self.files.open_count == 0, "close leaves nothing open"
        return await self.start()

    def run(self, scenario: Callable[[Bench], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.start()
            await scenario(self)
            await self.store.close()

        asyncio.run(whole())

    def runs(self) -> set[str]:
        return {path.removeprefix("runs/") for path in self.files.paths() if path.startswith("runs/")}


def log_starts(starts: dict[int, int]) -> LogStartsOf:
    return lambda queue_ids: numpy.array([starts.get(int(queue_id), GONE) for queue_id in queue_ids], numpy.int64)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for inside the store
            await asyncio.sleep(0.001)


async def read_all(store: QueueStore, queue_id: int, group: int, offset: int, bytes_max: int) -> list[bytes]:
    found: list[bytes] = []
    while (stored := await store.history.read(queue_id, group, offset, bytes_max)) is not None:
        assert stored.next_offset > offset
        assert stored.batches
        assert len(stored.batches) == 1 or sum(map(len, stored.batches)) <= bytes_max
        found += map(bytes, stored.batches)
        offset = stored.next_offset
    return found


# --- reading ----------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from([0, 20_000, 1 << 20]), st.sampled_from([1, 700, 70_000, 1 << 20]))
def test_f_what_was_split_is_read_once_in_order_from_any_offset(seed: int, cache_bytes: int, bytes_max: int) -> None:
    """Random batches of random queues, in random slices and classes over two groups."""
    choice = random.Random(seed)
    logs: dict[tuple[int, int], list[Batch]] = {}
    with tempfile.TemporaryDirectory() as directory:
        config = QueueStoreConfig(
            read_cache_bytes=cache_bytes,
            read_chunk_bytes=4096,
            index_cache_bytes=choice.choice([0, 1 << 20]),
            open_files_max=choice.choice([1, 2, 100]),
        )
        bench = Bench(directory, config)

        async def scenario(bench: Bench) -> None:
            for number in range(choice.randint(1, 6)):
                classes: dict[str, list[Batch]] = {"forever": [], "internal": []}
                classes_of_slice: dict[int, str] = {}
                for _ in range(choice.randint(0, 25)):
                    queue_id = choice.randint(0, 5)
                    log = logs.setdefault((queue_id % 2, queue_id), [])
                    batch = make_batch(
                        queue_id,
                        log[-1].last_offset + 1 if log else choice.randint(0, 3),
                        records=choice.randint(1, 3),
                        size=choice.choice([61, 100, 5000, 30_000]),
                    )
                    log.append(batch)
                    home = classes_of_slice.setdefault(queue_id, choice.choice(list(classes)))
                    classes[home].append(batch)
                runs = [
                    write_run(bench.files, f"{number}-{name}.run", batches, name)
                    for name, batches in classes.items()
                    if batches
                ]
                for group in (0, 1):
                    outcome = await bench.store.splits.record(group, number, number + 1, runs, applied_index=number)
                    assert outcome is SplitOutcome.RECORDED
                if choice.random() < 0.3:
                    await bench.restart()
            for (group, queue_id), log in logs.items():
                for offset in {0, log[-1].last_offset, log[-1].last_offset + 1, *choice.choices(range(60), k=4)}:
                    expected = [batch.data for batch in log if batch.last_offset >= offset]
                    assert await read_all(bench.store, queue_id, group, offset, bytes_max) == expected
                    lasts = [last async for _first, last, _time in bench.store.history.extents(queue_id, group, offset)]
                    assert lasts[-1:] == ([log[-1].last_offset] if expected else [])

        bench.run(scenario)


def test_a_read_stops_at_a_gap_and_goes_on_behind_it(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        batches = [make_batch(1, 0), make_batch(1, 1), make_batch(1, 9)]
        await bench.store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", batches)], applied_index=1)
        first = await bench.store.history.read(1, 0, 0, 1 << 20)
        assert first is not None
        assert (first.base_offset, first.next_offset, len(first.batches)) == (0, 2, 2)
        second = await bench.store.history.read(1, 0, 2, 1 << 20)
        assert second is not None
        assert (second.base_offset, second.next_offset) == (9, 10)

    Bench(tmp_path).run(scenario)


def test_the_first_batch_comes_whole_however_little_is_asked_for(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        large = make_batch(1, 0, size=900_000)
        await bench.store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", [large])], applied_index=1)
        stored = await bench.store.history.read(1, 0, 0, 1)
        assert stored is not None
        assert list(map(bytes, stored.batches)) == [large.data]

    Bench(tmp_path).run(scenario)


def test_a_queue_of_few_runs_is_found_without_reading_the_others_again(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(30):
            batches = [make_batch(queue_id, number) for queue_id in range(10)]
            if number in (3, 20):
                batches.append(make_batch(99, number))
            await bench.store.splits.record(
                0, number, number + 1, [write_run(bench.files, f"{number}.run", batches)], applied_index=1
            )
        assert len(await read_all(bench.store, 99, 0, 0, 1000)) == 2
        bench.files.reads.clear()
        assert len(await read_all(bench.store, 99, 0, 0, 1000)) == 2
        paths = {path for path, _position, _length in bench.files.reads}
        assert len(paths) < 30 // 2

    Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0, read_cache_bytes=0)).run(scenario)


def test_a_sequential_reader_is_read_ahead_of_and_then_waits_no_more(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(4):
            batches = [make_batch(1, number * 64 + place, size=8000) for place in range(64)]
            await bench.store.splits.record(
                0, number, number + 1, [write_run(bench.files, f"{number}.run", batches)], applied_index=1
            )
        offset = 0
        waited = []
        while (stored := await bench.store.history.read(1, 0, offset, 64_000)) is not None:
            waited.append(not stored.from_cache)
            offset = stored.next_offset
            for _ in range(60):
                await asyncio.sleep(0)  # the reader is slower than the disk
        assert offset == 256
        assert sum(waited) <= 3, waited

    Bench(tmp_path, QueueStoreConfig(read_chunk_bytes=65536)).run(scenario)


# --- splits ----------------------------------------------------------------------------------------------


def test_a_split_continues_the_position_or_changes_nothing(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        store = bench.store
        run = write_run(bench.files, "a.run", [make_batch(1, 0)])
        other = write_run(bench.files, "b.run", [make_batch(1, 1)])
        assert await store.splits.record(0, 0, 5, [run], applied_index=7) is SplitOutcome.RECORDED
        for after, upto in ((0, 5), (2, 3)):
            assert await store.splits.record(0, after, upto, [other], applied_index=8) is SplitOutcome.REPLAY
        for after, upto in ((6, 9), (3, 9), (0, 9)):
            assert await store.splits.record(0, after, upto, [other], applied_index=8) is SplitOutcome.GAP
        for _ in range(2):
            assert (store.splits.split_position(0), store.splits.applied_index(0)) == (5, 7)
            assert store.stored.file_count(0) == 1
            assert (store.splits.split_position(1), store.stored.file_count(1)) == (0, 0)
            assert len(await read_all(store, 1, 0, 0, 1000)) == 1
            store = await bench.restart()
        assert await store.splits.record(0, 5, 6, [], applied_index=9) is SplitOutcome.RECORDED
        assert (store.splits.split_position(0), store.stored.file_count(0)) == (6, 1)

    Bench(tmp_path).run(scenario)


def test_a_group_whose_split_was_refused_does_not_see_the_run(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "a.run", [make_batch(1, 0), make_batch(2, 0)])
        assert await bench.store.splits.record(0, 0, 5, [run], applied_index=1) is SplitOutcome.RECORDED
        assert await bench.store.splits.record(1, 3, 5, [run], applied_index=1) is SplitOutcome.GAP
        assert await bench.store.history.read(1, 0, 0, 1000) is not None
        assert await bench.store.history.read(2, 1, 0, 1000) is None
        assert await bench.store.splits.record(1, 0, 5, [run], applied_index=2) is SplitOutcome.RECORDED
        assert await bench.store.history.read(2, 1, 0, 1000) is not None

    Bench(tmp_path).run(scenario)


def altered(run: StoreFile, **changes: object) -> StoreFile:
    fields = {field: getattr(run, field) for field in StoreFile.__struct_fields__}
    return StoreFile(**{**fields, **changes})


def test_g_a_split_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "a.run", [make_batch(1, 0)])
        await bench.store.splits.verify([run])
        torn = bench.files.content("runs/a.run")[:-1]
        bench.files.put("runs/torn.run", torn)
        bad: Sequence[StoreFile] = [
            altered(run, name="missing.run"),
            altered(run, name="torn.run"),
            altered(run, name="../a.run"),
            altered(run, name="a.run.tmp-1"),
            altered(run, record_count=2),
        ]
        for file in bad:
            with pytest.raises(StorageError):
                await bench.store.splits.verify([file])
            with pytest.raises(StorageError):
                await bench.store.splits.record(0, 0, 1, [file], applied_index=1)
        assert (bench.store.splits.split_position(0), bench.store.stored.file_count(0)) == (0, 0)
        assert await bench.store.splits.record(0, 0, 1, [run], applied_index=1) is SplitOutcome.RECORDED

    Bench(tmp_path).run(scenario)


def test_a_split_is_carried_through_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        position = told = 0
        for steps in range(40):
            run = write_run(bench.files, f"{steps}.run", [make_batch(1, steps)])
            commit = asyncio.ensure_future(
                bench.store.splits.record(0, position, position + 1, [run], applied_index=steps)
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            commit.cancel()
            await asyncio.gather(commit, return_exceptions=True)
            before = bench.store.splits.split_position(0)
            await bench.restart()
            assert bench.store.splits.split_position(0) == before, "memory and database agree"
            assert bench.store.stored.file_count(0) == before
            told += commit.cancelled() and before > position
            position = before
        assert told, "some were past the point of no return, and were told that they had been cancelled"

    Bench(tmp_path).run(scenario)


# --- retention --------------------------------------------------------------------------------------------


async def two_runs(bench: Bench) -> None:
    first = [make_batch(queue_id, offset) for queue_id in (1, 2) for offset in range(3)]
    second = [make_batch(1, offset) for offset in range(3, 6)]
    await bench.store.splits.record(0, 0, 1, [write_run(bench.files, "a.run", first)], applied_index=1)
    await bench.store.splits.record(0, 1, 2, [write_run(bench.files, "b.run", second)], applied_index=2)


def test_a_run_goes_when_nothing_in_it_is_live(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await two_runs(bench)
        assert await bench.store.retention.retain(log_starts({1: 0, 2: 0})) == []
        assert await bench.store.retention.retain(log_starts({1: 4, 2: 2})) == []
        assert await bench.store.retention.retain(log_starts({1: 5, 2: 2})) == []
        assert bench.runs() == {"a.run", "b.run"}
        assert [file.name for file in await bench.store.retention.retain(log_starts({1: 5}))] == ["a.run"]
        for _ in range(2):
            assert bench.runs() == {"b.run"}
            assert await bench.store.history.read(2, 0, 0, 1000) is None
            assert len(await read_all(bench.store, 1, 0, 5, 1000)) == 1
            assert bench.store.splits.split_position(0) == 2
            await bench.restart()
        assert [file.name for file in await bench.store.retention.retain(log_starts({}))] == ["b.run"]
        assert bench.runs() == set()
        await bench.restart()
        assert bench.store.splits.split_position(0) == 2

    Bench(tmp_path).run(scenario)


def test_live_runs_are_known_by_a_witness(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await two_runs(bench)
        await bench.store.retention.retain(log_starts({1: 0, 2: 0}))
        bench.files.reads.clear()
        await bench.store.retention.retain(log_starts({1: 0, 2: 0}))
        assert bench.files.reads == []

    Bench(tmp_path, QueueStoreConfig(index_cache_bytes=0)).run(scenario)


def test_a_reader_finishes_on_a_run_that_is_dropped_meanwhile(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await two_runs(bench)
        assert await bench.store.history.read(2, 0, 0, 10) is not None  # the index is known, the batches are not cached
        bench.files.gate = asyncio.Event()
        reading = asyncio.ensure_future(bench.store.history.read(1, 0, 0, 250))
        await until(lambda: bench.files.reads[-1] == ("runs/a.run", 64, 240))
        dropping = asyncio.ensure_future(bench.store.retention.retain(log_starts({1: 3})))
        await until(lambda: "a.run" not in bench.runs())
        bench.files.gate.set()
        stored = await reading
        assert stored is not None
        assert list(map(bytes, stored.batches)) == [make_batch(1, offset).data for offset in range(3)]
        assert [file.name for file in await dropping] == ["a.run"]
        assert await bench.store.history.read(1, 0, 0, 250) == await bench.store.history.read(1, 0, 3, 250)
        await bench.restart()

    Bench(tmp_path, QueueStoreConfig(read_cache_bytes=0)).run(scenario)


def test_reads_and_drops_in_any_interleaving_never_err(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        choice = random.Random(5)
        for number in range(20):
            batches = [make_batch(1, number * 4 + place) for place in range(4)]
            await bench.store.splits.record(
                0, number, number + 1, [write_run(bench.files, f"{number}.run", batches)], applied_index=1
            )
        start = 0

        async def reader() -> None:
            while start < 76:
                await asyncio.sleep(0)  # a read that memory answers lets nobody else in
                at = start
                stored = await bench.store.history.read(1, 0, at, choice.choice([1, 200, 2000]))
                assert stored is not None
                assert stored.base_offset == at or start > at
                expected = b"".join(
                    make_batch(1, offset).data for offset in range(stored.base_offset, stored.next_offset)
                )
                assert b"".join(stored.batches) == expected

        async def pruner() -> None:
            nonlocal start
            while start < 76:
                await asyncio.sleep(0)
                start += choice.choice([0, 1, 4])
                await bench.store.retention.retain(log_starts({1: start}))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pruner())
            for _ in range(4):
                tasks.create_task(reader())
        assert len(bench.runs()) <= 2

    Bench(
        tmp_path,
        QueueStoreConfig(index_cache_bytes=300, open_files_max=2, read_cache_bytes=2000, read_chunk_bytes=4096),
    ).run(scenario)


def test_a_split_may_name_a_run_that_retention_dropped(tmp_path: Path) -> None:
    """Two groups share a run; all of it dies between their commits."""

    async def scenario(bench: Bench) -> None:
        run = write_run(bench.files, "a.run", [make_batch(1, 0), make_batch(2, 0)])
        await bench.store.splits.record(0, 0, 5, [run], applied_index=1)
        await bench.store.retention.retain(log_starts({}))
        await bench.restart()
        await bench.store.splits.verify([run])
        assert await bench.store.splits.record(1, 0, 5, [run], applied_index=1) is SplitOutcome.RECORDED
        assert (bench.store.splits.split_position(1), bench.store.stored.file_count(1)) == (5, 0)

    Bench(tmp_path).run(scenario)


# --- orphans ----------------------------------------------------------------------------------------------


def test_files_no_split_names_go_after_their_grace(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await two_runs(bench)
        nothing = log_starts({1: 0, 2: 0})
        late = write_run(bench.files, "late.run", [make_batch(3, 0)])
        write_run(bench.files, "orphan.run", [make_batch(3, 0)])
        bench.files.put("runs/c.run.tmp-0123", b"half")
        bench.files.put("runs/notes.txt", b"somebody's")
        await bench.store.retention.retain(nothing)
        bench.clock.advance(3599)
        await bench.store.retention.retain(nothing)
        assert len(bench.runs()) == 6
        await bench.store.splits.verify([late])
        bench.clock.advance(2)
        await bench.store.retention.retain(nothing)
        assert bench.runs() == {"a.run", "b.run", "late.run", "notes.txt"}
        assert await bench.store.splits.record(0, 2, 3, [late], applied_index=3) is SplitOutcome.RECORDED
        bench.clock.advance(5000)
        await bench.store.retention.retain(log_starts({1: 0, 2: 0, 3: 0}))
        assert bench.runs() == {"a.run", "b.run", "late.run", "notes.txt"}

    Bench(tmp_path).run(scenario)


def test_a_restart_gives_an_orphan_its_whole_grace_again(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        """A crash between a run's rename and its commit."""
        run = write_run(bench.files, "a.run", [make_batch(1, 0)])
        await bench.store.retention.retain(log_starts({}))
        bench.clock.advance(3599)
        await bench.restart()
        await bench.store.retention.retain(log_starts({}))
        bench.clock.advance(3599)
        await bench.store.retention.retain(log_starts({}))
        assert await bench.store.splits.record(0, 0, 1, [run], applied_index=1) is SplitOutcome.RECORDED

    Bench(tmp_path).run(scenario)


RETURNING_SEED = 4
"""Of a disk on which the first two files come back."""


def test_a_file_that_went_and_is_there_again_after_a_loss_of_power_is_an_orphan(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        bench.files.removed_may_return = True
        await two_runs(bench)
        before = bench.runs()
        await bench.store.retention.retain(log_starts({}))
        assert not bench.runs(), "nobody needs them"
        await bench.store.close()
        bench.files.rng.seed(RETURNING_SEED)
        bench.files.crash()
        assert bench.runs() == before
        await bench.start()
        await bench.store.retention.retain(log_starts({}))
        assert bench.runs() == before
        assert (bench.store.stored.file_count(0), bench.store.stored.file_count(1)) == (0, 0)
        bench.clock.advance(3601)
        await bench.store.retention.retain(log_starts({}))
        assert not bench.runs()

    Bench(tmp_path).run(scenario)
