"""`ports.Files`: the real disk and the simulated one keep the same promises, also where something is wrong."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.files import SimulatedFiles
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.kernel import VECTOR_BUFFERS_MAX
from mainstem.ports import ColdPart, Files, ReadsParts
from mainstem.storage.disks.disk_files import DiskFiles

Story = Callable[[Files], Awaitable[None]]

PROJECT = Path(__file__).parents[2]
ROOM_BYTES = 256 << 10
"""Of a disk that can be filled."""


class Disk(ABC):
    """A disk that outlives whoever works on it."""

    @abstractmethod
    def run(self, story: Story) -> None:
        """Have one life, until the story is over; what it has opened is closed."""

    @abstractmethod
    def die(self, story: Story) -> None:
        """Have a life that ends, without another word to the disk, when the story is over. It is a function of this
        module."""

    @abstractmethod
    def lose_power(self, story: Story) -> None:
        """The same, with all that nobody had synced. Without power to cut, the life ends only."""


class RealDisk(Disk):
    def __init__(self, root: Path) -> None:
        self._root = root

    def run(self, story: Story) -> None:
        async def life() -> None:
            files = DiskFiles(self._root)
            await story(files)
            await files.close()

        asyncio.run(asyncio.wait_for(life(), PATIENCE_SECONDS))

    def die(self, story: Story) -> None:
        program = f"from tests.contracts import test_files as it; it.killed({str(self._root)!r}, it.{story.__name__})"
        found = {"PYTHONPATH": f"{PROJECT}:{PROJECT / 'src'}", **os.environ}
        ended = subprocess.run([sys.executable, "-c", program], env=found, timeout=PATIENCE_SECONDS, check=False)
        assert ended.returncode == -9

    def lose_power(self, story: Story) -> None:
        self.die(story)


class SimulatedDisk(Disk):
    def __init__(self, capacity_bytes: int | None = None) -> None:
        self._files = SimulatedFiles(capacity_bytes=capacity_bytes)

    def run(self, story: Story) -> None:
        asyncio.run(asyncio.wait_for(self._life(story), PATIENCE_SECONDS))

    def die(self, story: Story) -> None:
        asyncio.run(asyncio.wait_for(self._life(story), PATIENCE_SECONDS))
        self._files.crash(keep_all=True)

    def lose_power(self, story: Story) -> None:
        asyncio.run(asyncio.wait_for(self._life(story), PATIENCE_SECONDS))
        self._files.crash()

    async def _life(self, story: Story) -> None:
        await story(self._files)


def killed(root: str, story: Story) -> None:
    async def life() -> None:
        await story(DiskFiles(root))
        os.kill(os.getpid(), 9)

    asyncio.run(life())


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path / "root" / "below") if request.param == "real" else SimulatedDisk()


@pytest.fixture(params=["real", "simulated"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """One of `ROOM_BYTES`."""
    if request.param == "simulated":
        yield SimulatedDisk(ROOM_BYTES)
        return
    mounted = ["mount", "-t", "tmpfs", "-o", f"size={ROOM_BYTES}", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mounted, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a real disk that is full takes the right to mount one: {error}")
    try:
        yield RealDisk(tmp_path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=PATIENCE_SECONDS)


async def write_and_hold(files: Files) -> None:
    """The remains of a process: bytes that were synced, bytes that were not, a rename, and a lock."""
    synced, plain = await files.open("d/synced", create=True), await files.open("d/plain", create=True)
    await synced.write(0, [b"synced"], sync=True)
    await plain.write(0, [b"first"])
    await plain.write(5, [b"second"])
    await files.rename("d/plain", "d/moved")
    assert await synced.lock(exclusive=True)


async def change_and_sync(files: Files) -> None:
    """The durable state: by a sync, by a write with one, or as every change of names is."""
    for name in ("removed", "replaced", "kept"):
        file = await files.open(f"d/{name}", create=True)
        await file.write(0, [name.encode() * 3000])
        await file.sync()
        await file.close()
    await files.remove("d/removed")
    await files.rename("d/kept", "d/replaced")
    file = await files.open("d/cut", create=True)
    await file.write(0, [b"x" * 9000], sync=True)
    await file.size(truncate_to=5)
    await file.sync()
    await files.open("d/e/empty", create=True)


class TestFiles:
    def test_reads_what_was_written(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("a/b/c", create=True)
            await file.write(10, [b"one", bytearray(b"two"), memoryview(b"three"), b""])
            assert await file.read(0, 100) == bytes(10) + b"onetwothree"
            assert await file.read(13, 3) == b"two"
            assert await file.read(100, 3) == b""
            await file.write(11, [b"NE"], sync=True)
            await file.sync()
            assert await file.read(10, 3) == b"oNE"
            other = await files.open("a/b/c", create=True)
            assert await other.size() == 21, "creating what exists opens it as it is"
            await other.close()
            await file.close()

        disk.run(story)

    def test_takes_more_buffers_than_one_vectored_write(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("many", create=True)
            buffers = [bytes([number % 256]) * (number % 3) for number in range(3 * VECTOR_BUFFERS_MAX)]
            await file.write(5, buffers, sync=True)
            assert await file.read(5, 1 << 20) == b"".join(buffers)
            await file.close()

        disk.run(story)

    def test_counts_bytes_of_views_that_are_not_bytes(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("view", create=True)
            await file.write(0, [memoryview(bytes(range(16))).cast("I"), b"end"])
            assert await file.read(0, 100) == bytes(range(16)) + b"end"
            await file.close()

        disk.run(story)

    def test_sizes_change(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("sized", create=True)
            assert await file.size(truncate_to=10_000) == 10_000
            assert await file.read(9_000, 5_000) == bytes(1_000)
            await file.write(0, [b"kept"])
            assert await file.size(truncate_to=2) == 2
            assert await file.read(0, 10) == b"ke"
            assert await file.size() == 2
            await file.close()

        disk.run(story)

    def test_what_is_forgotten_is_read_as_before(self, disk: Disk) -> None:
        """Memory gives up what the disk has, and nothing else."""

        async def story(files: Files) -> None:
            file = await files.open("forgotten", create=True)
            await file.write(0, [b"durable" * 1000], sync=True)
            await file.write(3, [b"not yet"])
            await file.forget()
            assert await file.read(0, 7_000) == b"dur" + b"not yet" + (b"durable" * 1000)[10:]
            await file.close()

        disk.run(story)

    def test_a_part_is_filled_with_zeros(self, disk: Disk) -> None:
        """Of no whole number of chunks, and nothing before or behind it."""

        async def story(files: Files) -> None:
            length = 300_001
            file = await files.open("filled", create=True)
            await file.write(0, [b"\xff" * (length + 20)])
            await file.fill(10, length, bytes_per_second=1e9)
            assert await file.read(0, length + 20) == b"\xff" * 10 + bytes(length) + b"\xff" * 10
            await file.fill(length + 20, 5, bytes_per_second=1e9)
            assert await file.size() == length + 25
            await file.close()

        disk.run(story)

    def test_names_are_sorted_and_replaced(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            assert await files.names("none") == []
            for name in ("d/z", "d/a", "d/m"):
                file = await files.open(name, create=True)
                await file.write(0, [name.encode()])
                await file.close()
            assert await files.names("d") == ["a", "m", "z"]
            await files.rename("d/z", "d/a")
            assert await files.names("d") == ["a", "m"]
            file = await files.open("d/a")
            assert await file.read(0, 10) == b"d/z"
            await file.close()
            await files.remove("d/a")
            await files.remove("d/a")
            assert await files.names("d") == ["m"]
            with pytest.raises(FileNotFoundError):
                await files.open("d/a")
            with pytest.raises(FileNotFoundError):
                await files.rename("d/a", "d/b")
            await files.rename("d/m", "e/f/m")
            assert await files.names("e/f") == ["m"]

        disk.run(story)

    def test_parts_of_many_files_are_read_in_one_go(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            content = bytes(number * 7 % 251 for number in range(300_000))
            for name in ("d/one", "d/other"):
                file = await files.open(name, create=True)
                await file.write(0, [name.encode(), content], sync=True)
                await file.close()
            assert isinstance(files, ReadsParts)
            found = await files.read_parts(
                [
                    ColdPart("d/one", 1, 9_000),
                    ColdPart("d/none", 0, 10),
                    ColdPart("d/other", 150_000, 140_000),
                    ColdPart("d", 0, 10),
                    ColdPart("d/one", 299_990, 100),
                    ColdPart("d/one", 400_000, 100),
                ]
            )
            one, other = b"d/one" + content, b"d/other" + content
            assert found == [one[1:9_001], None, other[150_000:290_000], None, one[299_990:], b""]

        disk.run(story)

    def test_a_handle_follows_its_file(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("old", create=True)
            await files.rename("old", "new")
            await file.write(0, [b"moved"])
            other = await files.open("new")
            assert await other.read(0, 10) == b"moved"
            await files.remove("new")
            assert await other.read(0, 10) == b"moved"
            await other.close()
            await file.close()

        disk.run(story)

    def test_locks_belong_to_handles(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            first, second, third = [await files.open("locked", create=True) for _ in range(3)]
            assert await first.lock(exclusive=False)
            assert await second.lock(exclusive=False)
            assert not await third.lock(exclusive=True)
            await second.close()
            assert await first.lock(exclusive=True), "a lock can be made stronger by who alone holds it"
            assert not await third.lock(exclusive=False)
            await first.close()
            assert await third.lock(exclusive=True)
            await third.close()

        disk.run(story)

    def test_a_handle_is_closed_once_jobs_are_done(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("busy", create=True)
            await asyncio.gather(*(file.write(number * 4, [b"abcd"], sync=number % 2 == 0) for number in range(8)))
            await file.close()
            await file.close()
            file = await files.open("busy")
            assert await file.read(0, 100) == b"abcd" * 8
            await file.close()

        disk.run(story)

    def test_room_is_told(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            usage = await files.usage()
            assert 0 < usage.free_bytes <= usage.total_bytes

        disk.run(story)

    def test_a_lock_that_cannot_be_made_stronger_is_lost(self, disk: Disk) -> None:
        """As flock has it: the old lock goes before the new one is asked for."""

        async def story(files: Files) -> None:
            first, second, third = [await files.open("locked", create=True) for _ in range(3)]
            assert await first.lock(exclusive=False)
            assert await second.lock(exclusive=False)
            assert not await first.lock(exclusive=True)
            assert await second.lock(exclusive=True), "nobody else holds one any more"
            assert await second.lock(exclusive=False)
            assert await third.lock(exclusive=False)
            for file in (first, second, third):
                await file.close()

        disk.run(story)

    def test_a_file_is_no_directory_and_a_directory_no_file(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            await (await files.open("d/file", create=True)).close()
            for path in ("d/file/below", "d/file/far/below"):
                with pytest.raises(NotADirectoryError):
                    await files.open(path, create=True)
                with pytest.raises(NotADirectoryError):
                    await files.open(path)
            with pytest.raises(NotADirectoryError):
                await files.names("d/file")
            with pytest.raises(IsADirectoryError):
                await files.open("d")
            with pytest.raises(IsADirectoryError):
                await files.open("d", create=True)
            assert await files.names("d") == ["file"]
            assert await files.names(".") == ["d"]

        disk.run(story)

    def test_a_file_of_the_same_name_is_another_one(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            old = await files.open("name", create=True)
            await old.write(0, [b"old"], sync=True)
            await files.remove("name")
            new = await files.open("name", create=True)
            assert await new.size() == 0
            assert await old.lock(exclusive=True)
            assert await new.lock(exclusive=True), "locks are the files', not the names'"
            await new.write(0, [b"new"])
            assert await old.read(0, 10) == b"old"
            await old.close()
            await new.close()

        disk.run(story)

    def test_a_directory_deep_down_goes_with_its_last_file(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            for name in ("a/b/c/one", "a/b/c/two", "a/b/three"):
                file = await files.open(name, create=True)
                await file.close()
            await files.remove("a/b/c/one")
            assert await files.names("a/b") == ["c", "three"]
            await files.remove("a/b/c/two")
            assert await files.names("a/b") == ["three"]
            file = await files.open("a/b/c/one", create=True)
            await file.close()
            assert await files.names("a/b/c") == ["one"]

        disk.run(story)

    def test_errors_say_which_file(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            with pytest.raises(FileNotFoundError) as missing:
                await files.open("none/such")
            assert missing.value.errno == errno.ENOENT
            assert str(missing.value.filename).endswith("none/such")
            assert await files.names("none") == [], "opening what is not there makes no directories"
            await files.remove("none/such")
            assert await files.names("none") == []

        disk.run(story)

    def test_nothing_is_written_past_the_end_by_writing_nothing(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("empty", create=True)
            await file.write(100, [])
            await file.write(100, [b"", b""], sync=True)
            assert await file.size() == 0
            await file.size(truncate_to=0)
            await file.close()

        disk.run(story)

    def test_what_was_cut_off_and_grows_again_reads_as_zeros(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("cut", create=True)
            await file.write(0, [b"x" * 6000], sync=True)
            await file.size(truncate_to=3)
            await file.size(truncate_to=10)
            assert await file.read(0, 100) == b"xxx" + bytes(7)
            await file.write(5000, [b"y"])
            assert await file.read(0, 9000) == b"xxx" + bytes(4997) + b"y"
            await file.close()

        disk.run(story)

    def test_what_is_durable_outlives_the_power(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            assert await files.names("d") == ["cut", "e", "replaced"]
            assert await files.names("d/e") == ["empty"]
            for name, content in (("replaced", b"kept" * 3000), ("cut", b"x" * 5), ("e/empty", b"")):
                file = await files.open(f"d/{name}")
                assert await file.read(0, 20_000) == content
                await file.close()

        disk.lose_power(change_and_sync)
        disk.run(story)

    def test_a_process_that_dies_leaves_what_it_wrote_and_no_locks(self, disk: Disk) -> None:
        async def story(files: Files) -> None:
            assert await files.names("d") == ["moved", "synced"]
            for name, content in (("moved", b"firstsecond"), ("synced", b"synced")):
                file = await files.open(f"d/{name}")
                assert await file.read(0, 100) == content
                assert await file.lock(exclusive=True)
                await file.close()

        disk.die(write_and_hold)
        disk.run(story)


class TestFullDisk:
    def test_a_write_without_room_is_refused_and_what_lies_there_stays(self, small_disk: Disk) -> None:
        async def story(files: Files) -> None:
            kept = await files.open("kept", create=True)
            await kept.write(0, [b"k" * 1000], sync=True)
            large = await files.open("large", create=True)
            for sync in (False, True):
                with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)) as refused:
                    await large.write(0, [bytes(2 * ROOM_BYTES)], sync=sync)
                assert refused.value.errno == errno.ENOSPC
            await large.size(truncate_to=0)
            await kept.write(0, [b"K"], sync=True)
            assert await kept.read(0, 2000) == b"K" + b"k" * 999, "what has its place can be overwritten"
            await large.write(0, [b"l" * (ROOM_BYTES // 2)], sync=True)
            assert await large.size() == ROOM_BYTES // 2
            await large.close()
            await kept.close()

        small_disk.run(story)

    def test_a_file_that_was_extended_has_its_room(self, small_disk: Disk) -> None:
        async def story(files: Files) -> None:
            file, other = await files.open("extended", create=True), await files.open("other", create=True)
            await file.size(truncate_to=ROOM_BYTES // 2)
            assert (await files.usage()).free_bytes <= ROOM_BYTES // 2
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                await other.size(truncate_to=ROOM_BYTES)
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                await other.write(0, [bytes(ROOM_BYTES)])
            await file.write(0, [b"f" * (ROOM_BYTES // 2)], sync=True)
            assert await file.read(ROOM_BYTES // 2 - 1, 10) == b"f"
            await file.close()
            await other.close()

        small_disk.run(story)

    def test_room_comes_back_when_the_last_who_has_a_removed_file_open_closes_it(self, small_disk: Disk) -> None:
        async def story(files: Files) -> None:
            file = await files.open("large", create=True)
            await file.write(0, [bytes(ROOM_BYTES * 3 // 4)], sync=True)
            before = (await files.usage()).free_bytes
            await files.remove("large")
            assert (await files.usage()).free_bytes == before, "its bytes are there as long as somebody can read them"
            other = await files.open("other", create=True)
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                await other.write(0, [bytes(ROOM_BYTES // 2)])
            await other.size(truncate_to=0)
            await file.close()
            await other.write(0, [bytes(ROOM_BYTES // 2)])
            await other.close()

        small_disk.run(story)
