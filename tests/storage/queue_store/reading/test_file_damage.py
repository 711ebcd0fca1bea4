"""With any byte of a run damaged, or a cut anywhere: an error that names the file, never wrong bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import WatchedFiles, make_batch, write_run
from tests.storage.queue_store.test_store import log_starts

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore

BATCHES = [make_batch(1, 0, records=2), make_batch(1, 2), make_batch(7, 5, timestamp=1001)]


async def read_all(store: QueueStore, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while (stored := await store.history.read(queue_id, 0, offset, 100)) is not None:
        found += map(bytes, stored.batches)
        offset = stored.next_offset
    return found


def expected(queue_id: int) -> list[bytes]:
    return [batch.data for batch in BATCHES if batch.queue_id == queue_id]


async def read_damaged(files: WatchedFiles, whole: bytes, damaged: bytes, database: str, cache_bytes: int) -> int:
    """Read everything of a store whose run was damaged; how many queues reported it."""
    files.put("runs/a.run", damaged)
    store = await QueueStore.open(files, database, QueueStoreConfig(read_cache_bytes=cache_bytes), FakeClock())
    reported = 0
    for queue_id in (1, 7):
        try:
            found = await read_all(store, queue_id)
        except StorageError as error:
            reported += "a.run" in str(error)
        else:
            assert found == expected(queue_id)
    await store.close()
    files.put("runs/a.run", whole)
    return reported


async def committed(database: str) -> tuple[WatchedFiles, bytes]:
    files = WatchedFiles()
    store = await QueueStore.open(files, database, QueueStoreConfig(), FakeClock())
    await store.splits.record(0, 0, 1, [write_run(files, "a.run", BATCHES)], applied_index=1)
    await store.close()
    return files, files.content("runs/a.run")


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_every_damaged_byte_is_reported(tmp_path: Path, cache_bytes: int) -> None:
    async def scenario() -> None:
        database = str(tmp_path / "manifest.sqlite")
        files, whole = await committed(database)
        assert await read_damaged(files, whole, whole, database, cache_bytes) == 0
        for position in range(len(whole)):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << position % 8
            reported = await read_damaged(files, whole, bytes(damaged), database, cache_bytes)
            in_batches = 64 <= position < 64 + sum(len(batch.data) for batch in BATCHES)
            assert reported == (1 if in_batches else 2), f"byte {position}"

    asyncio.run(scenario())


def test_every_cut_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = str(tmp_path / "manifest.sqlite")
        files, whole = await committed(database)
        for length in range(0, len(whole), 7):
            assert await read_damaged(files, whole, whole[:length], database, 0) == 2, f"cut at {length}"
        assert await read_damaged(files, whole, whole + bytes(64), database, 0) == 2

    asyncio.run(scenario())


def test_a_bad_extent_is_read_again_once_it_is_mended(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = str(tmp_path / "manifest.sqlite")
        files, _whole = await committed(database)
        store = await QueueStore.open(files, database, QueueStoreConfig(), FakeClock())
        files.flip("runs/a.run", 800)
        with pytest.raises(StorageError, match=r"a\.run: extent of 160 bytes at 64 fails its CRC"):
            await store.history.read(1, 0, 0, 1000)
        assert {sample.name: sample.value for sample in store.samples()}[
            "mainstem_queue_store_checksum_failures_total"
        ] == 1
        files.flip("runs/a.run", 800)
        assert await read_all(store, 1) == expected(1)
        await store.close()

    asyncio.run(scenario())


def test_a_missing_run_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = str(tmp_path / "manifest.sqlite")
        files, _whole = await committed(database)
        await files.remove("runs/a.run")
        store = await QueueStore.open(files, database, QueueStoreConfig(), FakeClock())
        with pytest.raises(StorageError, match=r"runs/a\.run: the manifest names this file, but it is not there"):
            await store.history.read(1, 0, 0, 1000)
        await store.close()

    asyncio.run(scenario())


async def three_runs(database: str, clock: FakeClock | None = None) -> tuple[WatchedFiles, QueueStore]:
    """Queue 1 is in all of them, queue 2, 3 and 4 in one each. Nothing of them is in memory."""
    files = WatchedFiles()
    config = QueueStoreConfig(read_cache_bytes=0, index_cache_bytes=0, open_files_max=1)
    store = await QueueStore.open(files, database, config, clock or FakeClock())
    for number in range(3):
        run = write_run(files, f"{number}.run", [make_batch(1, number), make_batch(2 + number, 0)])
        await store.splits.record(0, number, number + 1, [run], applied_index=number)
    return files, store


def samples_of(store: QueueStore) -> dict[str, float]:
    return {sample.name: sample.value for sample in store.samples()}


@pytest.mark.parametrize("how", ["missing", "index", "frame", "unreadable"])
def test_a_bad_run_costs_itself_only(tmp_path: Path, how: str) -> None:
    """Retention goes on with the others, before it and behind it, and the bad one is named until it is whole again."""

    async def scenario() -> None:
        clock = FakeClock()
        files, store = await three_runs(str(tmp_path / "manifest.sqlite"), clock)
        whole = files.content("runs/1.run")
        files.put("runs/orphan.run", b"of nobody")
        if how == "missing":
            await files.remove("runs/1.run")
        elif how == "unreadable":
            for _ in range(10):
                files.fail("read", path="runs/1.run")
        else:
            files.flip("runs/1.run", 8 * (len(whole) - (70 if how == "index" else 10)))
        await store.retention.retain(log_starts({1: 2}))
        assert list(store.manifest.files) == ["1.run", "2.run"], "the first is dead, the second nobody can tell"
        rows = [rows async for rows in store.stored.all_rows(lambda queue_ids, offsets: offsets * 0)]
        assert [rows["base_offset"].tolist() for rows in rows] == [[2, 0]]
        assert [file.name for file in await store.stored.files_of(1, 0)] == ["2.run"]
        (damage,) = store.damaged.all()
        assert damage.name == "1.run"
        assert "runs/1.run" in damage.reason
        assert samples_of(store)["mainstem_queue_store_damaged_files"] == 1
        await store.retention.retain(log_starts({1: 3, 4: 1}))
        assert list(store.manifest.files) == ["1.run"]
        assert "runs/orphan.run" in files.paths()
        clock.advance(2 * 3600.0)
        await store.retention.retain(log_starts({}))
        assert "runs/orphan.run" not in files.paths(), "orphans go all the same"
        await store.close()

    asyncio.run(scenario())


def test_who_must_know_all_rows_is_told_of_a_bad_run(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, store = await three_runs(str(tmp_path / "manifest.sqlite"))
        await files.remove("runs/1.run")
        with pytest.raises(StorageError, match=r"runs/1\.run"):
            async for _rows in store.stored.all_rows(lambda queue_ids, offsets: offsets * 0, whole=True):
                pass
        await store.close()

    asyncio.run(scenario())


def test_retention_leaves_readers_their_indexes(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = str(tmp_path / "manifest.sqlite")
        files, store = await three_runs(database)
        await store.close()
        config = QueueStoreConfig(read_cache_bytes=0, index_cache_bytes=200)  # room for one
        store = await QueueStore.open(files, database, config, FakeClock())
        assert await store.history.read(2, 0, 0, 10) is not None
        assert await store.history.read(2, 0, 0, 10) is not None
        await store.retention.retain(log_starts({1: 0, 2: 0, 3: 0, 4: 0}))
        async for _rows in store.stored.all_rows(lambda queue_ids, offsets: offsets * 0):
            pass
        loads = store.stored.open_files.index_loads
        assert await store.history.read(2, 0, 0, 10) is not None
        assert store.stored.open_files.index_loads == loads, "the index of its run is still in memory"
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", range(3))
def test_a_bad_run_is_in_the_way_of_what_is_in_it_only(tmp_path: Path, bad: int) -> None:
    """The indexes that a search happens to probe on its way to the others."""

    async def scenario() -> None:
        files, store = await three_runs(str(tmp_path / "manifest.sqlite"))
        await files.remove(f"runs/{bad}.run")
        await store.close()
        config = QueueStoreConfig(read_cache_bytes=0, index_cache_bytes=0, open_files_max=1)
        store = await QueueStore.open(files, str(tmp_path / "manifest.sqlite"), config, FakeClock())
        for number in range(3):
            if number == bad:
                for queue_id, offset in ((1, number), (2 + number, 0)):
                    with pytest.raises(StorageError, match=rf"runs/{bad}\.run"):
                        await store.history.read(queue_id, 0, offset, 1)
            else:
                for queue_id, offset in ((1, number), (2 + number, 0)):
                    stored = await store.history.read(queue_id, 0, offset, 1)
                    assert stored is not None
                    assert stored.base_offset == offset
        await store.close()

    asyncio.run(scenario())


def test_another_runs_file_in_a_runs_place_is_damage(tmp_path: Path) -> None:
    """Though it is whole, and has as much of everything."""

    async def scenario() -> None:
        files, store = await three_runs(str(tmp_path / "manifest.sqlite"))
        files.put("runs/1.run", files.content("runs/0.run"))
        with pytest.raises(StorageError, match=r"runs/1\.run: this is another file's"):
            await store.history.read(1, 0, 1, 10)
        assert [damage.name for damage in store.damaged.all()] == ["1.run"]
        await store.close()

    asyncio.run(scenario())
