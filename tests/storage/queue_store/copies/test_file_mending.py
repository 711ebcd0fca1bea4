"""The bytes that mend a damaged run are proven to be those that were there, and durable before anybody relies on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy
import pytest
from tests.fakes.clock import FakeClock
from tests.storage.queue_store.runs import Batch, SimulatedTarget, WatchedFiles, make_batch, write, write_run

from mainstem.protocol.records import ControlType, NewRecord, build_batch, build_control_batch
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.aborted import ABORTED_ROW
from mainstem.storage.extents.extent_format import ABORTED_VERSION
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.copies.file_mending import MissingOffsets
from mainstem.storage.queue_store.reading.open_files import KnownFile
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.run_writer import RunWriter
from mainstem.storage.store_files.store_file import StoreFile

BATCHES = [make_batch(1, 0, records=2), make_batch(1, 2), make_batch(7, 5)]
DAMAGED = 64 + 20
"""A byte of the first extent, which is queue 1's."""


def told(directory: Path, story: Callable[[QueueStore, WatchedFiles], Awaitable[None]]) -> None:
    """A store with one run, for write group 0."""

    async def scenario() -> None:
        files = WatchedFiles()
        config = QueueStoreConfig(read_cache_bytes=0)
        store = await QueueStore.open(files, str(directory / "manifest.sqlite"), config, FakeClock())
        await store.splits.record(0, 0, 10, [write_run(files, "a.run", BATCHES)], applied_index=10)
        await story(store, files)
        await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("sent", ["other bytes", "less", "more", "nothing"])
def test_only_the_bytes_that_were_there_are_written_in_their_place(tmp_path: Path, sent: str) -> None:
    async def story(store: QueueStore, files: WatchedFiles) -> None:
        files.flip("runs/a.run", 8 * DAMAGED)
        damaged = files.content("runs/a.run")
        found = await store.mending.examine("a.run")
        assert found.extents is not None
        assert found.bad_rows == [0]
        extent = found.extents.rows[0]
        length = int(extent["length"])
        right = b"".join(batch.data for batch in BATCHES)[:length]
        wrong = {
            "other bytes": make_batch(1, 0, records=2, seed=9).data.ljust(length, b"\0")[:length],
            "less": right[:-1], "more": right + b"\0", "nothing": b"",
        }[sent]  # fmt: skip
        with pytest.raises(StorageError, match=r"a\.run: the bytes sent for the extent at 64 are not its own"):
            await store.mending.patch("a.run", extent, wrong)
        assert files.content("runs/a.run") == damaged
        await store.mending.patch("a.run", extent, right)
        assert (await store.mending.examine("a.run")).bad_rows == []

    told(tmp_path, story)


def test_what_was_mended_stays_so_when_the_power_goes(tmp_path: Path) -> None:
    async def story(store: QueueStore, files: WatchedFiles) -> None:
        whole = files.content("runs/a.run")
        files.flip("runs/a.run", 8 * DAMAGED)
        found = await store.mending.examine("a.run")
        assert found.extents is not None
        extent = found.extents.rows[0]
        await store.mending.patch("a.run", extent, whole[64 : 64 + int(extent["length"])])
        files.crash(keep_bytes=0)
        assert files.content("runs/a.run") == whole

    told(tmp_path, story)


def test_a_run_that_counts_for_other_groups_than_it_did_is_not_replaced(tmp_path: Path) -> None:
    """A group came to it while what it had of another one was fetched: that would be lost with it."""

    async def story(store: QueueStore, files: WatchedFiles) -> None:
        made = write_run(files, "b.run", BATCHES)
        run = store.stored.file("a.run")
        await store.splits.record(1, 0, 5, [run], applied_index=5)
        before = list(store.stored.in_order())
        with pytest.raises(StorageError, match=r"a\.run: it counts for other write groups"):
            await store.changes.replace("a.run", {0: [made]})
        assert list(store.stored.in_order()) == before
        await store.changes.replace("a.run", {0: [made], 1: [made]})
        assert {file.name for file, _groups in store.stored.in_order()} == {"b.run"}

    told(tmp_path, story)


def test_what_is_looked_for_lies_behind_what_older_runs_have_and_before_what_newer_ones_have(tmp_path: Path) -> None:
    """The batches that another replica has before the oldest, or behind the newest, are not of this run, nor what
    others have."""

    async def story(store: QueueStore, files: WatchedFiles) -> None:
        for number, (first, upto) in enumerate([(10, 20), (20, 30), (30, 40)]):
            run = write_run(files, f"{number}.run", [make_batch(2, first)])
            await store.splits.record(0, first, upto, [run], applied_index=upto)
        files.put("runs/1.run", b"")
        mending = store.mending

        async def lost(first: int, end: int) -> list[MissingOffsets]:
            return await mending.lost("1.run", 0, [(2, first, end)], ["1.run"])

        assert await lost(0, 40) == [MissingOffsets(2, 11, 30)], "not what is before 10, nor what is behind 30"
        assert await lost(30, 40) == []
        assert await lost(0, 10) == []
        assert await lost(15, 20) == [MissingOffsets(2, 15, 20)]

    told(tmp_path, story)


def test_a_mended_run_has_the_transactions_of_its_batches_or_is_not_made(tmp_path: Path) -> None:
    """The damaged file still says where they began, or else the batches would have to."""
    data = [
        build_batch([NewRecord(0, b"k", b"v")], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True),
        build_control_batch(ControlType.ABORT, timestamp=0, producer_id=9, producer_epoch=0, coordinator_epoch=1),
    ]
    batches = [
        Batch(1, offset, offset, 0, -1, offset.to_bytes(8, "big") + bytes(one.data)[8:])
        for offset, one in enumerate(data, 5)
    ]
    rows = numpy.array([(1, 9, 2, 6, 7)], ABORTED_ROW)

    async def scenario() -> None:
        files = WatchedFiles()
        store = await QueueStore.open(files, str(tmp_path / "manifest.sqlite"), QueueStoreConfig(), FakeClock())
        writer = RunWriter("a.run", SimulatedTarget(files, "a.run"), ABORTED_VERSION)
        run = StoreFile(retention_class="forever", **write(writer, batches, aborted=rows)._asdict())
        await store.splits.record(0, 0, 10, [run], applied_index=10)
        lost = [(1, b"".join(batch.data for batch in batches))]
        mended = await store.mending.write(run, lost)
        assert (await store.stored.open_files.aborted(KnownFile(mended.name))).tolist() == rows.tolist()
        files.flip("runs/a.run", 8 * (run.bytes - 64 - 64 - 8))
        await store.stored.renewed("a.run", "it is damaged now")
        with pytest.raises(StorageError, match="transaction of producer 9 that was aborted at offset 6 may have begun"):
            await store.mending.write(run, lost)
        await store.close()

    asyncio.run(scenario())
