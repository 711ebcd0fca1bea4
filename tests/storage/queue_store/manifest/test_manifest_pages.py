"""Pages of the manifest: what is put into them, what is taken out again, and what a start makes of damage in them."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.storage.errors import FormatError
from mainstem.storage.queue_store.manifest.database import page_format
from mainstem.storage.queue_store.manifest.database.manifest_database import Database, WriteGroupSplit
from mainstem.storage.queue_store.manifest.database.manifest_seal import Seal
from mainstem.storage.queue_store.manifest.database.page_format import PageState
from mainstem.storage.queue_store.manifest.in_memory.file_pages import PackedRows
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.store_files.store_file import StoreFile

IDENTITY = uuid.UUID(int=7)


def run(number: int) -> StoreFile:
    return StoreFile(
        name=f"{number:06d}.run", retention_class=("forever", "7d")[number % 2], bytes=1000 + number, batch_bytes=900,
        batch_count=7, record_count=1 << 40, queue_count=5, min_timestamp=-1, max_timestamp=number,
    )  # fmt: skip


async def opened(path: Path, page_files: int = 3) -> Manifest:
    manifest = await Manifest.open(str(path), page_files)
    if manifest.identity is None:
        await manifest.adopt(IDENTITY, 0)
    return manifest


async def fill(manifest: Manifest, count: int) -> None:
    """Runs of two write groups, one after the other."""
    first = manifest.position(0).position
    for number in range(first, first + count):
        await manifest.record_splits([
            WriteGroupSplit(group, number, number + 1, (run(number),), number + 1) for group in (0, 1)
        ])  # fmt: skip


async def folded(manifest: Manifest) -> None:
    while await manifest.fold():
        pass


def said(manifest: Manifest) -> tuple[object, ...]:
    groups = [(manifest.ranges(group), manifest.position(group)) for group in (0, 1)]
    return dict(manifest.files), groups, dict(manifest.seen), manifest.changes, manifest.identity, manifest.dropped


def rows_of(path: Path) -> dict[str, int]:
    database = sqlite3.connect(path)
    try:
        return {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("files", "ranges", "seen", "pages", "page_states")
        }
    finally:
        database.close()


def test_files_that_fill_pages_leave_the_rows_and_a_start_finds_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "manifest.sqlite"
        manifest = await opened(path)
        await fill(manifest, 7)
        await manifest.see(50)
        before = said(manifest)
        await folded(manifest)
        assert said(manifest) == before
        assert rows_of(path) == {"files": 1, "ranges": 2, "seen": 1, "pages": 2, "page_states": 2}
        await manifest.close()
        assert Database(str(path)).read().files == list(manifest.files.values())
        again = await opened(path)
        assert said(again) == before
        await again.close()

    asyncio.run(scenario())


def test_a_file_in_a_page_is_dropped_changed_and_seen_as_any_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "manifest.sqlite"
        manifest = await opened(path)
        await fill(manifest, 6)
        await folded(manifest)
        await manifest.drop([run(0).name], 1)
        await manifest.see(77)
        assert rows_of(path)["seen"] == 0, "they are seen in their pages"
        await manifest.replace(run(1).name, {0: [(1, 2, run(100))], 1: [(1, 2, run(1))]})
        assert manifest.counts_for(run(1).name) == {1}
        assert (rows_of(path)["files"], manifest.seen[run(1).name]) == (2, 77)
        await manifest.drop([run(2).name], 1)
        assert rows_of(path)["pages"] == 1, "nothing was left of the other one"
        kept = said(manifest)
        await manifest.close()
        again = await opened(path)
        assert said(again) == kept
        await again.close()

    asyncio.run(scenario())


def test_a_page_of_which_little_is_left_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / "manifest.sqlite"
        manifest = await opened(path, 8)
        await fill(manifest, 16)
        await folded(manifest)
        await manifest.drop([run(number).name for number in range(7)], 1)
        assert rows_of(path)["pages"] == 2
        kept = said(manifest)
        await folded(manifest)
        assert said(manifest) == kept
        assert (rows_of(path)["pages"], rows_of(path)["files"]) == (1, 1)
        await manifest.close()

    asyncio.run(scenario())


def test_a_crash_before_the_end_of_a_fold_leaves_what_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, copy = tmp_path / "manifest.sqlite", tmp_path / "copy.sqlite"

        class Crashing(Seal):
            copies = False

            def write(self, database: sqlite3.Connection, tables: Iterable[str]) -> None:
                super().write(database, tables)
                if self.copies:  # all is written, and nothing committed
                    for suffix in ("", "-wal"):
                        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")

        database, thread = Database(str(path), Crashing()), ThreadPoolExecutor(1)
        manifest = Manifest(database, thread.submit(database.open).result(), thread, 3)
        await manifest.adopt(IDENTITY, 0)
        await fill(manifest, 4)
        before = said(manifest)
        Crashing.copies = True
        assert await manifest.fold()
        Crashing.copies = False
        await manifest.close()
        assert rows_of(path)["pages"] == 1
        found = await opened(copy)
        assert said(found) == before
        await found.fold()
        assert said(found) == before
        await found.close()

    asyncio.run(scenario())


def test_a_flipped_bit_of_a_page_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        path, flipped = tmp_path / "manifest.sqlite", tmp_path / "flipped.sqlite"
        manifest = await opened(path, 4)
        await fill(manifest, 4)
        await manifest.see(0x1A2B3C4D5E)
        await folded(manifest)
        expected = said(manifest)
        await manifest.close()
        content = path.read_bytes()
        database = sqlite3.connect(path)
        page, seen = database.execute("SELECT content, seen FROM pages JOIN page_states USING (number)").fetchone()
        database.close()
        at = content.index(page)
        places = [*range(at, at + len(page)), *range(content.index(seen), content.index(seen) + len(seen))]
        choice = random.Random(1)
        for place in choice.sample(places, 60):
            flipped.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << choice.randrange(8)]) + content[place + 1 :]
            )
            with pytest.raises(FormatError, match=r"flipped\.sqlite: the manifest is damaged .* restore write_dir"):
                await Manifest.open(str(flipped))
        refused = 0
        for place in choice.sample(range(len(content)), 120):  # wherever it is
            flipped.write_bytes(
                content[:place] + bytes([content[place] ^ 1 << choice.randrange(8)]) + content[place + 1 :]
            )
            try:
                manifest = await opened(flipped, 4)
            except FormatError:
                refused += 1
                continue
            assert said(manifest) == expected, place
            await manifest.close()
        assert refused

    asyncio.run(scenario())


@given(st.lists(st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4, st.booleans(), st.text(max_size=9)), min_size=1))
def test_a_page_says_of_files_what_it_was_given(values: list[tuple[Any, ...]]) -> None:
    files, ranges, seen = [], [], []
    for place, (size, low, queue_id, upto, is_seen, retention_class) in enumerate(values):
        retention_class = retention_class.replace("\0", "")
        files.append(
            StoreFile(
                name=f"té-{place}/{place}.run",
                retention_class=retention_class,
                bytes=size,
                batch_bytes=low,
                batch_count=place,
                record_count=queue_id,
                queue_count=0,
                min_timestamp=low,
                max_timestamp=upto,
                group=place % 3 - 1,
                first_queue=queue_id,
                last_queue=queue_id,
                first_offset=low,
                level=1,
            )
        )
        ranges.append((place, FileRange(upto, 3, low, size, files[-1].name)))
        seen.append(upto if is_seen else -1)
    content = page_format.pack(PackedRows.of(files), ranges)
    rows, found = page_format.unpack(content, google_crc32c.value(content), "it")
    assert [rows.file(place) for place in range(len(rows))] == files
    assert found.uptos.tolist() == [entry.upto for _place, entry in ranges]
    assert found.sequences.tolist() == [entry.sequence for _place, entry in ranges]
    assert found.places.tolist() == list(range(len(files)))
    state = PageState(numpy.array([one >= 0 for one in seen]), numpy.array(seen, numpy.int64))
    again = PageState.unpack(*state.pack(), len(files), "it")
    assert (again.alive.tolist(), again.seen.tolist()) == (state.alive.tolist(), seen)


@pytest.mark.parametrize("change", [{"count": 9}, {"names": 9}, {"magic": 1}, {"cut": 5}, {"empty": 1}])
def test_a_page_that_does_not_fit_together_is_refused(change: dict[str, int]) -> None:
    files: Sequence[StoreFile] = [run(1), run(2)]
    content = bytearray(page_format.pack(PackedRows.of(files), [(0, FileRange(1, 0, 0, 1, files[0].name))]))
    fields = list(page_format.HEADER.unpack_from(content))
    for key, value in change.items():
        if key in ("count", "names", "magic"):
            fields[{"magic": 0, "count": 1, "names": 3}[key]] = value
    content[: page_format.HEADER.size] = page_format.HEADER.pack(*fields)
    broken = bytes(content[: -change["cut"]] if "cut" in change else b"" if "empty" in change else content)
    with pytest.raises(FormatError, match="page 5"):
        page_format.unpack(broken, google_crc32c.value(broken), "page 5")
