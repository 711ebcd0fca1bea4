"""Whatever byte of a run is damaged, or wherever it is cut: an error that names the file, never wrong bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import WatchedFiles, make_batch, write_run

from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore

BATCHES = [make_batch(1, 0, records=2), make_batch(1, 2), make_batch(7, 5, timestamp=1001)]


async def read_all(store: QueueStore, queue_id: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while (stored := await store.read(queue_id, 0, offset, 100)) is not None:
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
    await store.commit(0, 0, 1, [write_run(files, "a.run", BATCHES)], applied_index=1)
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
            await store.read(1, 0, 0, 1000)
        assert {sample.name: sample.value for sample in store.samples()}[
            "mainstem_queue_store_checksum_failures_total"] == 1
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
        with pytest.raises(StorageError, match=r"runs/a\.run: the manifest names this run, but it is not there"):
            await store.read(1, 0, 0, 1000)
        await store.close()

    asyncio.run(scenario())

