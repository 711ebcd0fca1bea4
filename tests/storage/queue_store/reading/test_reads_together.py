"""A small queue in many files: what a reader needs of them is read in two goes, and nothing of it is trusted more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.storage.queue_store.runs import Batch, indexes_in_pages, make_batch, write_merged, write_run
from tests.storage.queue_store.test_store import Bench, read_all

from mainstem.ports import ColdPart
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_format import EXTENT_BYTES, EXTENT_ROW_BYTES
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.store_files.store_file import path_of

FILES = 20
QUEUES = range(1, 61)
"""Of each file: sixty extents in eight pages, and in eleven chunks."""

BATCHES = 2
SIZE = 350
CHUNK = 4096
ONE, OTHER, BESIDE_OTHER = 3, 40, 39
WHOLE = 1 << 20


@pytest.fixture(autouse=True)
def pages() -> Iterator[None]:
    with indexes_in_pages(8):
        yield


def batches_of(span: int) -> list[Batch]:
    return [
        make_batch(queue_id, span * BATCHES + number, size=SIZE) for queue_id in QUEUES for number in range(BATCHES)
    ]


def name_of(span: int) -> str:
    return f"0-{span}.pack"


LOGS = {
    queue_id: [batch.data for span in range(FILES) for batch in batches_of(span) if batch.queue_id == queue_id]
    for queue_id in (ONE, OTHER, BESIDE_OTHER)
}


async def fill(bench: Bench, spans: int = FILES) -> None:
    """Packed files, one behind the other, each of which was looked at once since the start."""
    store = bench.store
    for span in range(spans):
        run = write_run(bench.files, f"{span}.run", batches_of(span))
        await store.splits.record(0, span, span + 1, [run], applied_index=span + 1)
        entry = [one for one in store.manifest.ranges(0) if one.after == span]
        await store.changes.merge(0, entry, [write_merged(bench.files, name_of(span), 0, batches_of(span))])
    store = await bench.restart()  # the indexes are out of memory
    assert await read_all(store, ONE, 0, 0, WHOLE) == LOGS[ONE][: spans * BATCHES]
    clear(bench)


def clear(bench: Bench) -> None:
    bench.files.together.clear()
    bench.files.reads.clear()
    bench.files.opened.clear()


def bench_at(directory: Path, **config: int) -> Bench:
    return Bench(directory, QueueStoreConfig(**{"read_chunk_bytes": CHUNK, **config}))


def test_pages_and_extents_of_all_files_are_read_in_one_go_each(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        history = bench.store.history
        stored = await history.read(OTHER, 0, 0, WHOLE)
        assert stored is not None
        assert [*map(bytes, stored.batches)] == LOGS[OTHER]
        assert not stored.from_cache
        pages, extents = bench.files.together
        assert len(pages) == len(extents) == FILES
        assert {part.length for part in extents} == {BATCHES * SIZE}
        assert len(bench.files.reads) == 2 * FILES, "nothing was read besides"
        clear(bench)
        stored = await history.read(OTHER, 0, 0, WHOLE)
        assert stored is not None
        assert stored.from_cache
        assert bench.files.opened == []
        assert await read_all(bench.store, BESIDE_OTHER, 0, 0, WHOLE) == LOGS[BESIDE_OTHER]
        assert bench.files.together == [], "the pages were read for its neighbour, and the chunks are worth reading now"
        assert {length for _path, _position, length in bench.files.reads} == {CHUNK}

    bench_at(tmp_path).run(scenario)


@pytest.mark.parametrize("bytes_max", [1, SIZE, 5 * SIZE])
def test_no_more_extents_are_read_than_were_asked_for(tmp_path: Path, bytes_max: int) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        stored = await bench.store.history.read(OTHER, 0, 7, bytes_max)
        assert stored is not None
        assert [*map(bytes, stored.batches)] == LOGS[OTHER][7 : 7 + max(1, bytes_max // SIZE)]
        _pages, extents = bench.files.together
        assert sum(part.length for part in extents) <= bytes_max + BATCHES * SIZE
        assert await read_all(bench.store, OTHER, 0, 0, bytes_max) == LOGS[OTHER]

    bench_at(tmp_path).run(scenario)


def test_a_reader_that_comes_back_has_no_chunks_read_ahead(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        assert await read_all(bench.store, OTHER, 0, 0, 3 * BATCHES * SIZE) == LOGS[OTHER]
        await asyncio.sleep(0)
        assert max(length for _path, _position, length in bench.files.reads) < CHUNK
        assert len(bench.files.together) > 2

    bench_at(tmp_path).run(scenario)


def test_a_large_queue_in_such_a_file_is_read_ahead_of(tmp_path: Path) -> None:
    chunk = 8 * EXTENT_BYTES

    async def scenario(bench: Bench) -> None:
        large = [make_batch(ONE, number, size=EXTENT_BYTES) for number in range(100)]
        batches = [*large, *(make_batch(queue_id, 0, size=SIZE) for queue_id in QUEUES if queue_id > ONE)]
        run = write_run(bench.files, "0.run", batches)
        await bench.store.splits.record(0, 0, 1, [run], applied_index=1)
        entries = [*bench.store.manifest.ranges(0)]
        await bench.store.changes.merge(0, entries, [write_merged(bench.files, name_of(0), 0, batches)])
        store = await bench.restart()
        assert await read_all(store, OTHER, 0, 0, WHOLE) == [batch.data for batch in batches if batch.queue_id == OTHER]
        clear(bench)
        offset = waited = 0
        while offset < len(large):
            stored = await store.history.read(ONE, 0, offset, 3 * EXTENT_BYTES)
            assert stored is not None
            assert [*map(bytes, stored.batches)] == [batch.data for batch in large[offset : stored.next_offset]]
            offset, waited = stored.next_offset, waited + (not stored.from_cache)
            for _ in range(20):  # what is read ahead comes
                await asyncio.sleep(0)
        assert bench.files.together == [], "it is not brought extent by extent"
        chunks = [position for _path, position, length in bench.files.reads if length == chunk]
        assert len(chunks) == len({*chunks}) == len(large) * EXTENT_BYTES // chunk + 1, "each once"
        assert waited <= 4

    bench_at(tmp_path, read_chunk_bytes=chunk).run(scenario)


def rotten_page(bench: Bench, path: str) -> None:
    size = len(bench.files.content(path))
    bench.files.flip(path, 8 * (size - 2 * 64 - (len(QUEUES) - OTHER) * 64 - 60))


def rotten_extent(bench: Bench, path: str) -> None:
    bench.files.flip(path, 8 * (64 + (OTHER - 1) * BATCHES * SIZE + 100))


def gone(bench: Bench, path: str) -> None:
    bench.files.forget(path)


@pytest.mark.parametrize("damage", [rotten_page, rotten_extent, gone])
def test_damage_in_one_of_them_is_told_of_that_one_and_the_others_are_served(
    tmp_path: Path, damage: Callable[[Bench, str], None]
) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        store, name = bench.store, name_of(11)
        path = path_of(name)
        whole = bench.files.content(path)
        await store.stored.open_files.close()  # a descriptor would outlive the file
        damage(bench, path)
        stored = await store.history.read(OTHER, 0, 0, WHOLE)
        assert stored is not None
        assert [*map(bytes, stored.batches)] == LOGS[OTHER][: 11 * BATCHES]
        with pytest.raises(StorageError, match=name):
            await store.history.read(OTHER, 0, stored.next_offset, WHOLE)
        assert [one.name for one in store.damaged.all()] == [name]
        assert await read_all(store, OTHER, 0, 12 * BATCHES, WHOLE) == LOGS[OTHER][12 * BATCHES :]
        bench.files.put(path, whole)
        await store.stored.renewed(name, "it was put back")
        assert await read_all(store, OTHER, 0, 0, WHOLE) == LOGS[OTHER]

    bench_at(tmp_path).run(scenario)


def test_two_readers_of_a_queue_have_it_read_once(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        found = await asyncio.gather(*(read_all(bench.store, OTHER, 0, 0, WHOLE) for _ in range(3)))
        assert found == [LOGS[OTHER]] * 3
        assert len(bench.files.together) == 2
        assert len(bench.files.reads) == 2 * FILES

    bench_at(tmp_path).run(scenario)


@pytest.mark.parametrize("go", [1, 2])
def test_files_that_are_merged_meanwhile_are_read_as_what_they_became(tmp_path: Path, go: int) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        read_parts = bench.files.read_parts

        async def merge_before(parts: Sequence[ColdPart]) -> list[bytes | None]:
            if len(bench.files.together) == go - 1:
                entries = [entry for entry in bench.store.manifest.ranges(0) if 4 <= entry.after < 9]
                batches = [batch for entry in entries for batch in batches_of(entry.after)]
                await bench.store.changes.merge(0, entries, [write_merged(bench.files, "0-more.pack", 0, batches)])
            return await read_parts(parts)

        bench.files.read_parts = merge_before  # type: ignore[method-assign]
        assert await read_all(bench.store, OTHER, 0, 0, WHOLE) == LOGS[OTHER]
        assert path_of(name_of(5)) not in bench.files.paths()
        assert path_of(name_of(5)) not in bench.files.paths()

    bench_at(tmp_path).run(scenario)


@pytest.mark.parametrize("index_cache_bytes", [0, 8 * 700, 8 * 5_000])
@pytest.mark.parametrize("read_cache_bytes", [0, CHUNK, 3 * CHUNK])
def test_little_memory_is_not_exceeded(tmp_path: Path, index_cache_bytes: int, read_cache_bytes: int) -> None:
    async def scenario(bench: Bench) -> None:
        await fill(bench)
        for queue_id in (OTHER, BESIDE_OTHER, ONE, OTHER):
            assert await read_all(bench.store, queue_id, 0, 0, WHOLE) == LOGS[queue_id]
            assert bench.store.cache.bytes_held <= read_cache_bytes
            assert bench.store.stored.open_files.page_bytes <= max(index_cache_bytes // 8, 2 * 8 * 80)
        for parts in bench.files.together:
            pages = [part.length for part in parts if part.length % (8 * EXTENT_ROW_BYTES) == 0]
            assert sum(pages) <= index_cache_bytes // 8, "no page is read that would not be kept"

    bench_at(tmp_path, index_cache_bytes=index_cache_bytes, read_cache_bytes=read_cache_bytes).run(scenario)
