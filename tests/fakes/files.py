"""A disk in memory that forgets what was not synced, for tests of everything that writes files.

    files = SimulatedFiles(seed=7)
    files.fail("write", path="journal/", nth=3)     the third write below journal/ from now on answers EIO
    files.cut_power(after=5)                        the fifth change from now on is interrupted: PowerLoss
    files.crash()                                   the machine is off and on again; old handles are dead
    copy = files.clone(seed=8)                      the same disk once more, to try another crash on

It keeps the promises of `ports.Files`: `open(create=True)`, `rename` and `remove` are durable when they return; a write
is durable after a `sync` (or a `write` with it) that returned, and not before.

The fate of the rest: between two syncs it keeps every version a page has had. At a crash each page, on its own, goes
back to the durable version, to any later one, or to a mixture of two successive ones, torn at a byte. So writes are
lost, torn, and reordered among pages. `crash(keep_bytes=n)` keeps exactly the first n bytes of what was written since
the last sync instead; `crash(keep_all=True)` is a killed process on a machine that goes on: nothing is lost but locks
and handles.

A sync that fails by `fail("sync")` drops its dirty pages as Linux does: they read as written, count as clean,
and are not on the disk, so a second sync succeeds without saving them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from mainstem.model import Buffer
from mainstem.ports import ColdPart, DiskUsage, ReadingMode

PAGE_BYTES = 4096
FILL_CHUNK_BYTES = 128 * 1024
OPERATIONS = frozenset({"open", "names", "rename", "remove", "read", "write", "sync", "size", "lock", "close"})


class PowerLoss(Exception):
    """The simulated machine is off. Not an OSError: no code under test may handle it."""


@dataclass
class _Inode:
    """The bytes of a file: as the machine sees them, as the disk has them, and what each page went through."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    """Per page that is not clean, the contents it had since the last sync, oldest first."""
    sizes: list[int] = field(default_factory=list)
    """Sizes the file had since the last sync."""
    written: list[tuple[int, bytes]] = field(default_factory=list)
    """The writes since the last sync, in order."""
    shared: set[int] = field(default_factory=set)
    """Ids of the handles that hold a shared lock."""
    exclusive: int | None = None
    handles: set[int] = field(default_factory=set)
    """Ids of those that are open: the bytes of a file that was removed are there until the last is closed."""

    def clone(self) -> _Inode:
        """The same content and history; nobody has it open."""
        return _Inode(
            bytearray(self.cached),
            bytearray(self.durable),
            {page: list(versions) for page, versions in self.versions.items()},
            list(self.sizes),
            list(self.written),
        )

    def write(self, position: int, content: bytes) -> None:
        if not content:
            return
        if position + len(content) > len(self.cached):
            self.resize(position + len(content))
        self.cached[position : position + len(content)] = content
        self.written.append((position, content))
        self._dirty(position, position + len(content))

    def resize(self, size: int) -> None:
        before = len(self.cached)
        if size < before:
            del self.cached[size:]
        else:
            self.cached.extend(bytes(size - before))
        self.sizes.append(size)
        if size < before:
            self._dirty(size, before)

    def _dirty(self, start: int, end: int) -> None:
        for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES)):
            content = bytes(self.cached[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
            self.versions.setdefault(page, []).append(content.ljust(PAGE_BYTES, b"\0"))

    def sync(self) -> None:
        """Dirty pages reach the disk; pages that a failed sync dropped do not."""
        self._to_disk({page: versions[-1] for page, versions in self.versions.items()}, len(self.cached))
        self.clean()

    def clean(self) -> None:
        self.versions.clear()
        self.sizes.clear()
        self.written.clear()

    def crash(self, rng: random.Random) -> None:
        """Each dirty page becomes one of its versions, or a mixture of two."""
        pages = {
            page: _one_of(rng, [self._durable_page(page), *versions])
            for page, versions in sorted(self.versions.items())
        }
        self._to_disk(pages, rng.choice([len(self.durable), *self.sizes]))
        self.restart()

    def crash_keeping(self, count: int) -> None:
        """Exactly the first `count` bytes written since the last sync are kept, and the size."""
        size = max([len(self.durable), *self.sizes])
        self.durable.extend(bytes(size - len(self.durable)))
        for position, content in self.written:
            kept = content[: max(count, 0)]
            self.durable[position : position + len(kept)] = kept
            count -= len(content)
        self.restart()

    def restart(self) -> None:
        """The machine comes up with what is on the disk."""
        self.cached = bytearray(self.durable)
        self.clean()
        self.close_all()

    def close_all(self) -> None:
        self.shared.clear()
        self.exclusive = None
        self.handles.clear()

    def _to_disk(self, pages: dict[int, bytes], size: int) -> None:
        end = max([size, *((page + 1) * PAGE_BYTES for page in pages)])
        self.durable.extend(bytes(max(0, end - len(self.durable))))
        for page, content in pages.items():
            self.durable[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = content
        del self.durable[size:]

    def _durable_page(self, page: int) -> bytes:
        return bytes(self.durable[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]).ljust(PAGE_BYTES, b"\0")


def _one_of(rng: random.Random, versions: list[bytes]) -> bytes:
    """A version of a page, or a mixture of two successive ones, torn at some byte."""
    chosen = rng.randrange(len(versions))
    if chosen + 1 < len(versions) and rng.random() < 0.5:
        tear = rng.randrange(PAGE_BYTES + 1)
        old, new = versions[chosen], versions[chosen + 1]
        return new[:tear] + old[tear:] if rng.random() < 0.5 else old[:tear] + new[tear:]
    return versions[chosen]


@dataclass
class _Fault:
    operation: str
    path: str
    countdown: int
    error: int


class SimulatedFiles:
    """`ports.Files` over memory. Every operation lets the event loop run once before it takes effect."""

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.capacity_bytes = capacity_bytes
        """Sum of file sizes, those included that were removed and are open, beyond which writing and extending answer
        ENOSPC; may be changed at any time."""
        self.memory_comes = asyncio.Event()
        """Cleared by a test: what is filled in memory waits until it is set."""
        self.memory_comes.set()
        self.forgotten: list[str] = []
        """Files that nothing of is to be kept in memory, in the order in which that was asked for."""
        self.memory_seconds = 1.0
        """The processor time for each byte that is filled in memory: it is slow to come."""
        self.takes_what_fits = False
        """A write that is refused so is made as far as there is room."""
        self.changes = 0
        """Operations so far that changed something; what `cut_power` counts."""
        self.bytes_read: dict[str, int] = {}
        """By the first part of the path."""
        self._inodes: dict[str, _Inode] = {}
        self._unlinked: list[_Inode] = []
        self.removed_may_return = False
        """Files that were removed without a sync may be there again after a crash."""
        self._may_return: dict[str, _Inode] = {}
        self._faults: list[_Fault] = []
        self._power_cut_at: int | None = None
        self._off = False
        self._boot = 0
        self._handles = 0

    # --- what tests do to the disk ------------------------------------------------------------------------

    @property
    def waits_to_fail(self) -> bool:
        """Something that was to fail has not come yet."""
        return bool(self._faults)

    def fail(self, operation: str, *, path: str = "", nth: int = 1, error: int = errno.EIO) -> None:
        """Let the nth `operation` from now on, on a path that contains `path`, raise an OSError. Once."""
        assert operation in OPERATIONS, operation
        self._faults.append(_Fault(operation, path, nth, error))

    def cut_power(self, *, after: int) -> None:
        """Let the power go during the `after`-th change from now on: it may have happened in part, as far as
        `crash` then decides. Its caller, and all that follow, get `PowerLoss`."""
        assert after > 0
        self._power_cut_at = self.changes + after

    def crash(self, *, keep_bytes: int | None = None, keep_all: bool = False) -> None:
        """Turn the machine off and on again: see the module's docstring. Handles from before are dead."""
        if not keep_all:
            returning = {path: inode for path, inode in self._may_return.items() if self.rng.random() < 0.5}
            self._inodes = {**returning, **self._inodes}
        self._may_return.clear()
        for inode in self._inodes.values():
            if keep_all:
                inode.close_all()
            elif keep_bytes is not None:
                inode.crash_keeping(keep_bytes)
            else:
                inode.crash(self.rng)
        self._unlinked.clear()
        self._faults.clear()
        self._off = False
        self._power_cut_at = None
        self._boot += 1

    def clone(self, seed: int) -> SimulatedFiles:
        """A disk with the same content and history; handles stay with the original."""
        other = SimulatedFiles(seed, capacity_bytes=self.capacity_bytes)
        other._inodes = {path: inode.clone() for path, inode in self._inodes.items()}
        other.removed_may_return = self.removed_may_return
        other._may_return = {path: inode.clone() for path, inode in self._may_return.items()}
        return other

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of a file, where the machine sees it and on the disk."""
        inode = self._inodes[path]
        for content in (inode.cached, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << bit % 8

    def content(self, path: str) -> bytes:
        """A file's bytes as the machine sees them."""
        return bytes(self._inodes[path].cached)

    def put(self, path: str, content: bytes) -> None:
        """Place a file, durable."""
        self._inodes[path] = _Inode(bytearray(content), bytearray(content))

    def forget(self, path: str) -> None:
        """Have a file be gone, durably."""
        del self._inodes[path]

    def paths(self) -> list[str]:
        return sorted(self._inodes)

    @property
    def open_handles(self) -> int:
        """How many handles are open, over all files."""
        return sum(len(inode.handles) for inode in (*self._inodes.values(), *self._unlinked))

    def unsynced_bytes(self) -> int:
        """Bytes written since the last sync of their file, over all files."""
        return sum(len(content) for inode in self._inodes.values() for _position, content in inode.written)

    # --- ports.Files --------------------------------------------------------------------------------------

    async def open(self, path: str, *, create: bool = False, reading: ReadingMode = ReadingMode.USUAL) -> SimulatedFile:
        creates = create and path not in self._inodes
        interrupted = await self._begin("open", path, changes=creates)
        inode = self._inodes.get(path)
        if inode is None:
            self._require_place(path)
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = _Inode()
            if not interrupted or self.rng.random() < 0.5:
                self._inodes[path] = inode
        self._end(interrupted)
        self._handles += 1
        inode.handles.add(self._handles)
        return SimulatedFile(self, path, inode, self._handles, self._boot)

    async def names(self, directory: str) -> list[str]:
        await self._begin("names", directory)
        if directory in self._inodes:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        prefix = directory.rstrip("/") + "/" if directory not in ("", ".") else ""
        return sorted({path[len(prefix) :].split("/")[0] for path in self._inodes if path.startswith(prefix)})

    async def rename(self, source: str, target: str) -> None:
        interrupted = await self._begin("rename", source, changes=True)
        if source not in self._inodes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if target not in self._inodes:
            self._require_place(target)
        if not interrupted or self.rng.random() < 0.5:
            replaced = self._inodes.pop(target, None)
            if replaced is not None:
                self._unlink(replaced)
            self._inodes[target] = self._inodes.pop(source)
        self._end(interrupted)

    async def remove(self, path: str, *, durable: bool = True) -> None:
        interrupted = await self._begin("remove", path, changes=path in self._inodes)
        if not interrupted or self.rng.random() < 0.5:
            inode = self._inodes.pop(path, None)
            if inode is not None:
                self._unlink(inode)
                if self.removed_may_return and not durable:
                    self._may_return[path] = inode
        if durable and not interrupted:
            self._sync_directory(path)
        self._end(interrupted)

    def _sync_directory(self, path: str) -> None:
        """All that was removed beside this path is gone for good."""
        directory = path.rpartition("/")[0]
        self._may_return = {
            gone: inode for gone, inode in self._may_return.items() if gone.rpartition("/")[0] != directory
        }

    async def usage(self) -> DiskUsage:
        await asyncio.sleep(0)
        total = 1 << 40 if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total, max(0, total - self._used()))

    async def read_parts(self, parts: Sequence[ColdPart]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path, position, length in parts:
            try:
                file = await self.open(path, reading=ReadingMode.COLD)
                try:
                    found.append(await file.read(position, length))
                finally:
                    await file.close()
            except OSError:
                found.append(None)
        return found

    # --- shared with the handles --------------------------------------------------------------------------

    def count_read(self, path: str, length: int) -> None:
        top = path.partition("/")[0]
        self.bytes_read[top] = self.bytes_read.get(top, 0) + length

    async def _begin(self, operation: str, path: str, *, changes: bool = False) -> bool:
        """Every operation starts here. True when the power goes during this one."""
        await asyncio.sleep(0)
        if self._off:
            raise PowerLoss(f"{operation} {path}: the machine is off")
        for fault in self._faults:
            if fault.operation == operation and fault.path in path:
                fault.countdown -= 1
                if not fault.countdown:
                    self._faults.remove(fault)
                    raise OSError(fault.error, os.strerror(fault.error), path)
        self.changes += changes
        return changes and self.changes == self._power_cut_at

    def _end(self, interrupted: bool) -> None:
        if interrupted:
            self._off = True
            raise PowerLoss("the power went")

    def _require_place(self, path: str) -> None:
        """Of a file that is not there: directories are above it, and it is none itself."""
        parts = path.split("/")
        for count in range(1, len(parts)):
            if "/".join(parts[:count]) in self._inodes:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        if any(other.startswith(f"{path}/") for other in self._inodes):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)

    def _unlink(self, inode: _Inode) -> None:
        if inode.handles:
            self._unlinked.append(inode)

    def _closed(self, inode: _Inode, handle: int) -> None:
        inode.handles.discard(handle)
        if not inode.handles and any(inode is other for other in self._unlinked):
            self._unlinked = [other for other in self._unlinked if other is not inode]

    def _used(self) -> int:
        return sum(len(inode.cached) for inode in (*self._inodes.values(), *self._unlinked))

    def require_room(self, size: int, path: str) -> None:
        """Raises OSError where there is none for a new file."""
        self._require_room(_Inode(), size, path)

    def _require_room(self, inode: _Inode, size: int, path: str) -> None:
        growth = size - len(inode.cached)
        if self.capacity_bytes is not None and growth > 0 and self._used() + growth > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _end_of_room(self, inode: _Inode) -> int:
        """How long a file can become."""
        assert self.capacity_bytes is not None, "only then room is short"
        return len(inode.cached) + max(0, self.capacity_bytes - self._used())


class SimulatedFile:
    """`ports.File`: a handle, good until `close` or the next crash."""

    def __init__(self, files: SimulatedFiles, path: str, inode: _Inode, number: int, boot: int) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._number = number
        self._boot = boot
        self._closed = False

    async def read(self, position: int, length: int, *, at_once: bool = False) -> bytes:
        await self._begin("read")
        content = bytes(self._inode.cached[position : position + length])
        self._files.count_read(self._path, len(content))
        return content

    async def write(self, position: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        interrupted = await self._begin("write", changes=True)
        content = b"".join(buffers)
        try:
            self._files._require_room(self._inode, position + len(content), self._path)
        except OSError:
            if self._files.takes_what_fits:
                self._inode.write(position, content[: max(0, self._files._end_of_room(self._inode) - position)])
                self._files._end(interrupted)
            raise
        self._inode.write(position, content)
        self._files._end(interrupted)
        if sync:
            await self.sync()

    async def sync(self) -> None:
        try:
            interrupted = await self._begin("sync", changes=True)
        except OSError:
            self._inode.clean()
            raise
        self._files._end(interrupted)
        self._inode.sync()

    async def forget(self) -> None:
        await asyncio.sleep(0)
        self._files.forgotten.append(self._path)

    async def fill(self, position: int, length: int, *, bytes_per_second: float) -> None:
        end = position + length
        while position < end:
            chunk = bytes(min(end - position, FILL_CHUNK_BYTES))
            await self.write(position, [chunk])
            await self.sync()
            position += len(chunk)
            await asyncio.sleep(len(chunk) / bytes_per_second)

    async def fill_in_memory(self, position: int, length: int) -> float:
        await self._files.memory_comes.wait()
        await self.write(position, [bytes(length)])
        return self._files.memory_seconds * length

    async def size(self, *, truncate_to: int | None = None) -> int:
        interrupted = await self._begin("size", changes=truncate_to is not None)
        if truncate_to is not None and truncate_to != len(self._inode.cached):
            self._files._require_room(self._inode, truncate_to, self._path)
            self._inode.resize(truncate_to)
        self._files._end(interrupted)
        return len(self._inode.cached)

    async def lock(self, *, exclusive: bool) -> bool:
        await self._begin("lock")
        inode = self._inode
        if inode.exclusive == self._number if exclusive else self._number in inode.shared:
            return True
        self._unlock()  # before the new one is asked for, as flock has it
        if inode.exclusive is not None or (exclusive and inode.shared):
            return False
        if exclusive:
            inode.exclusive = self._number
        else:
            inode.shared.add(self._number)
        return True

    async def close(self) -> None:
        if not self._closed and self._boot == self._files._boot:
            self._unlock()
            self._files._closed(self._inode, self._number)
        self._closed = True

    def _unlock(self) -> None:
        self._inode.shared.discard(self._number)
        if self._inode.exclusive == self._number:
            self._inode.exclusive = None

    async def _begin(self, operation: str, *, changes: bool = False) -> bool:
        assert not self._closed, f"{self._path} is closed"
        if self._boot != self._files._boot:
            raise PowerLoss(f"{operation} {self._path}: the handle is of before the crash")
        return await self._files._begin(operation, self._path, changes=changes)
