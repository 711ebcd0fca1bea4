"""Whose thread does what on a real disk: commits wait for nobody, the event loop waits for no disk."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.kernel import DurableWriter, pure, write_pieces
from mainstem.model import Buffer
from mainstem.ports import ReadingMode
from mainstem.storage.disks import disk_files
from mainstem.storage.disks.commit_thread import CommitThread
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.disks.disk_reads import DirectReads, all_resident
from mainstem.storage.disks.disk_thread import DiskThread
from mainstem.storage.disks.page_cache_room import ROOM_BYTES_MIN, PageCacheRoom
from mainstem.storage.disks.read_threads import READS_TOGETHER, ReadThreads
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.state import checkpoint as checkpoints
from mainstem.storage.state.queue_image import QueueImage
from mainstem.storage.store_files.run_target import LocalRunTarget


async def busy(thread: DiskThread) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Have a thread of the disk wait until the event is set."""
    over = threading.Event()
    task = asyncio.get_running_loop().create_task(thread.run(over.wait))
    await asyncio.sleep(0)
    return over, task


class HeldWriter(pure.DurableWriter):
    """Makes no write before `let_go`."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[tuple[Any, ...]] = []

    def begin(self, *write: Any) -> None:
        self._held.append(write)

    def let_go(self) -> None:
        for write in self._held:
            super().begin(*write)


def test_a_checkpoint_is_written_while_the_thread_of_commits_is_busy(tmp_path: Path) -> None:
    """Its syncs would delay the journal's otherwise."""
    state = checkpoints.State(position=1 << 32, durable=1 << 32, groups={}, journal_map=JournalMap(1).dump(), splits=[])

    async def story() -> None:
        files = DiskFiles(tmp_path)
        writer = HeldWriter()
        files.commits = CommitThread(writer)
        committing = asyncio.get_running_loop().create_task(files.commits.write(-1, 0, [], whole_file=False))
        image = QueueImage([], [bytes(24) * 100_000] * 4)
        await asyncio.wait_for(checkpoints.save(files, state, image), PATIENCE_SECONDS)
        assert not committing.done()
        writer.let_go()
        await committing
        loaded = await checkpoints.load(files)
        assert loaded is not None
        assert (loaded.state.position, len(loaded.queues)) == (1 << 32, 9_600_000)
        await files.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("promises", "room"),
    [(False, 0), (False, ROOM_BYTES_MIN), (True, 0)],
    ids=["a thread", "at once where the cache has room", "at once where the kernel can"],
)
def test_a_small_write_without_sync_is_whole_and_never_made_by_the_loop_unless_that_cannot_wait(
    tmp_path: Path, promises: bool, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwritev = os.pwritev

    def refused(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return pwritev(descriptor, buffers, position)

    if not promises:
        monkeypatch.setattr(os, "pwritev", refused)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        files.room = PageCacheRoom(lambda: room)
        file = await files.open("journal/one", create=True)
        over, task = await busy(files.copies)
        writing = asyncio.get_running_loop().create_task(file.write(3, [b"abc", b"def"]))
        for _ in range(5):
            await asyncio.sleep(0)
        at_once = writing.done()
        assert promises or at_once == bool(room), "the loop wrote it, whatever the disk was doing, or the thread did"
        over.set()
        await asyncio.gather(task, writing)
        assert await file.read(0, 20) == b"\0\0\0abcdef"
        await file.close()
        await files.close()

    asyncio.run(story())


@pytest.mark.parametrize("room", [0, ROOM_BYTES_MIN], ids=["a thread", "at once"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut short"])
def test_much_is_written_in_pieces_and_whole_though_one_is_cut_short(
    tmp_path: Path, room: int, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def in_pieces(descriptor: int, position: int, buffers: Any, piece: int, flags: int = 0) -> int:
        assert piece == disk_files.WRITE_PIECE_BYTES
        written = write_pieces(descriptor, position, buffers, piece, flags)
        calls.append(written)
        if cut:  # the last byte is not written
            written -= 1
            os.pwrite(descriptor, bytes([buffers[-1][-1] ^ 255]), position + written)
        return written

    monkeypatch.setattr(disk_files, "write_pieces", in_pieces)
    parts = [os.urandom(size) for size in (1, disk_files.WRITE_PIECE_BYTES, 3 * disk_files.WRITE_PIECE_BYTES + 7)]

    async def story() -> None:
        files = DiskFiles(tmp_path)
        files.room = PageCacheRoom(lambda: room)
        file = await files.open("journal/one", create=True)
        await file.write(5, parts)
        await file.write(1 << 20, [bytes(disk_files.WRITE_AT_ONCE_BYTES), *parts])
        assert len(calls) >= 2, "the loop wrote in pieces, and the thread for much"
        assert await file.read(5, len(b"".join(parts))) == b"".join(parts)
        behind = (1 << 20) + disk_files.WRITE_AT_ONCE_BYTES
        assert await file.read(behind, 1 << 20) == b"".join(parts)
        await file.close()
        await files.close()

    asyncio.run(story())


@pytest.mark.parametrize("one_core", [True, False])
def test_what_a_thread_would_have_no_core_for_is_written_by_the_loop(
    tmp_path: Path, one_core: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_promises(descriptor: int, position: int, buffers: Any, piece: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return write_pieces(descriptor, position, buffers, piece, flags)

    monkeypatch.setattr(disk_files, "write_pieces", without_promises)
    monkeypatch.setattr(disk_files, "has_one_core", lambda: one_core)
    monkeypatch.setattr(disk_files, "WRITE_AT_ONCE_BYTES", disk_files.WRITE_PIECE_BYTES)
    monkeypatch.setattr(disk_files, "WRITE_AT_ONCE_BYTES_ONE_CORE", 3 * disk_files.WRITE_PIECE_BYTES)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        files.room = PageCacheRoom(lambda: 2 * ROOM_BYTES_MIN)
        file = await files.open("one", create=True)
        over, task = await busy(files.large_copies)
        done = []
        for size in (3 * disk_files.WRITE_PIECE_BYTES, 3 * disk_files.WRITE_PIECE_BYTES + 1):
            writing = asyncio.get_running_loop().create_task(file.write(0, [os.urandom(size)]))
            for _ in range(5):
                await asyncio.sleep(0)
            done.append(writing.done())
        assert done == [one_core, False]
        over.set()
        await asyncio.gather(task, writing)
        await file.close()
        await files.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_what_is_forgotten_leaves_memory_as_far_as_it_is_on_the_disk(
    path_on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_files, "FORGET_REST_SECONDS", 0.0)
    piece = disk_files.FORGOTTEN_BYTES
    content = bytearray(os.urandom(2 * piece + 1))

    async def story() -> None:
        files = DiskFiles(path_on_disk)
        file = await files.open("file", create=True)
        await file.write(0, [content])
        await file.sync()
        content[piece - 3 : piece + 4] = b"not yet"
        await file.write(piece - 3, [b"not yet"])
        await file.forget()
        in_memory = [in_page_cache(path_on_disk / "file", at) for at in (0, piece + (1 << 19))]
        assert in_memory == [lives_in_memory(path_on_disk)] * 2
        assert await file.read(0, len(content)) == content
        await file.close()
        await files.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def in_page_cache(path: Path, position: int) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return all_resident(descriptor, position, os.sysconf("SC_PAGE_SIZE"))
    finally:
        os.close(descriptor)


def lives_in_memory(directory: Path) -> bool:
    """Whether the file system has no disk, as tmpfs."""
    path = directory / "probe"
    with path.open("wb") as file:
        file.write(b"probe")
        file.flush()
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return in_page_cache(path, 0)


@pytest.mark.parametrize("knows", [True, False], ids=["one call", "a system that has no such call"])
def test_a_write_with_sync_covers_all_that_was_not_synced_before(
    tmp_path: Path, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole file is synced where it may have more to sync than what is written; else that alone, in one call."""
    calls: list[str] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def noted(descriptor: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags & os.RWF_DSYNC:
            if not knows:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            calls.append("durable")
        return pwritev(descriptor, buffers, position, flags)

    def synced(descriptor: int) -> None:
        calls.append("all")
        fdatasync(descriptor)

    monkeypatch.setattr(os, "pwritev", noted)
    monkeypatch.setattr(os, "fdatasync", synced)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        files.commits = CommitThread(pure.DurableWriter())
        file = await files.open("journal/one", create=True)

        async def told(*writes: bytes) -> list[str]:
            calls.clear()
            for write in writes:
                await file.write(0, [write[:1], write[1:]], sync=True)
            return calls

        alone = "durable" if knows else "all"
        assert await told(b"first", b"again", b"once more") == ["all", alone, alone], "others may have written before"
        await file.write(100, [b"not synced"])
        assert await told(b"behind it", b"later") == ["all", alone]
        await file.size(truncate_to=1 << 20)
        assert await told(b"longer", b"later") == ["all", alone]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(file.write(200, [bytes(1 << 20)], sync=True))
            await asyncio.sleep(0)
            tasks.create_task(file.write(8 << 20, [bytes(1 << 20)]))  # while the first syncs, or before
        assert await told(b"overtaken") == ["all"]
        assert await file.read(0, 12) == b"overtaken" + bytes(3)
        await file.close()
        await files.close()

    asyncio.run(story())


def test_the_directory_of_runs_is_as_durable_as_the_first_run_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    target = LocalRunTarget(tmp_path / "store" / "runs", "one.run")
    target.abandon()
    assert {str(tmp_path), str(tmp_path / "store")} <= set(synced), "both were made"


async def busy_reads(files: DiskFiles, count: int) -> tuple[threading.Event, asyncio.Task[Any]]:
    """Have so many of the threads for reads at once wait until the event is set, and the thread for other reads."""
    over, one = await busy(files.reads)

    async def all_over() -> None:
        waiting = (files.reads_at_once.run(over.wait) for _ in range(count))
        await asyncio.gather(one, *waiting)

    task = asyncio.get_running_loop().create_task(all_over())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return over, task


def test_a_large_read_at_once_does_not_wait_for_others_and_a_read_in_pieces_does(tmp_path: Path) -> None:
    """Beside publishing the disk has one read at a time."""
    content = os.urandom(1 << 20)
    (tmp_path / "file").write_bytes(content)

    async def story() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("file", reading=ReadingMode.COLD)
        over, task = await busy_reads(files, READS_TOGETHER - 1)
        try:
            whole = await asyncio.wait_for(file.read(0, len(content), at_once=True), PATIENCE_SECONDS)
            assert bytes(whole) == content
            in_pieces = asyncio.get_running_loop().create_task(file.read(0, len(content)))
            small = asyncio.get_running_loop().create_task(file.read(0, 4096, at_once=True))
            await asyncio.sleep(0)
            assert files.reads.jobs_left == 3, "pages of indexes are asked for at once beside publishing, too"
        finally:
            over.set()
            await task
        assert bytes(await in_pieces) == content
        assert bytes(await small) == content[:4096]
        await file.close()
        await files.close()

    asyncio.run(story())


class HeldReads:
    """A file whose reads wait for the event; `shared` or not."""

    def __init__(self, path: Path, over: threading.Event, *, shared: bool) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.shared = shared
        self.begun = threading.Event()
        self._over = over

    def read(self, position: int, length: int) -> bytes:
        self.begun.set()
        self._over.wait()
        return os.pread(self.descriptor, length, position)

    def read_at_once(self, position: int, length: int) -> Buffer:
        return self.read(position, length)

    def read_into_chunk(self, position: int, length: int) -> Buffer:
        return self.read(position, length)


@pytest.mark.parametrize("shared", [False, True], ids=["one thread at a time", "several threads"])
def test_a_file_is_not_closed_before_its_reads_are_over_even_those_that_nobody_waits_for(
    tmp_path: Path, shared: bool
) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))

    async def story() -> None:
        files = DiskFiles(tmp_path)
        over = threading.Event()
        reads = HeldReads(tmp_path / "file", over, shared=shared)
        file = files.file_over(reads)
        reading = asyncio.get_running_loop().create_task(file.read(0, 1 << 20, at_once=True))
        await asyncio.to_thread(reads.begun.wait)
        reading.cancel()
        closing = asyncio.get_running_loop().create_task(file.close())
        done, _ = await asyncio.wait([closing], timeout=0.05)
        assert not done
        os.fstat(reads.descriptor)
        over.set()
        await asyncio.wait_for(closing, PATIENCE_SECONDS)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(reads.descriptor)
        await files.close()

    asyncio.run(story())


def test_a_file_that_one_thread_reads_at_a_time_is_not_read_by_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 20))

    async def story() -> None:
        files = DiskFiles(tmp_path)
        file = await files.open("file", reading=ReadingMode.PIECES)
        over, task = await busy_reads(files, 0)
        reading = asyncio.get_running_loop().create_task(file.read(0, 1 << 20, at_once=True))
        await asyncio.sleep(0)
        await asyncio.gather(*(files.reads_at_once.run(lambda: None) for _ in range(READS_TOGETHER)))
        assert not reading.done()
        over.set()
        await asyncio.gather(task, reading)
        await file.close()
        await files.close()

    asyncio.run(story())


def test_jobs_go_to_the_thread_with_the_fewest() -> None:
    async def story() -> None:
        threads = ReadThreads("reads", 3)
        over = threading.Event()
        held = [asyncio.get_running_loop().create_task(threads.run(over.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        names = [await threads.run(lambda: threading.current_thread().name) for _ in range(4)]
        assert names == ["reads-3"] * 4
        idle = asyncio.get_running_loop().create_task(threads.idle())
        await threads.run(lambda: None)
        assert not idle.done()
        over.set()
        await asyncio.gather(idle, *held)
        await threads.close()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))


def test_threads_that_a_file_system_refuses_at_the_same_time_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way they read then changes what the descriptor does."""
    content = os.urandom(1 << 20)
    (tmp_path / "file").write_bytes(content)
    together = threading.Barrier(2)
    reading = 0
    most = 0

    def refused(descriptor: int, memory: Any, position: int, piece_bytes: int, page_bytes: int) -> int:
        together.wait(PATIENCE_SECONDS)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def watched(descriptor: int, length: int, position: int, pread: Any = os.pread) -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        time.sleep(0.001)
        found: bytes = pread(descriptor, length, position)
        reading -= 1
        return found

    monkeypatch.setattr(os, "pread", watched)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    reads = DirectReads(descriptor, refused)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(reads.read, 0, len(content)) for _ in range(2)]
        assert [one.result() for one in found] == [content, content]
    os.close(descriptor)
    assert most == 1


@pytest.mark.parametrize("writer", [pure.DurableWriter, DurableWriter], ids=["pure", "the kernel in use"])
def test_a_file_is_not_closed_before_its_commits_are_over_even_those_that_nobody_waits_for(
    tmp_path: Path, writer: type[DurableWriter]
) -> None:
    async def story() -> None:
        files = DiskFiles(tmp_path)
        files.commits = CommitThread(writer())
        file = await files.open("journal/one", create=True)
        loop = asyncio.get_running_loop()
        writes = [loop.create_task(file.write(at * 4096, [bytes([at]) * 4096], sync=True)) for at in range(64)]
        await asyncio.sleep(0)
        for write in writes[::2]:
            write.cancel()
        await file.close()
        assert (tmp_path / "journal/one").read_bytes() == b"".join(bytes([at]) * 4096 for at in range(64))
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert outcomes[1::2] == [None] * 32
        await files.close()

    asyncio.run(story())


def test_a_commit_that_fails_says_why_and_the_next_is_made(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")

    async def story() -> None:
        thread = CommitThread()
        with path.open("rb") as unwritable, path.open("r+b") as file:
            failing = thread.write(unwritable.fileno(), 0, [b"x"], whole_file=False)
            with pytest.raises(OSError, match="Bad file descriptor"):
                await failing
            await thread.write(file.fileno(), 0, [b"written"], whole_file=True)
        await thread.close()

    asyncio.run(story())
    assert path.read_bytes() == b"written"
