"""The manifest and its pairing with the store: invariant M, missing metadata never deletes data."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tests.storage.queue_store.runs import WatchedFiles, make_batch, write_run

from mainstem.errors import ConfigError
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.queue_store.changes.splits import SplitOutcome
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.database.manifest_database import (
    DROPPED_REMEMBERED_MS,
    SCHEMA_VERSION,
    Database,
    WriteGroupSplit,
)
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME, SLOT_DISTANCE
from mainstem.storage.queue_store.store import QueueStore


async def open_store(files: WatchedFiles, database: Path) -> QueueStore:
    return await QueueStore.open(files, str(database), QueueStoreConfig(), FakeClock())


async def commit_one(files: WatchedFiles, database: Path, number: int) -> None:
    store = await open_store(files, database)
    run = write_run(files, f"{number}.run", [make_batch(1, number)])
    await store.splits.record(0, number, number + 1, [run], applied_index=number)
    await store.close()


async def open_and_close(files: WatchedFiles, database: Path) -> None:
    store = await open_store(files, database)
    await store.close()


async def refused(files: WatchedFiles, database: Path, match: str) -> None:
    """Opening is refused and changes nothing in the store."""
    before = {path: files.content(path) for path in files.paths()}
    with pytest.raises(StorageError, match=match):
        await open_store(files, database)
    assert {path: files.content(path) for path in files.paths()} == before


def test_m_runs_without_a_manifest_are_refused_and_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        await commit_one(files, tmp_path / "manifest.sqlite", 0)
        for name in ("other.sqlite", "nowhere/manifest.sqlite"):
            await refused(files, tmp_path / name, r"manifest is missing or empty, but the queue store has 1 runs")
        (tmp_path / "empty.sqlite").touch()
        await refused(files, tmp_path / "empty.sqlite", r"empty\.sqlite: the manifest is missing or empty")
        await files.remove(MARK_NAME)
        await refused(files, tmp_path / "other.sqlite", r"Restore the manifest")

    asyncio.run(scenario())


def test_m_an_old_copy_of_the_manifest_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        await commit_one(files, database, 0)
        shutil.copy(database, tmp_path / "old.sqlite")
        await commit_one(files, database, 1)
        await refused(files, tmp_path / "old.sqlite", r"an old copy, which does not know the newest runs")
        await commit_one(files, database, 2)

    asyncio.run(scenario())


def test_m_a_manifest_beside_another_disk_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, other = WatchedFiles(), WatchedFiles()
        await commit_one(files, tmp_path / "a.sqlite", 0)
        await commit_one(other, tmp_path / "b.sqlite", 0)
        await refused(other, tmp_path / "a.sqlite", r"belong to the same node")
        await refused(WatchedFiles(), tmp_path / "a.sqlite", r"Check that store_dir is mounted")

    asyncio.run(scenario())


def test_a_torn_mark_leaves_the_one_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        for position in (0, SLOT_DISTANCE):
            files = WatchedFiles()
            database = tmp_path / f"{position}.sqlite"
            for number in range(3):
                await commit_one(files, database, number)
            files.flip(MARK_NAME, (position + 20) * 8)
            await open_and_close(files, database)
        files.flip(MARK_NAME, 20 * 8)
        await refused(files, database, r"neither copy of the mark is whole")

    asyncio.run(scenario())


def test_power_may_go_at_any_change_to_the_store(tmp_path: Path) -> None:
    """The mark lags behind the manifest at worst: the store opens, with what the manifest says."""

    async def scenario(seed: int) -> None:
        files = WatchedFiles(seed)
        database = tmp_path / f"{seed}.sqlite"
        store = await open_store(files, database)
        number = 0
        files.cut_power(after=1 + seed % 6)
        with pytest.raises(PowerLoss):  # noqa: PT012 - which split the power goes in depends on the seed
            while True:
                run = write_run(files, f"{number}.run", [make_batch(1, number)])
                await store.splits.record(0, number, number + 1, [run], applied_index=number)
                number += 1
        await store.manifest.close()
        files.crash()
        store = await open_store(files, database)
        assert store.splits.split_position(0) == number + 1, "the manifest comes before the mark"
        assert store.stored.file_count(0) == number + 1
        await store.close()

    for seed in range(24):
        asyncio.run(scenario(seed))


def test_a_crash_before_the_first_split_leaves_a_store_that_opens(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        await open_and_close(files, database)
        write_run(files, "uncommitted.run", [make_batch(1, 0)])
        await open_and_close(files, database)
        await files.remove(MARK_NAME)  # the crash came before the mark was on the disk
        await open_and_close(files, database)
        assert set(files.paths()) == {MARK_NAME, "runs/uncommitted.run"}

    asyncio.run(scenario())


def test_a_manifest_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        garbage = tmp_path / "garbage.sqlite"
        garbage.write_bytes(b"not a database, but long enough to be looked at" * 100)
        with pytest.raises(FormatError, match=r"garbage\.sqlite: the manifest cannot be read"):
            await Manifest.open(str(garbage))
        newer = tmp_path / "newer.sqlite"
        with sqlite3.connect(newer) as database:
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        database.close()
        with pytest.raises(FormatError, match=rf"manifest schema {SCHEMA_VERSION + 1}, this version"):
            await Manifest.open(str(newer))

    asyncio.run(scenario())


def contents(manifest: Manifest) -> tuple[object, ...]:
    return (
        list(manifest.files.values()),
        manifest.ranges(0),
        manifest.ranges(1),
        manifest.changes,
        manifest.position(0),
        manifest.position(1),
    )


def test_memory_mirrors_what_a_fresh_start_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        store = await open_store(files, database)
        shared = write_run(files, "shared.run", [make_batch(1, 0), make_batch(2, 0)])
        later = write_run(files, "a-later.run", [make_batch(1, 1)])
        await store.splits.record(1, 0, 4, [shared], applied_index=5)
        await store.splits.record(0, 0, 3, [shared], applied_index=4)
        await store.splits.record(0, 3, 9, [later], applied_index=10)
        mirror = store.manifest
        seen = contents(mirror)
        await store.close()
        fresh = await Manifest.open(str(database))
        assert contents(fresh) == seen
        assert fresh.ranges(0) == [FileRange(2, 0, 0, 3, "shared.run"), FileRange(3, 0, 3, 9, "a-later.run")]
        await fresh.drop({"shared.run"}, 1)
        assert (list(fresh.ranges(1)), [entry.name for entry in fresh.ranges(0)]) == ([], ["a-later.run"])
        await fresh.close()
        again = await Manifest.open(str(database))
        assert (set(again.files), again.dropped) == ({"a-later.run"}, {"shared.run"})
        assert again.position(1).position == 4
        await again.close()

    asyncio.run(scenario())


def everything(manifest: Manifest) -> tuple[object, ...]:
    return *contents(manifest), manifest.identity, manifest.dropped, manifest.seen


SEEN_MS, DROPPED_MS = 0x2A3B4C5D6E, 0x2A5E6D7C8B


async def small_manifest(files: WatchedFiles, database: Path) -> tuple[object, ...]:
    """One whose every table has rows, all of them made, changed and deleted once; and what it says."""
    store = await open_store(files, database)
    for number, name in enumerate(("first.run", "second.run", "third.run")):
        run = write_run(files, name, [make_batch(1, number), make_batch(2, number)])
        for group in (0, 1):
            await store.splits.record(group, number, number + 1, [run], applied_index=number)
    mirror = store.manifest
    await mirror.see(1)
    for now_ms in (1, DROPPED_MS):
        await mirror.drop({"first.run"} & set(mirror.files), now_ms, ["first.run"])
    third = mirror.files["third.run"]
    await mirror.replace("second.run", {0: [(1, 2, third)], 1: [(1, 2, third)]})
    await mirror.supersede(0, 4, 3, [(3, 4, third)])
    await mirror.see(SEEN_MS)
    fourth = write_run(files, "fourth.run", [make_batch(1, 9)])
    await store.splits.record(0, 4, 5, [fourth], applied_index=5)
    await mirror.see(SEEN_MS)
    said = everything(mirror)
    await store.close()
    return said


def places_in(content: bytes, part: bytes) -> list[int]:
    return [at for at in range(len(content)) if content.startswith(part, at)]


def test_a_flipped_bit_in_a_name_a_number_or_a_definition_is_refused(tmp_path: Path) -> None:
    """Sqlite notices none of them; retention and readers would go by them, and a file that is not named is deleted."""

    async def scenario() -> None:
        database = tmp_path / "manifest.sqlite"
        said = await small_manifest(WatchedFiles(), database)
        content = database.read_bytes()
        tables = {
            b"fourth.run": 4,  # files, ranges, the index of ranges, seen
            b"first.run": 1,  # dropped
            b"REFERENCES files": 1,  # without it a row of ranges cannot be written
            b"sqlite_sequence(name,seq)": 1,  # nor without this
            SEEN_MS.to_bytes(6, "big"): 1,
            DROPPED_MS.to_bytes(6, "big"): 1,
        }
        for part, count in tables.items():
            refusals: list[str] = []
            place = tmp_path / "flipped.sqlite"
            for at in places_in(content, part):
                flipped = bytearray(content)
                flipped[at + len(part) - 4] ^= 4
                place.write_bytes(flipped)
                try:
                    manifest = await Manifest.open(str(place))
                except FormatError as error:
                    refusals.append(str(error))
                else:  # a place that sqlite does not use any more
                    assert everything(manifest) == said, f"{part!r} at {at}"
                    await manifest.close()
            assert len(refusals) >= count, part
            assert all(f"{place}: the manifest " in refusal for refusal in refusals), refusals
            assert all("restore write_dir and store_dir" in refusal for refusal in refusals), refusals

    asyncio.run(scenario())


def test_a_manifest_that_can_only_be_read_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = tmp_path / "manifest.sqlite"
        await small_manifest(WatchedFiles(), database)
        content = bytearray(database.read_bytes())
        content[18] ^= 4  # the version of sqlite's format that writers must know
        database.write_bytes(content)
        with pytest.raises(FormatError, match=r"manifest\.sqlite: the manifest cannot be .*readonly.*; have it"):
            await Manifest.open(str(database))

    asyncio.run(scenario())


def test_a_manifest_that_a_version_without_sums_has_changed_is_opened(tmp_path: Path) -> None:
    async def scenario() -> None:
        database = tmp_path / "manifest.sqlite"
        await small_manifest(WatchedFiles(), database)
        with sqlite3.connect(database) as other:  # as those versions do
            other.execute("DELETE FROM seen WHERE name = 'fourth.run'")
            (commits, digest) = other.execute("SELECT commits, digest FROM seal").fetchone()
            other.execute("DELETE FROM seal")
            other.execute("INSERT INTO seal VALUES (?, ?)", (commits, digest))
        other.close()
        manifest = await Manifest.open(str(database))
        assert set(manifest.seen) == {"third.run"}
        await manifest.see(7)
        said = everything(manifest)
        await manifest.close()
        again = await Manifest.open(str(database))
        assert everything(again) == said
        assert again.seen["fourth.run"] == 7
        await again.close()

    asyncio.run(scenario())


def test_dropped_names_are_forgotten_in_memory_as_on_disk(tmp_path: Path) -> None:
    """A node that runs for years must not remember every run it ever had."""

    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        store = await open_store(files, database)
        for number, name in enumerate(("a.run", "b.run", "c.run")):
            run = write_run(files, name, [make_batch(1, number)])
            await store.splits.record(0, number, number + 1, [run], applied_index=number)
        mirror = store.manifest
        for name, now_ms in (("a.run", 1000), ("b.run", 2000), ("c.run", 1001 + DROPPED_REMEMBERED_MS)):
            await mirror.drop({name}, now_ms)
        assert mirror.dropped == {"b.run", "c.run"}
        await store.close()
        fresh = await Manifest.open(str(database))
        assert fresh.dropped == mirror.dropped
        await fresh.close()

    asyncio.run(scenario())


def test_a_failed_transaction_leaves_memory_as_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        await commit_one(files, database, 0)
        store = await open_store(files, database)
        with sqlite3.connect(database) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON ranges BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        other.close()
        run = write_run(files, "b.run", [make_batch(1, 1)])
        with pytest.raises(StorageError, match=r"manifest: disk full"):
            await store.splits.record(0, 1, 2, [run], applied_index=2)
        assert (store.splits.split_position(0), store.stored.file_count(0)) == (1, 1)
        with sqlite3.connect(database) as other:
            other.execute("DROP TRIGGER full")
        other.close()
        await store.splits.record(0, 1, 2, [run], applied_index=2)
        assert (store.splits.split_position(0), store.stored.file_count(0)) == (2, 2)
        await store.close()
        await open_and_close(files, database)  # what the failed one had counted is not in the sum

    asyncio.run(scenario())


def test_a_change_of_many_groups_is_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)

    async def scenario() -> None:
        files = WatchedFiles()
        database = tmp_path / "manifest.sqlite"
        store = await open_store(files, database)
        shared = write_run(files, "shared.run", [make_batch(1, 0), make_batch(2, 0)])
        lost = write_run(files, "lost.run", [make_batch(3, 0)])
        await files.remove("runs/lost.run")
        changes = store.manifest.changes
        files.opened.clear()
        seen.clear()
        outcomes = await store.splits.record_all(
            [
                WriteGroupSplit(0, 0, 3, (shared,), 4),
                WriteGroupSplit(2, 0, 9, (lost,), 9),
                WriteGroupSplit(1, 0, 4, (shared,), 5),
                WriteGroupSplit(2, 9, 12, (shared,), 12),
                WriteGroupSplit(0, 3, 7, (), 8),
                WriteGroupSplit(1, 5, 6, (shared,), 6),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [
            SplitOutcome,
            StorageError,
            SplitOutcome,
            StorageError,
            SplitOutcome,
            SplitOutcome,
        ]
        assert outcomes[5] is SplitOutcome.GAP
        assert [store.splits.split_position(group) for group in (0, 1, 2)] == [7, 4, 0]
        assert sum(statement == "COMMIT" for statement in seen) == 1
        assert store.manifest.changes == changes + 1
        assert files.opened.count(MARK_NAME) == 1, "one transaction, one mark"
        before = [contents(store.manifest)]
        await store.close()
        fresh = await Manifest.open(str(database))
        assert [contents(fresh)] == before
        await fresh.close()

    asyncio.run(scenario())


def test_a_change_that_fails_after_its_caller_was_cancelled_ends_the_caller(tmp_path: Path) -> None:
    """A task that is to end, and waits for sqlite, ends whatever sqlite says."""

    async def scenario() -> None:
        begun, go_on = threading.Event(), threading.Event()

        class Full(Database):
            def record_splits(self, commits: Sequence[WriteGroupSplit]) -> list[FileRange]:
                begun.set()
                go_on.wait(PATIENCE_SECONDS)
                raise sqlite3.OperationalError("database or disk is full")

        database, thread = Full(str(tmp_path / "manifest.sqlite")), ThreadPoolExecutor(1)
        manifest = Manifest(database, thread.submit(database.open).result(), thread)
        await manifest.adopt(uuid.uuid4(), 0)
        task = asyncio.ensure_future(manifest.record_splits([WriteGroupSplit(0, 0, 1, (), 1)]))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert manifest.position(0).position == 0
        await manifest.close()

    asyncio.run(scenario())


def open_below(directory: Path) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is gone
            found.append(os.readlink(descriptor))
    return [path for path in found if path.startswith(str(directory))]


def test_a_manifest_that_nobody_has_any_more_holds_no_file_open(tmp_path: Path) -> None:
    """For tests that did not come to closing it: sqlite hides what a connection refers to from the garbage
    collector."""
    asyncio.run(Manifest.open(str(tmp_path / "manifest.sqlite")))

    def let_go() -> bool:  # its thread may still be ending the last call
        gc.collect()
        return open_below(tmp_path) == []

    eventually(let_go, what="an end of the open files")


def test_a_manifest_that_is_refused_holds_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / "manifest.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(FormatError) as refused:
        asyncio.run(Manifest.open(str(path)))
    assert open_below(tmp_path) == [], refused.traceback  # which refers to the connection


def test_a_manifest_whose_opening_is_cancelled_holds_no_file_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        opening = asyncio.ensure_future(Manifest.open(str(tmp_path / "manifest.sqlite")))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert open_below(tmp_path) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["read_cache_bytes", "read_chunk_bytes", "open_files_max", "orphan_grace_seconds"])
def test_a_config_value_that_cannot_be_used_is_named(key: str) -> None:
    QueueStoreConfig().validate()
    with pytest.raises(ConfigError, match=rf"queue_store\.{key} = -1"):
        QueueStoreConfig(**{key: -1}).validate()
