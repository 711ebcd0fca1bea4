"""Descriptors of runs: few, shared, and never closed under who uses them."""

from __future__ import annotations

import asyncio
import threading

import numpy
import pytest
from tests.storage.queue_store.runs import WatchedFiles, extent_rows, make_batch, write_run

from mainstem.storage.errors import FormatError
from mainstem.storage.extents import extent_pages
from mainstem.storage.extents.extent_format import EXTENT_BYTES, EXTENT_ROW
from mainstem.storage.extents.extent_index import ExtentIndex, QueueFilter, QueueIds
from mainstem.storage.queue_store.reading import file_summaries, open_files
from mainstem.storage.queue_store.reading.file_summaries import FileSummaries, FileSummary, summary_of
from mainstem.storage.queue_store.reading.open_files import KnownFile, OpenFiles
from mainstem.storage.store_files.store_file import path_of


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
        opened = OpenFiles(files, index_bytes_max=1000, open_files_max=2, check=note)
        await opened.index(runs[0])
        assert [opened.summaries.may_hold(runs[0].name, queue_id) for queue_id in (1, 2)] == [True, False]

    monkeypatch.setattr(file_summaries, "QueueFilter", SeenFilter)
    asyncio.run(scenario())
    assert seen == [True, True], "an index of one queue is not worth a thread"
    seen.clear()
    monkeypatch.setattr(open_files, "INLINE_INDEX_BYTES_MAX", 0)
    asyncio.run(scenario())
    assert seen == [False, False]


MANY = range(1, 1_001)
"""Queues with a batch each: an index of 64,000 bytes, in four pages."""


def run_of_many() -> tuple[WatchedFiles, KnownFile]:
    files = WatchedFiles()
    write_run(files, "many.run", [make_batch(queue_id, 7) for queue_id in MANY])
    return files, KnownFile("many.run")


def test_a_look_up_in_a_large_index_reads_its_pages_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 60_000)

    async def scenario() -> None:
        files, run = run_of_many()
        opened = OpenFiles(files, index_bytes_max=1 << 20, open_files_max=2)
        for queue_id in (*MANY, 2_000):
            rows = await opened.rows_with(run, queue_id)
            first, end = rows.queue_rows(queue_id)
            assert rows.rows["queue_id"][first:end].tolist() == [queue_id] * (queue_id in MANY)
            assert queue_id == 1 or len(rows) <= 512, "two pages"
        assert opened.index_loads == 1
        assert opened.index_bytes < 5_000, "filter and pages, and no index"
        whole = await opened.index(run)
        assert len(whole) == len(MANY)
        assert await opened.rows_with(run, 5) is whole, "what memory has is not read again"
        await opened.close()

    asyncio.run(scenario())


def test_a_queue_in_many_pages_has_the_whole_index_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 10_000)
    monkeypatch.setattr(extent_pages, "PAGES_AT_ONCE_MAX", 1)

    async def scenario() -> None:
        files = WatchedFiles()
        write_run(files, "one.run", [make_batch(1, offset, size=EXTENT_BYTES + 1) for offset in range(300)])
        opened, run = OpenFiles(files, index_bytes_max=1 << 20, open_files_max=2), KnownFile("one.run")
        for _ in range(3):
            assert len(await opened.rows_with(run, 1)) == 300
        assert opened.index_loads == 1, "it is kept as it is checked"
        await opened.close()

    asyncio.run(scenario())


def test_pages_that_rot_after_the_index_was_checked_are_told_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 60_000)

    async def scenario() -> None:
        files, run = run_of_many()
        told: list[str] = []
        opened = OpenFiles(
            files, index_bytes_max=1 << 20, open_files_max=2, damaged=lambda name, _error: told.append(name)
        )
        await opened.rows_with(run, 1)
        path = path_of(run.name)
        size = len(files.content(path))
        files.flip(path, 8 * (size - 64 - 10 * 64))  # in a row of one of the last queues
        assert (await opened.rows_with(run, 1)).queue_rows(1) == (0, 1)
        assert told == []
        with pytest.raises(FormatError, match="many"):
            await opened.rows_with(run, 995)
        assert told == [run.name]
        await opened.close()

    asyncio.run(scenario())


def test_a_file_that_was_put_in_the_place_of_another_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the old one that ends after it was replaced leaves its pages behind."""
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 60_000)

    async def scenario() -> None:
        files, run = run_of_many()
        told: list[str] = []
        opened = OpenFiles(
            files, index_bytes_max=1 << 20, open_files_max=2, damaged=lambda name, _error: told.append(name)
        )
        await opened.rows_with(run, 1)
        old = opened.summaries.pages(run.name)
        assert old is not None
        write_run(files, run.name, [make_batch(queue_id, 8) for queue_id in MANY])
        await opened.renewed(run.name)
        opened.summaries.keep(run.name, FileSummary(None, old))
        rows = await opened.rows_with(run, 700)
        assert rows.rows["base_offset"][rows.queue_rows(700)[0]] == 8
        assert told == []
        assert len(await opened.rows_with(run, 700)) <= 512, "by the new pages"
        await opened.close()

    asyncio.run(scenario())


def test_a_filter_never_denies_a_queue_and_denies_most_others() -> None:
    for count in (0, 1, 7, 1000):
        present = extent_rows(*((number << 32 | number, 0, 0, 0, 1) for number in range(count)))["queue_id"]
        held = QueueFilter(present)
        assert all(int(queue_id) in held for queue_id in present)
        strangers = sum((number << 32 | 1 << 20) in held for number in range(2000))
        assert strangers < 600, f"{strangers} of 2000 with {count} queues"


def test_pages_that_were_read_are_kept_within_a_bound_until_their_file_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extent_pages, "PAGED_BYTES_MIN", 60_000)

    async def scenario() -> None:
        files, run = run_of_many()
        opened = OpenFiles(files, index_bytes_max=8 * 30_000, open_files_max=2)
        await opened.rows_with(run, 700)
        first = await opened.rows_with(run, 700)
        assert await opened.rows_with(run, 701) is first, "a neighbour's, too"
        assert opened.page_bytes >= 16_384
        for queue_id in MANY:
            await opened.rows_with(run, queue_id)
            assert opened.page_bytes <= max(30_000, (await opened.rows_with(run, queue_id)).memory_bytes)
        write_run(files, run.name, [make_batch(queue_id, 8) for queue_id in MANY])
        await opened.renewed(run.name)
        for _ in range(3):
            rows = await opened.rows_with(run, 1_000)
            assert rows.rows["base_offset"][rows.queue_rows(1_000)[0]] == 8
        await opened.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("queues", "extents", "paged"), [(2_100, 1, True), (100, 21, False), (1_000, 2, False)])
def test_of_small_queues_in_a_packed_file_pages_are_read(queues: int, extents: int, paged: bool) -> None:
    """Not where a queue has a page of its own, or the index is small; nor of a run."""
    rows = numpy.zeros(queues * extents, EXTENT_ROW)
    rows["queue_id"] = numpy.repeat(numpy.arange(queues), extents)
    rows["base_offset"] = rows["last_offset"] = numpy.tile(numpy.arange(extents), queues)
    index = ExtentIndex(rows, "here", 0)
    assert (summary_of("0-0-a.pack", index).pages is not None) is paged
    assert FileSummaries().lacks("0-0-a.pack", index) is paged
    assert summary_of("a.run", index).pages is None


def test_an_index_that_is_asked_for_again_and_again_is_read_and_kept_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(file_summaries, "SMALL_QUEUES_BYTES_MIN", 60_000)

    async def scenario() -> None:
        files, known = WatchedFiles(), KnownFile("0-0-a.pack")
        write_run(files, known.name, [make_batch(queue_id, 7) for queue_id in MANY])
        opened = OpenFiles(files, index_bytes_max=1 << 20, open_files_max=2)
        await opened.rows_with(known, 1)
        assert opened.index_loads == 1
        for page in range(4):
            assert opened.reads_pages(known)
            assert len(await opened.rows_with(known, 200 + 256 * page)) <= 512
        assert opened.index_loads == 1, "four pages were read"
        assert len(await opened.rows_with(known, 1)) == len(MANY)
        assert opened.index_loads == 2
        assert not opened.reads_pages(known)
        assert len(await opened.rows_with(known, 1_000)) == len(MANY)
        assert opened.index_loads == 2, "it was kept"
        await opened.close()

    asyncio.run(scenario())
