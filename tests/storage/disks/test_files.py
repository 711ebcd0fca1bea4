"""The conduct of the real disk alone, and of the simulated one alone; the promises of both are in `tests/contracts`."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.fakes.files import PAGE_BYTES, PowerLoss, SimulatedFiles

from mainstem.storage.disks.disk_files import FILL_CHUNK_BYTES, DiskFiles

# --- the real disk ----------------------------------------------------------------------------------------


def test_extending_takes_the_space(tmp_path: Path) -> None:
    """So that a later write inside the size cannot meet a full disk."""

    async def run() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("extended", create=True)
        await file.size(truncate_to=1 << 20)
        assert (tmp_path / "extended").stat().st_blocks * 512 >= 1 << 20
        await file.close()
        await files.close()

    asyncio.run(run())


def test_a_cancelled_caller_does_not_leave_a_job_behind_the_close(tmp_path: Path) -> None:
    async def run() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("slow", create=True)
        writing = asyncio.ensure_future(file.write(0, [bytes(32 << 20)], sync=True))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await file.close()
        assert (tmp_path / "slow").stat().st_size == 32 << 20, "the job was carried through before the close"
        await files.close()

    asyncio.run(run())


def test_a_close_ends_the_filling(tmp_path: Path) -> None:
    """Behind a whole chunk: the rest would be written to whatever has the number of the descriptor by then."""

    async def run() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("filled", create=True)
        filling = asyncio.ensure_future(file.fill(0, 1 << 40, bytes_per_second=1 << 30))
        while not await file.size():  # until it has begun
            pass
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        await file.close()
        size = (tmp_path / "filled").stat().st_size
        assert 0 < size < 1 << 40
        assert size % FILL_CHUNK_BYTES == 0
        await files.close()
        assert (tmp_path / "filled").stat().st_size == size

    asyncio.run(run())


def test_a_close_waits_for_what_is_filled_in_memory(tmp_path: Path) -> None:
    async def run() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("filled", create=True)
        await file.write(0, [b"x" * 10])
        await file.fill_in_memory(2, 5)
        assert await file.read(0, 100) == b"xx" + bytes(5) + b"xxx"
        filling = asyncio.ensure_future(file.fill_in_memory(0, 64 << 20))
        await asyncio.sleep(0)
        filling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await filling
        await file.close()
        assert (tmp_path / "filled").stat().st_size == 64 << 20, "the job was carried through before the close"
        await files.close()

    asyncio.run(run())


def test_descriptors_do_not_leak_into_children_or_out_of_cancelled_opens(tmp_path: Path) -> None:
    def descriptors() -> list[int]:
        return [int(name) for name in os.listdir("/proc/self/fd")]

    def inheritable() -> list[int]:
        """Descriptors below the root that a child would get."""
        links = [(number, f"/proc/self/fd/{number}") for number in descriptors()]
        return [
            number
            for number, link in links
            if os.path.lexists(link) and os.readlink(link).startswith(str(tmp_path)) and os.get_inheritable(number)
        ]

    async def run() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("one", create=True)
        assert inheritable() == []
        before = len(descriptors())
        for _ in range(50):
            opening = asyncio.ensure_future(files.open("one"))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        await files.names(".")
        await file.close()
        await files.close()
        assert len(descriptors()) <= before

    asyncio.run(run())


def test_paths_stay_inside_the_root(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    for path in ("/etc/passwd", "../x", "a/../../x"):
        with pytest.raises(AssertionError):
            asyncio.run(files.open(path))
    asyncio.run(files.close())


# --- the simulated disk -----------------------------------------------------------------------------------


def crashed(seed: int) -> tuple[bytes, bytes, bytes]:
    """Two pages, synced, then overwritten twice, then a crash: before, after, and what is left."""

    async def run() -> tuple[bytes, bytes, bytes]:
        files = SimulatedFiles(seed)
        file = await files.open("f", create=True)
        await file.write(0, [b"a" * 2 * PAGE_BYTES], sync=True)
        await file.write(0, [b"b" * 2 * PAGE_BYTES])
        await file.write(PAGE_BYTES, [b"c" * PAGE_BYTES])
        files.crash()
        with pytest.raises(PowerLoss):
            await file.read(0, 1)
        content = files.content("f")
        return content[:PAGE_BYTES], content[PAGE_BYTES:], content

    return asyncio.run(run())


def test_unsynced_pages_are_lost_kept_torn_and_reordered() -> None:
    seen = set()
    for seed in range(200):
        first, second, whole = crashed(seed)
        assert len(whole) == 2 * PAGE_BYTES
        assert set(first) <= set(b"ab")
        assert set(second) <= set(b"ab") or set(second) <= set(b"bc")
        seen.add((len(set(first)) > 1, len(set(second)) > 1, first[0:1], second[0:1]))
    assert (False, False, b"a", b"c") in seen, "a later write kept, an earlier one lost"
    assert (False, False, b"b", b"a") in seen
    assert any(torn for torn, *_rest in seen)
    assert crashed(5) == crashed(5), "a seed is a story"


def test_what_was_synced_survives_and_a_failed_sync_saves_nothing() -> None:
    async def run() -> None:
        for seed in range(30):
            files = SimulatedFiles(seed)
            file = await files.open("f", create=True)
            await file.write(0, [b"synced"], sync=True)
            await file.write(0, [b"failed"])
            files.fail("sync")
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                await file.sync()
            await file.sync()
            assert await file.read(0, 10) == b"failed", "the page cache still shows it"
            files.crash()
            assert files.content("f") == b"synced"

    asyncio.run(run())


def test_power_cuts_faults_and_bounds_hit_where_they_are_told_to() -> None:
    async def run() -> None:
        files = SimulatedFiles(1, capacity_bytes=100)
        file = await files.open("f", create=True)
        files.fail("write", path="f", nth=2, error=errno.ENOSPC)
        await file.write(0, [b"1"])
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            await file.write(0, [b"2"])
        await file.write(0, [b"3"], sync=True)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            await file.write(99, [b"45"])
        assert (await files.usage()).free_bytes == 99
        files.cut_power(after=2)
        await file.write(1, [b"6"])
        with pytest.raises(PowerLoss):
            await file.sync()
        with pytest.raises(PowerLoss):
            await files.names("")
        files.crash(keep_bytes=0)
        assert files.content("f")[:1] == b"3"
        files.flip("f", 0)
        assert files.content("f")[:1] == b"2"
        copy = files.clone(seed=2)
        await files.remove("f")
        assert copy.paths() == ["f"]
        assert files.paths() == []

    asyncio.run(run())


def test_what_was_removed_without_a_sync_may_be_there_again_until_its_directory_is_synced() -> None:
    async def removed(seed: int, *, durable: bool, then: bool) -> list[str]:
        """The files that are there after a crash."""
        files = SimulatedFiles(seed)
        files.removed_may_return = True
        for path in ("a/first", "a/second", "b/third"):
            files.put(path, b"x")
        for path in ("a/first", "b/third"):
            await files.remove(path, durable=durable)
        assert files.paths() == ["a/second"]
        if then:
            await files.remove("a/second")
        files.crash()
        return files.paths()

    seeds = range(20)
    kept = [asyncio.run(removed(seed, durable=True, then=False)) for seed in seeds]
    assert kept == [["a/second"]] * len(seeds)
    left = {path for seed in seeds for path in asyncio.run(removed(seed, durable=False, then=False))}
    assert left == {"a/first", "a/second", "b/third"}
    left = {path for seed in seeds for path in asyncio.run(removed(seed, durable=False, then=True))}
    assert left == {"b/third"}


def test_a_new_file_stays_where_one_was_removed_without_a_sync() -> None:
    async def story(seed: int) -> bytes:
        files = SimulatedFiles(seed)
        files.removed_may_return = True
        files.put("there", b"old")
        files.put("other", b"new")
        await files.remove("there", durable=False)
        await files.rename("other", "there")
        files.crash()
        return files.content("there")

    assert {asyncio.run(story(seed)) for seed in range(20)} == {b"new"}
