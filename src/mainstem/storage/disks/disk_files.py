"""`ports.Files` on a real disk, with every blocking call on a thread.

Six sets of threads, so that one kind of work never waits behind another:
- one thread for `write(sync=True)`, the journal's commits: no other work may delay them (`commit_thread`);
- one that fills files with zeros in memory, and lets all others go first;
- one thread for reads: one at a time, since each takes disk time from commits (`disk_reads` says how it reads);
- a few for large reads at once, which are made while no commits want the disk (`read_threads`), neighbouring chunks in
  one request (`neighbour_reads`);
- one for the largest writes without sync, the journal's where it is synced once a second: the way there and back is
  shorter than to the few, and takes turns of the event loop that a busy node has few of;
- a few for the rest: syncs alone, opening, renaming, removing.

A write without sync is a copy to the page cache, cheaper than the way to a thread and back. But where too much of
the cache is dirty, the operating system makes the writer wait for the disk. So the event loop makes such a write itself
where the system promises not to wait (`RWF_NOWAIT`) or, as ext4 promises nothing, where the page cache has room
(`page_cache_room`), and one more thread makes it otherwise.

A job that was started is never abandoned: `close` waits for it even when its caller was cancelled, since the number of
a descriptor that is closed too early may belong to another file by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

from mainstem.kernel import VECTOR_BUFFERS_MAX, DurableWriter, sync_file, write_all, write_pieces
from mainstem.model import Buffer
from mainstem.ports import ColdPart, DiskUsage, ReadingMode
from mainstem.storage.disks.chunk_memory import CHUNK_BYTES
from mainstem.storage.disks.commit_thread import CommitThread
from mainstem.storage.disks.disk_reads import (
    PIECE_BYTES,
    DirectReads,
    PlainReads,
    ReadableFile,
    open_for_pieces,
    read_cold,
)
from mainstem.storage.disks.disk_thread import DiskThread
from mainstem.storage.disks.neighbour_reads import NeighbourReads
from mainstem.storage.disks.page_cache_room import PageCacheRoom
from mainstem.storage.disks.read_threads import ReadThreads

P = ParamSpec("P")
T = TypeVar("T")

HOUSEKEEPING_THREADS = 4
"""One thread each for filling the pool, flushing, an index or a checkpoint, and one to spare for a rename."""

WRITE_AT_ONCE_BYTES = 2 * 1024 * 1024
"""Up to this size the caller makes a write without sync itself: a third of a millisecond of copying, where the way back
from a thread takes several turns of a busy event loop. Tenants that share a node
write no more together."""

WRITE_AT_ONCE_BYTES_ONE_CORE = 16 * 1024 * 1024
"""The same where the process has one core: a thread would copy it no sooner, in three milliseconds, and as long as it
has not, the caller piles up more."""

WRITE_PIECE_BYTES = 128 * 1024
"""Writes without sync go to the page cache in such pieces. Linux takes the memory for a piece together if it can: for
a megabyte it goes to the largest free stretches there are, which on a virtual machine the host has often taken back
(2.2 ms for a megabyte, in place of 0.16), while pieces find room in between first. Zeros are written in the same ones
(`DurableWriter.begin_zeros`), so that what they take tells what a write will."""

FILL_CHUNK_BYTES = 128 * 1024
"""Bytes written and synced at once when filling: they hardly delay a commit; beside 1 MiB its 99th percentile was half
as long again."""

FORGOTTEN_BYTES = 1024 * 1024
"""Forgotten at once, 50 us: pages that were written together, `WRITE_PIECE_BYTES` mostly, are forgotten together."""

FORGET_REST_SECONDS = 0.0004
"""Between two of these pieces: a ninth of the processor, as other helpers have it (`kernel/compiled/disk_writer.h`)."""

FILL_NICE = 19
"""As nice as can be: files are filled in the time that nobody else wants; without any, fresh files are used."""

NO_PROMISE = frozenset({errno.EOPNOTSUPP, errno.EINVAL})
"""The file system does not know `RWF_NOWAIT`."""

RWF_NOWAIT = os.RWF_NOWAIT
"""Fail with EAGAIN instead of waiting for the disk."""

OWN_DIRECTORY_DEPTH = 3
"""From this depth on, a directory is of those that wrote its files, and goes with the last of them."""


class DiskFiles:
    """A directory tree on a disk. The owner closes all files opened from it, then calls `close`."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.commits = CommitThread()
        """The thread for writes that are durable when they return."""
        self.fills = CommitThread(DurableWriter("disk-fill", nice=FILL_NICE))
        """The thread for zeros in memory."""
        self.copies = DiskThread("disk-write")
        """The thread for small writes without sync."""
        self.large_copies = DiskThread("disk-write-large")
        """The thread for large writes without sync."""
        self.reads = DiskThread("disk-read")
        """The thread for reads."""
        self.reads_at_once = ReadThreads("disk-read")
        """The threads for large reads at once of files that several threads may read."""
        self._housekeeping = ThreadPoolExecutor(HOUSEKEEPING_THREADS, "disk-housekeeping")
        self.room = PageCacheRoom()

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> DiskFile:
        # If the caller is cancelled, the descriptor of a job that still runs must not be lost.
        job = self._housekeeping.submit(self._open, self._inside(path), create, reading)
        try:
            reads = await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(_close_result)
            raise
        return self.file_over(reads)

    def file_over(self, reads: ReadableFile) -> DiskFile:
        """A file that is open already."""
        return DiskFile(
            reads,
            self.commits,
            self.fills,
            self.copies,
            self.large_copies,
            self.reads,
            self.reads_at_once,
            self._housekeeping,
            self.room,
        )

    async def names(self, directory: str) -> list[str]:
        return await _run(self._housekeeping, _names, self._inside(directory))

    async def rename(self, source: str, target: str) -> None:
        await _run(self._housekeeping, _rename, self._inside(source), self._inside(target))

    async def remove(self, path: str, *, durable: bool = True) -> None:
        with_directory = path.count("/") >= OWN_DIRECTORY_DEPTH
        await _run(self._housekeeping, _remove, self._inside(path), with_directory, durable)

    async def usage(self) -> DiskUsage:
        return await _run(self._housekeeping, self._usage)

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        """By the thread for reads, one after the other."""
        assert not any(os.path.isabs(path) or ".." in path.split("/") for path, _position, _length in parts)
        inside = [(f"{self.root}/{path}", position, length) for path, position, length in parts]
        return await self.reads.run(lambda: [read_cold(*part) for part in inside])

    async def close(self) -> None:
        """End the threads, once all their jobs are done."""
        await self.commits.close()
        await self.fills.close()
        await self.copies.close()
        await self.large_copies.close()
        await self.reads.close()
        await self.reads_at_once.close()
        await asyncio.to_thread(self._housekeeping.shutdown)

    def _inside(self, path: str) -> Path:
        assert not os.path.isabs(path), path
        assert ".." not in path.split("/"), path
        return self.root / path

    def _open(self, path: Path, create: bool, reading: ReadingMode) -> ReadableFile:
        if reading is not ReadingMode.USUAL:
            assert not create, "a file opened only for reading is not created"
            return open_for_pieces(path, cold=reading is ReadingMode.COLD)
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            return PlainReads(os.open(path, flags))
        except FileNotFoundError:
            if not create:
                raise
        _make_directories(path.parent)
        descriptor = os.open(path, flags | os.O_CREAT, 0o640)
        _sync_directory(path.parent)
        return PlainReads(descriptor)

    def _usage(self) -> DiskUsage:
        _make_directories(self.root)
        stat = os.statvfs(self.root)
        return DiskUsage(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


class DiskFile:
    """`ports.File` over a descriptor."""

    def __init__(
        self,
        reads: ReadableFile,
        commits: CommitThread,
        fills: CommitThread,
        copies: DiskThread,
        large_copies: DiskThread,
        reading: DiskThread,
        reading_at_once: ReadThreads,
        housekeeping: ThreadPoolExecutor,
        room: PageCacheRoom,
    ) -> None:
        self._reads = reads
        self._room = room
        self._descriptor = reads.descriptor
        self._commits = commits
        self._fills = fills
        self._copies = copies
        self._large_copies = large_copies
        self._committed = self._filled = self._copied = self._copied_much = False
        self._was_read = self._was_read_at_once = False
        """Which threads have had jobs of this file: `close` waits for these threads only."""
        self._promises = True
        """True until the file system has refused `RWF_NOWAIT`."""
        self._unsynced_writes = 1
        """Changes without sync that were begun, and one for those before the file was opened…"""
        self._synced_writes = 0
        """…and how many of them a sync of the whole file has covered."""
        self._reading = reading
        self._reading_at_once = reading_at_once
        self._housekeeping = housekeeping
        self._jobs: set[Future[Any]] = set()
        self._closed = False
        self._neighbours = NeighbourReads(reads, reading_at_once) if isinstance(reads, DirectReads) else None

    @overload
    async def read(self, position: int, length: int) -> bytes: ...

    @overload
    async def read(self, position: int, length: int, *, at_once: bool) -> Buffer: ...

    async def read(self, position: int, length: int, *, at_once: bool | None = None) -> Buffer:
        """`at_once` False is for callers who take any buffer."""
        assert not self._closed, "the file is closed"
        if at_once and length > PIECE_BYTES and self._reads.shared:
            self._was_read_at_once = True
            if self._neighbours is not None and length == CHUNK_BYTES:
                return await self._neighbours.read(position)
            return await self._reading_at_once.run(partial(self._reads.read_at_once, position, length))
        self._was_read = True
        if at_once is None:
            return await self._reading.run(partial(self._reads.read, position, length))
        read = self._reads.read_at_once if at_once else self._reads.read_into_chunk
        return await self._reading.run(partial(read, position, length))

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        assert not self._closed, "the file is closed"
        descriptor = self._descriptor
        if sync:
            self._committed = True
            begun = self._unsynced_writes
            whole_file = self._synced_writes != begun
            await self._commits.write(descriptor, position, buffers, whole_file=whole_file)
            if whole_file:
                self._synced_writes = begun
            return
        self._unsynced_writes += 1
        size = 0
        for buffer in buffers:
            size += memoryview(buffer).nbytes
        at_once = size <= WRITE_AT_ONCE_BYTES or (size <= WRITE_AT_ONCE_BYTES_ONE_CORE and has_one_core())
        if at_once and self._written_at_once(position, buffers, size):
            return
        if size <= WRITE_AT_ONCE_BYTES:
            self._copied = True
            await self._copies.run(partial(_write_whole, descriptor, position, buffers, size))
        else:
            self._copied_much = True
            await self._large_copies.run(partial(_write_whole, descriptor, position, buffers, size))

    def _written_at_once(self, position: int, buffers: Sequence[Buffer], size: int) -> bool:
        """Write these `size` bytes if that needs no wait for the disk. False: nothing is known to be written."""
        if len(buffers) > VECTOR_BUFFERS_MAX:
            return False
        if self._promises:
            try:
                return self._writes(position, buffers, size, RWF_NOWAIT) == size
            except OSError as error:  # it would wait; any other error comes again with the next attempt
                self._promises = error.errno not in NO_PROMISE
                if self._promises:
                    return False
        room = self._room
        if not room.is_there():
            return False
        began = time.perf_counter()
        try:
            written = self._writes(position, buffers, size)
        except OSError:  # comes again with the next attempt
            return False
        room.took(size, time.perf_counter() - began)
        return written == size

    def _writes(self, position: int, buffers: Sequence[Buffer], size: int, flags: int = 0) -> int:
        """Write once, or in pieces where there is much; how many bytes, as `os.pwritev` tells."""
        if size <= WRITE_PIECE_BYTES:
            return os.pwritev(self._descriptor, buffers, position, flags)
        return write_pieces(self._descriptor, position, buffers, WRITE_PIECE_BYTES, flags)

    async def sync(self) -> None:
        await self._do(self._housekeeping, sync_file, self._descriptor)

    async def forget(self) -> None:
        await self._do(self._housekeeping, _forget, self._descriptor)

    async def fill(self, position: int, length: int, *, bytes_per_second: float) -> None:
        self._unsynced_writes += 1
        await self._do(self._housekeeping, self._fill, position, length, bytes_per_second)

    def _fill(self, position: int, length: int, bytes_per_second: float) -> None:
        zeros = memoryview(bytes(min(length, FILL_CHUNK_BYTES)))
        end = position + length
        while position < end and not self._closed:
            chunk = zeros[: end - position]
            write_all(self._descriptor, position, [chunk])
            os.fdatasync(self._descriptor)
            position += len(chunk)
            time.sleep(len(chunk) / bytes_per_second)

    async def fill_in_memory(self, position: int, length: int) -> float:
        assert not self._closed, "the file is closed"
        self._unsynced_writes += 1
        self._filled = True
        return await self._fills.write_zeros(self._descriptor, position, length)

    async def size(self, *, truncate_to: int | None = None) -> int:
        if truncate_to is not None:
            self._unsynced_writes += 1
        return await self._do(self._housekeeping, _size, self._descriptor, truncate_to)

    async def lock(self, *, exclusive: bool) -> bool:
        return await self._do(self._housekeeping, _lock, self._descriptor, exclusive)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._committed:
            await self._commits.idle()
        if self._filled:
            await self._fills.idle()
        if self._copied:
            await self._copies.idle()
        if self._copied_much:
            await self._large_copies.idle()
        if self._was_read:
            await self._reading.idle()
        if self._was_read_at_once:
            # chunks asked for in this turn are handed over (`NeighbourReads`) before the tasks of `idle` begin
            await self._reading_at_once.idle()
        while self._jobs:
            await asyncio.wait([asyncio.wrap_future(job) for job in list(self._jobs)])
        await _run(self._housekeeping, os.close, self._descriptor)

    async def _do(self, executor: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert not self._closed, "the file is closed"
        job = executor.submit(function, *args, **kwargs)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        # Shielded: a cancelled caller must not cancel a job that has not begun, which others may rely on.
        return await asyncio.shield(asyncio.wrap_future(job))


async def _run(executor: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.shield(asyncio.wrap_future(executor.submit(function, *args, **kwargs)))


def has_one_core() -> bool:
    """Whether a thread would have no other core than its caller."""
    return len(os.sched_getaffinity(0)) == 1 if hasattr(os, "sched_getaffinity") else os.cpu_count() == 1


def _write_whole(descriptor: int, position: int, buffers: Sequence[Buffer], size: int) -> None:
    """Write buffers of `size` bytes together, in pieces; where one of them was cut short, all of it once more."""
    if size <= WRITE_PIECE_BYTES or write_pieces(descriptor, position, buffers, WRITE_PIECE_BYTES) != size:
        write_all(descriptor, position, buffers)


def _close_result(job: Future[ReadableFile]) -> None:
    if not job.cancelled() and job.exception() is None:
        os.close(job.result().descriptor)


def _forget(descriptor: int) -> None:
    """Advise the operating system to keep no page in memory that is on the disk, where it takes such advice."""
    if not hasattr(os, "posix_fadvise"):
        return
    for position in range(0, os.fstat(descriptor).st_size, FORGOTTEN_BYTES):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, position, FORGOTTEN_BYTES, os.POSIX_FADV_DONTNEED)
        time.sleep(FORGET_REST_SECONDS)


def _size(descriptor: int, truncate_to: int | None) -> int:
    size = os.fstat(descriptor).st_size
    if truncate_to is None or truncate_to == size:
        return size
    if truncate_to < size:
        os.ftruncate(descriptor, truncate_to)
    else:
        os.posix_fallocate(descriptor, size, truncate_to - size)
    return truncate_to


def _lock(descriptor: int, exclusive: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _rename(source: Path, target: Path) -> None:
    _make_directories(target.parent)
    os.rename(source, target)
    _sync_directory(target.parent)
    if source.parent != target.parent:
        _sync_directory(source.parent)


def _remove(path: Path, with_directory: bool, durable: bool) -> None:
    """`with_directory`: its directory goes, too, when nothing else is in it."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    if with_directory:
        with contextlib.suppress(OSError):
            os.rmdir(path.parent)
            path = path.parent
    if durable:
        _sync_directory(path.parent)


def _make_directories(directory: Path) -> None:
    """Make a directory and its missing parents, each durable."""
    if directory.is_dir():
        return
    _make_directories(directory.parent)
    try:
        os.mkdir(directory, 0o750)
    except FileExistsError:
        return
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
