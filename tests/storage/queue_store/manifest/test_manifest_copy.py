"""The manifest's copy on disk 2: what it says is what the manifest says, whatever changes, stops, fails or rots."""

from __future__ import annotations

import asyncio
import errno
import random
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.fakes.clock import FakeClock
from tests.fakes.files import PowerLoss, SimulatedFile, SimulatedFiles
from tests.storage.queue_store.manifest.test_manifest_merges import GROUPS, Model, a_change
from tests.storage.queue_store.runs import WatchedFiles, make_batch, write_run

from mainstem.ports import ReadingMode
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.copy_on_disk import manifest_copy
from mainstem.storage.queue_store.manifest.copy_on_disk.copied_manifest import CopiedManifest, copy_faults, read_copy
from mainstem.storage.queue_store.manifest.copy_on_disk.manifest_copy import ManifestCopy
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, Database
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.manifest_rows import (
    COPY_DIRECTORY,
    IMAGE_SUFFIX,
    CopyHeader,
    CopyKind,
    changes_path,
)
from mainstem.storage.queue_store.manifest.store_mark import MARK_NAME, read_mark
from mainstem.storage.queue_store.store import QueueStore

IDENTITY = uuid.UUID(int=7)


class SlowForImages(WatchedFiles):
    """A disk on which an image takes so long to begin that the manifest changes meanwhile."""

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> SimulatedFile:
        if create and IMAGE_SUFFIX in path:
            await asyncio.sleep(0.003)
        return await super().open(path, create=create, reading=reading)


async def opened(files: SimulatedFiles, path: Path) -> tuple[Manifest, ManifestCopy]:
    manifest = await Manifest.open(str(path))
    if manifest.identity is None:
        await manifest.adopt(IDENTITY, 0)
    return manifest, await ManifestCopy.open(files, manifest)


async def copied(files: SimulatedFiles) -> CopiedManifest:
    found, faults = await read_copy(files, IDENTITY)
    assert found is not None, faults
    return found


def paths(files: WatchedFiles) -> list[str]:
    return [path for path in files.paths() if path.startswith(COPY_DIRECTORY)]


def without_seen(contents: Contents) -> Contents:
    return contents._replace(seen={})


@pytest.fixture(autouse=True, scope="module")
def few_changes_per_image() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_copy, "CHANGES_PER_IMAGE_MIN", 5)
        patch.setattr(manifest_copy, "CHANGES_PER_IMAGE_MAX", 6)
        patch.setattr(manifest_copy, "PAGE_ROWS", 3)
        yield


@given(st.integers(0, 2**32))
@example(8403)  # versions without a copy that run again and again leave no more images than others do
def test_at_random_a_manifest_made_of_its_copy_says_what_the_lost_one_said(seed: int) -> None:
    """Images are written while the manifest changes; the node stops at any time, and a version that keeps no copy may
    run in between."""
    choice = random.Random(seed)

    async def changes(manifest: Manifest, model: Model, copy: ManifestCopy, first: int) -> None:
        for number in range(first, first + choice.randint(0, 9)):
            await a_change(manifest, model, choice, number)
            if choice.random() < 0.9:  # else the disk failed, and the next change is written with this one
                await copy.write()
            await asyncio.sleep(0)

    async def scenario(directory: Path) -> None:
        files, path, model = SlowForImages(seed), directory / "manifest.sqlite", Model()
        manifest, copy = await opened(files, path)
        for part in range(choice.randint(1, 6)):
            await asyncio.gather(changes(manifest, model, copy, 10 * part), copy.renew())
            await copy.write()
            event = choice.random()
            if event < 0.6:
                await manifest.close()
                if event < 0.1:
                    manifest = await Manifest.open(str(path))
                    await a_change(manifest, model, choice, 10 * part + 9)
                    await manifest.close()
                manifest, copy = await opened(files, path)
                await copy.renew()
        await manifest.close()
        if not manifest.changes:
            return
        lost, found = Database(str(path)).read(), await copied(files)
        assert without_seen(found.contents) == without_seen(lost)
        assert found.contents.seen.items() <= lost.seen.items()
        assert await copy_faults(files, IDENTITY, lost, lost.changes) == []
        images = [one for one in paths(files) if one.endswith(".image")]
        assert found.image == (int(Path(images[-1]).stem) if images else None), "the newest one serves"
        assert len([one for one in paths(files) if one.endswith(".image")]) <= 3
        database = Database(str(directory / "made.sqlite"))
        database.open()
        database.fill(found.contents, found.schema_version, 99)
        database.close()
        assert Database(str(directory / "made.sqlite")).read() == found.contents
        made = await Manifest.open(str(directory / "made.sqlite"))
        model.settle()
        model.check(made)
        assert made.schema_version == manifest.schema_version
        for number in range(100, 105):  # and it can be changed as the lost one
            await a_change(made, model, choice, number)
            model.check(made)
        await made.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(scenario(Path(directory)))


async def fill(files: WatchedFiles, path: Path, changes: int, seed: int = 3) -> Contents:
    """Some changes, with images; what the manifest says then."""
    manifest, copy = await opened(files, path)
    choice, model = random.Random(seed), Model()
    while manifest.changes < changes:
        await a_change(manifest, model, choice, manifest.changes)
        await copy.write()
        await copy.renew()
    await manifest.close()
    return Database(str(path)).read()


def test_two_images_stay_and_what_follows_the_older_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        await fill(files, tmp_path / "manifest.sqlite", 40)
        images = [path for path in paths(files) if path.endswith(".image")]
        assert len(images) == 2
        assert len(paths(files)) <= 2 + 2 * 6 + 1

    asyncio.run(scenario())


def test_a_file_of_the_copy_that_rots_loses_nothing_unless_nothing_later_says_the_same(tmp_path: Path) -> None:
    """The result is a state that the manifest had, never another one; and it is the last one when an image rots."""

    async def scenario() -> None:
        files = WatchedFiles()
        lost = await fill(files, tmp_path / "manifest.sqlite", 38)
        choice, ends = random.Random(5), set()
        for path in paths(files):
            for _time in range(4):
                rotten = files.clone(1)
                rotten.flip(path, choice.randrange(8 * len(files.content(path))))
                found, faults = await read_copy(rotten, IDENTITY)
                ((where, _what),) = await copy_faults(rotten, IDENTITY, lost, lost.changes)
                assert where == path
                assert found is not None
                if found.contents.changes == lost.changes:
                    assert without_seen(found.contents) == without_seen(lost)
                else:
                    assert faults
                    assert path.endswith(".changes")
                ends.add(found.contents.changes)
        assert lost.changes in ends
        assert len(ends) > 1, "the newest changes are nowhere else"

    asyncio.run(scenario())


def test_what_the_mark_vouches_for_the_copy_has_wherever_the_power_goes(tmp_path: Path) -> None:
    async def scenario(seed: int) -> None:
        files, database = WatchedFiles(seed), tmp_path / f"{seed}.sqlite"
        store = await QueueStore.open(files, str(database), QueueStoreConfig(), FakeClock())
        number = 0
        files.cut_power(after=1 + seed)
        with pytest.raises(PowerLoss):  # noqa: PT012 - where the power goes depends on the seed
            while True:
                run = write_run(files, f"{number}.run", [make_batch(1, number)])
                await store.splits.record(0, number, number + 1, [run], applied_index=number)
                await store.copy.renew()
                number += 1
        await store.manifest.close()
        files.crash()
        lost = Database(str(database)).read()
        vouched = await store_mark_of(files)
        found, _faults = await read_copy(files, lost.identity or IDENTITY)
        end = found.contents.changes if found is not None else 0
        assert vouched <= end <= lost.changes
        if found is not None and end == lost.changes:
            assert found.contents == lost
        store = await QueueStore.open(files, str(database), QueueStoreConfig(), FakeClock())
        await store.copy.renew()
        run = write_run(files, "last.run", [make_batch(1, 999)])
        after = store.splits.split_position(0)
        await store.splits.record(0, after, after + 1, [run], applied_index=after)
        await store.close()
        found, _faults = await read_copy(files, lost.identity or IDENTITY)
        assert found is not None
        assert found.contents == Database(str(database)).read()

    for seed in range(40):
        asyncio.run(scenario(seed))


async def store_mark_of(files: WatchedFiles) -> int:
    mark = await read_mark(files)
    return mark.changes if mark is not None else 0


def test_a_change_that_the_copy_could_not_take_is_not_vouched_for_and_comes_with_the_next(tmp_path: Path) -> None:
    async def scenario() -> None:
        files = WatchedFiles()
        store = await QueueStore.open(files, str(tmp_path / "manifest.sqlite"), QueueStoreConfig(), FakeClock())
        files.fail("open", path=COPY_DIRECTORY, error=errno.ENOSPC)
        await store.splits.record(0, 0, 1, [write_run(files, "0.run", [make_batch(1, 0)])], applied_index=0)
        assert store.splits.split_position(0) == 1, "the change is made"
        assert await store_mark_of(files) == 0
        files.fail("open", path=COPY_DIRECTORY, error=errno.ENOSPC)
        with pytest.raises(StorageError, match="cannot be written"):
            await store.changes.vouch()
        await store.changes.vouch()
        assert await store_mark_of(files) == 1
        assert store.manifest.identity is not None
        found, _faults = await read_copy(files, store.manifest.identity)
        assert found is not None
        assert found.contents.positions[0].position == 1
        await store.close()

    asyncio.run(scenario())


def test_files_that_were_replaced_stay_until_the_copy_knows(tmp_path: Path) -> None:
    """A manifest made of the copy names them. Files that nothing ever named go: a full disk needs the room."""

    async def scenario() -> None:
        files, clock = WatchedFiles(), FakeClock()
        store = await QueueStore.open(files, str(tmp_path / "manifest.sqlite"), QueueStoreConfig(), clock)
        old = write_run(files, "old.run", [make_batch(1, 0)])
        await store.splits.record(0, 0, 1, [old], applied_index=0)
        new = write_run(files, "new.run", [make_batch(1, 0)])
        files.fail("open", path=COPY_DIRECTORY, error=errno.EIO)
        await store.changes.replace("old.run", {0: [new]})
        write_run(files, "stray.run", [make_batch(1, 5)])
        for _look in range(2):
            await store.retention.retain(lambda queue_ids: 0 * queue_ids.astype("int64"))
            clock.advance(2 * QueueStoreConfig().orphan_grace_seconds)
        await store.retention.retain(lambda queue_ids: 0 * queue_ids.astype("int64"))
        assert "runs/old.run" in files.paths()
        assert "runs/stray.run" not in files.paths()
        await store.changes.vouch()
        await store.retention.retain(lambda queue_ids: 0 * queue_ids.astype("int64"))
        assert "runs/old.run" not in files.paths()
        await store.close()

    asyncio.run(scenario())


def test_a_copy_of_another_history_is_not_gone_on_with(tmp_path: Path) -> None:
    """The manifest lost its last changes, of which the mark knew nothing: others get their numbers."""

    async def scenario() -> None:
        files, path, choice = WatchedFiles(), tmp_path / "manifest.sqlite", random.Random(1)
        manifest, copy = await opened(files, path)
        model = Model()
        while manifest.changes < 4:
            await a_change(manifest, model, choice, manifest.changes)
            await copy.write()
        await manifest.close()
        other, model = tmp_path / "other.sqlite", Model()
        manifest = await Manifest.open(str(other))
        await manifest.adopt(IDENTITY, 0)
        while manifest.changes < 2:
            await a_change(manifest, model, choice, 50 + manifest.changes)
        await manifest.close()
        manifest, copy = await opened(files, other)
        await copy.renew()
        while manifest.changes < 6:
            await a_change(manifest, model, choice, 70 + manifest.changes)
            await copy.write()
            said = Database(str(other)).read()
            assert without_seen((await copied(files)).contents) == without_seen(said)
        await manifest.close()

    asyncio.run(scenario())


def test_a_change_that_the_copy_missed_is_in_it_before_the_mark_knows_of_the_next(tmp_path: Path) -> None:
    """The node was killed between the two, or a version ran that keeps no copy."""

    async def scenario() -> None:
        files, path, choice, model = WatchedFiles(), tmp_path / "manifest.sqlite", random.Random(1), Model()
        manifest, copy = await opened(files, path)
        number = 0
        for upto in (3, 4, 5):
            while manifest.changes < upto:
                await a_change(manifest, model, choice, number)
                number += 1
                if upto != 4:
                    await copy.write()
            if upto == 4:
                await manifest.close()
                manifest, copy = await opened(files, path)
        await manifest.close()
        lost = Database(str(path)).read()
        assert await copy_faults(files, IDENTITY, lost, lost.changes) == []

    asyncio.run(scenario())


async def at_once(_size: int) -> None:
    """No pace."""


@pytest.mark.parametrize("how", ["flipped", "cut short", "gone"])
def test_rot_of_the_copy_is_found_while_the_node_runs_and_the_next_image_takes_its_place(
    tmp_path: Path, how: str
) -> None:
    async def scenario() -> None:
        files, path, choice = WatchedFiles(), tmp_path / "manifest.sqlite", random.Random(5)
        lost = await fill(files, path, 38)
        told, gone = set[str](), 0
        for rotten in paths(files):
            disk, content = files.clone(1), files.content(rotten)
            if how == "flipped":
                disk.flip(rotten, choice.randrange(8 * len(content)))
            elif how == "cut short":
                disk.put(rotten, content[: choice.randrange(len(content))])
            else:
                disk.forget(rotten)
            manifest, copy = await opened(disk, path)  # which does not look at all of it
            found = await copy.look_for_rot(at_once)
            whole, _faults = await read_copy(disk, IDENTITY)
            if how != "gone":
                assert [rot.path for rot in found] == [rotten] or copy.is_due
            elif whole is None or whole.contents.changes < lost.changes:
                assert [rot.path for rot in found] == [COPY_DIRECTORY] or copy.is_due
                gone += 1
            told.update(rot.path for rot in found)
            await copy.renew()
            assert await copy.look_for_rot(at_once) == []
            assert await copy_faults(disk, IDENTITY, lost, lost.changes) == []
            assert (await copied(disk)).contents.changes == lost.changes
            await manifest.close()
        assert len(told) > 3 or gone > 2

    asyncio.run(scenario())


def test_a_look_for_rot_while_the_manifest_changes_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    async def scenario() -> None:
        files, choice, model = SlowForImages(), random.Random(2), Model()
        manifest, copy = await opened(files, tmp_path / "manifest.sqlite")

        async def changes() -> None:
            for number in range(40):
                await a_change(manifest, model, choice, number)
                await copy.write()
                await copy.renew()

        changing, looks = asyncio.ensure_future(changes()), 0
        while not changing.done():
            assert await copy.look_for_rot(at_once) == []
            looks += 1
        await changing
        assert looks > 3
        await manifest.close()

    asyncio.run(scenario())


def test_a_start_changes_nothing_of_a_copy_before_it_writes(tmp_path: Path) -> None:
    """It may yet refuse. Changes behind the manifest go with the first change, and those being written."""

    async def scenario() -> None:
        files, path, choice = WatchedFiles(), tmp_path / "manifest.sqlite", random.Random(1)
        manifest, copy = await opened(files, path)
        model = Model()
        while manifest.changes < 4:
            await a_change(manifest, model, choice, manifest.changes)
            await copy.write()
        await manifest.close()
        behind = changes_path(5)
        header = CopyHeader(CopyKind.CHANGES, IDENTITY, 5, 5, 0, 0)
        files.put(behind, header.pack())
        files.put(f"{COPY_DIRECTORY}/some.tmp-new", b"begun")
        before = {one: files.content(one) for one in files.paths()}
        for _start in range(2):
            manifest, copy = await opened(files, path)
            assert {one: files.content(one) for one in files.paths()} == before
            await manifest.close()
        manifest, copy = await opened(files, path)
        await a_change(manifest, model, choice, 9)
        await copy.write()
        assert not [one for one in files.paths() if one.endswith("tmp-new")]
        assert (await copied(files)).contents == Database(str(path)).read()
        await manifest.close()

    asyncio.run(scenario())


def test_m_a_manifest_that_is_gone_is_missed_where_all_runs_were_merged(tmp_path: Path) -> None:
    async def scenario(there: str) -> None:
        files = WatchedFiles()
        store = await QueueStore.open(files, str(tmp_path / f"{there[:5]}.sqlite"), QueueStoreConfig(), FakeClock())
        await store.close()
        files.put(there, b"whatever")
        with pytest.raises(StorageError, match=r"the manifest is missing or empty, .* store repair --manifest"):
            await QueueStore.open(files, str(tmp_path / "nowhere.sqlite"), QueueStoreConfig(), FakeClock())
        assert files.content(there) == b"whatever"
        assert MARK_NAME in files.paths()

    for there in ("packed/0.pack", "queues/orders/0/merge/00000000000000000000.log", "manifest/" + "0" * 20 + ".image"):
        asyncio.run(scenario(there))


def test_the_groups_of_the_model_are_those_of_the_manifest(tmp_path: Path) -> None:
    async def scenario() -> None:
        contents = await fill(WatchedFiles(), tmp_path / "manifest.sqlite", 30)
        manifest = await Manifest.open(str(tmp_path / "manifest.sqlite"))
        assert set(manifest.groups()) == set(contents.positions) <= set(GROUPS)
        await manifest.close()

    asyncio.run(scenario())
