"""Descriptors of runs: few, shared, and never closed under who uses them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.storage.queue_store.runs import WatchedFiles, extent_rows, make_batch, write_run

from mainstem.storage.extents.extent_index import QueueFilter, QueueIds
from mainstem.storage.queue_store.reading import open_files
from mainstem.storage.queue_store.reading.open_files import KnownFile, OpenFiles


def make_runs(count: int) -> tuple[WatchedFiles, list[KnownFile]]:
    files = WatchedFiles()
    runs = [KnownFile(f"{number}.run") for number in range(count)]
    for number, run in enumerate(runs):
        write_run(files, run.name, [make_batch(1, number)])
    return files, runs


def test_descriptors_stay_within_their_bound_and_are_not_closed_under_a_reader() -> None:
    async def scenario() -> None:
        files, runs = make_runs(6)
        run_files = OpenFiles(files, index_bytes_max=0, open_files_max=2)

        async def reader(step: int) -> None:
            for turn in range(40):
                async with run_files.opened(runs[turn * step % 6]) as file:
                    await file.read(0, 64)

        await asyncio.gather(*(reader(step) for step in (1, 5, 1, 2, 3)))
        await run_files.index(runs[0])
        assert files.open_count <= 2, "what was pinned beyond the bound is closed when others come"
        await run_files.close()
        assert files.open_count == 0

    asyncio.run(scenario())


def test_who_joined_an_opening_finds_the_file_open_even_if_it_was_closed_before_its_turn() -> None:
    async def scenario() -> None:
        files, runs = make_runs(2)
        run_files = OpenFiles(files, index_bytes_max=0, open_files_max=1)

        async def read(run: KnownFile) -> bytes:
            async with run_files.opened(run) as file:
                return await file.read(0, 8)

        for _ in range(50):  # the same two files, closing each other at every turn
            contents = await asyncio.gather(*(read(runs[number]) for number in (0, 0, 1, 0, 1)))
            assert len(set(contents)) == 1
        await run_files.close()
        assert files.open_count == 0

    asyncio.run(scenario())


def test_an_index_of_many_queues_is_looked_at_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class SeenFilter(QueueFilter):
        def __init__(self, queue_ids: QueueIds) -> None:
            note()
            super().__init__(queue_ids)

    def note(*_whatever: object) -> None:
        seen.append(threading.current_thread() is threading.main_thread())

    async def scenario() -> None:
        files, runs = make_runs(1)
        await OpenFiles(files, index_bytes_max=0, open_files_max=2, check=note).index(runs[0])
        assert runs[0].filter is not None

    monkeypatch.setattr(open_files, "QueueFilter", SeenFilter)
    asyncio.run(scenario())
    assert seen == [True, True], "an index of one queue is not worth a thread"
    seen.clear()
    monkeypatch.setattr(open_files, "INLINE_INDEX_BYTES_MAX", 0)
    asyncio.run(scenario())
    assert seen == [False, False]


def test_a_filter_never_denies_a_queue_and_denies_most_others() -> None:
    for count in (0, 1, 7, 1000):
        present = extent_rows(*((number << 32 | number, 0, 0, 0, 1) for number in range(count)))["queue_id"]
        held = QueueFilter(present)
        assert all(int(queue_id) in held for queue_id in present)
        strangers = sum((number << 32 | 1 << 20) in held for number in range(2000))
        assert strangers < 600, f"{strangers} of 2000 with {count} queues"
