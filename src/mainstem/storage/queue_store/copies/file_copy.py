"""Copies files between nodes: the sender checks them as it reads them; the receiver writes them beside its files,
checks them again, and renames them.

A copy that breaks off leaves `<name>.tmp-copy` behind, which the next try of the same file overwrites, and which the
removal of orphans finds otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple, cast

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Buffer, Sample
from mainstem.ports import File, Files, ReadingMode
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.queue_store.reading.stored_files import StoredFiles, check_content
from mainstem.storage.store_files.store_file import (
    EXTENTS_SUFFIX,
    QUEUES_DIRECTORY,
    TEMPORARY_INFIX,
    StoreFile,
    has_index_beside,
    index_path_of,
    owner_of,
    path_of,
    paths_of,
)

BESIDE_BYTES_MAX = 1 << 20
"""The files beside a queue segment are not larger than the segment, but for headers: each of its rows and entries
stands for some kilobytes, or for a batch."""


SYNCED_BYTES = 1 << 20
"""Written and synced at a time. With each sync of a file that grows, the file system commits its own journal: with
256 KiB at a time a disk took 29 MiB/s, with this the 63 of the pace, and commits beside it waited no longer at the 99th
percentile."""


class ByteRange(NamedTuple):
    """Bytes of a file."""

    position: int
    length: int


class FileCopies:
    """Files that are copied from this node, and to it."""

    def __init__(self, stored: StoredFiles, changes: StoreChanges, orphans: Orphans) -> None:
        self._stored = stored
        self._changes = changes
        self._orphans = orphans
        self.one_at_a_time = asyncio.Lock()
        """Held while a file is written here."""
        self.copied_bytes = 0

    async def pieces(self, name: str, length: int) -> AsyncIterator[bytes]:
        """A file from its first to its last byte, `length` at a time, every extent checked; or one that lies beside a
        queue segment, by its name below `queues`. Raises `StorageError` naming the place that is damaged, and when the
        manifest does not name the file."""
        owner = owner_of(f"{QUEUES_DIRECTORY}/{name}")
        if owner is not None and owner != name:
            self._stored.file(owner)
            async for piece in self._beside(f"{QUEUES_DIRECTORY}/{name}", length):
                yield piece
            return
        file = self._stored.file(name)
        known = self._stored.search.known(name)
        checks = ExtentChecks(await self._stored.open_files.index(known), path_of(name))
        async with self._stored.open_files.opened(known) as opened:
            for position in range(0, file.bytes, length):
                piece = await opened.read(position, min(length, file.bytes - position))
                checks.feed(position, piece)
                yield piece

    async def part(self, name: str, ranges: Sequence[ByteRange], length: int) -> AsyncIterator[bytes]:
        """Ranges of a file, which rise, one behind the other, in pieces of at most `length` bytes. Nothing is checked:
        an extent may be cut by them. Raises `StorageError` when they are not in the file, or the manifest does not
        name it."""
        file = self._stored.file(name)
        async with self._stored.open_files.opened(self._stored.search.known(name)) as opened:
            for window in windows(ranges, length):
                start, end = window[0].position, window[-1].position + window[-1].length
                data = await opened.read(start, end - start) if end <= file.bytes else b""
                if len(data) < end - start:
                    raise StorageError(f"{path_of(name)}: it has no bytes from {start} up to {end}")
                view = memoryview(data)
                yield b"".join([view[at - start : at - start + size] for at, size in window])

    async def _beside(self, path: str, length: int) -> AsyncIterator[bytes]:
        """Yield a file that lies beside a queue segment. Kafka's indexes, which no reader here needs, may be missing:
        an empty one is one without entries."""
        try:
            opened = await self._stored.files.open(path, reading=ReadingMode.COLD)
        except FileNotFoundError:
            if path.endswith(EXTENTS_SUFFIX):
                raise
            return
        try:
            position = 0
            while piece := await opened.read(position, length):
                yield bytes(piece)
                position += len(piece)
        finally:
            await opened.close()

    async def copy(self, file: StoreFile, fetch: Callable[[str], AsyncIterator[bytes]]) -> bool:
        """Make sure that a file is here, with what lies beside it, whole and durable, even if the manifest does not
        name it or has dropped it. `fetch` gives the bytes of what `pieces` knows by that name, and is not called when
        the file is here already. The caller holds the file. One is copied at a time. Returns whether it was fetched.
        Raises `StorageError`, and what `fetch` raises."""
        siblings = [path.removeprefix(f"{QUEUES_DIRECTORY}/") for path in paths_of(file.name)[1:]]
        async with self.one_at_a_time:
            async with self._changes.lock:  # a file that is being dropped does not count as here
                if await self.is_here(file):
                    return False
            for sibling in siblings:
                async with aclosing(cast(AsyncGenerator[bytes, None], fetch(sibling))) as pieces:
                    path = f"{QUEUES_DIRECTORY}/{sibling}"
                    await write_copied(self._stored.files, path, file.bytes + BESIDE_BYTES_MAX, pieces)
            async with aclosing(cast(AsyncGenerator[bytes, None], fetch(file.name))) as pieces:
                await copy_file(self._stored.files, file, pieces)
            self.copied_bytes += file.bytes
            await self._stored.renewed(file.name, "it was copied from another node")
            return True

    async def is_here(self, file: StoreFile) -> bool:
        """Whether a file is here, whole as far as is known, even if the manifest does not name it. The caller holds
        it."""
        self._orphans.spare(file.name)
        if file.name in self._stored.damaged:
            return False
        try:
            await self._stored.verify(file)
        except (StorageError, OSError):
            return False
        return True

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample(
            "mainstem_queue_store_copied_bytes_total",
            "counter",
            "Bytes of runs copied from other nodes.",
            self.copied_bytes,
        )


def windows(ranges: Iterable[ByteRange], length: int) -> Iterator[list[ByteRange]]:
    """Ranges in groups that one read of at most `length` bytes covers; what is longer is cut. Raises `StorageError`
    unless they rise."""
    window: list[ByteRange] = []
    end = 0
    for position, rest in ranges:
        if position < end:
            raise StorageError(f"a range from {position} on behind one up to {end}")
        while rest:
            if window and position >= window[0].position + length:
                yield window
                window = []
            size = min(rest, (window[0].position if window else position) + length - position)
            window.append(ByteRange(position, size))
            position, rest = position + size, rest - size
        end = position
    if window:
        yield window


class ExtentChecks:
    """Checks the extents of a file whose bytes pass by in order."""

    def __init__(self, index: ExtentIndex, where: str) -> None:
        rows = index.rows
        self._where = where
        self._starts = numpy.ascontiguousarray(rows["position"])
        self._lengths = numpy.ascontiguousarray(rows["length"])
        self._checksums = numpy.ascontiguousarray(rows["crc"])
        self._row = 0
        self._crc = 0

    def feed(self, position: int, piece: bytes) -> None:
        """The bytes from `position` on, where the last piece ended. Raises `FormatError`."""
        end = position + len(piece)
        first, last = self._row, int(self._starts.searchsorted(numpy.uint64(end)))
        view = memoryview(piece)
        for start, length, checksum in zip(
            self._starts[first:last].tolist(),
            self._lengths[first:last].tolist(),
            self._checksums[first:last].tolist(),
            strict=True,
        ):
            self._crc = crc32c(view[max(start - position, 0) : start + length - position], self._crc)
            if start + length > end:
                break
            if self._crc != checksum:
                raise FormatError(f"{self._where}: the extent at {start} fails its CRC; restore it from a replica")
            self._row += 1
            self._crc = 0


async def copy_file(files: Files, file: StoreFile, pieces: AsyncIterator[bytes]) -> None:
    """Write a file from its bytes; whole, durable and under its name when this returns. The files beside a queue
    segment are there already. Raises `StorageError` for what is not that file, OSError, and what `pieces` raises."""

    async def check(target: File, temporary: str, size: int) -> None:
        if size != file.bytes:
            raise StorageError(f"{path_of(file.name)}: {size} of its {file.bytes} bytes arrived")
        if has_index_beside(file.name):
            path = index_path_of(file.name)
            beside = await files.open(path, reading=ReadingMode.COLD)
            try:
                check_content(await load_index(beside, path, file.name, size), file)
            finally:
                await beside.close()
        else:
            check_content(await load_index(target, temporary, file.name), file)

    await write_copied(files, path_of(file.name), file.bytes, pieces, check)


async def write_copied(
    files: Files,
    path: str,
    bytes_max: int,
    pieces: AsyncIterator[bytes],
    check: Callable[[File, str, int], Awaitable[None]] | None = None,
) -> None:
    """Write a file of at most so many bytes beside its place, have it checked with its size, and give it its name.
    Raises `StorageError`, OSError, and what `pieces` and `check` raise."""
    temporary = f"{path}{TEMPORARY_INFIX}copy"
    target = await files.open(temporary, create=True)
    try:
        await target.size(truncate_to=0)
        position = size = 0
        gathered: list[Buffer] = []
        async for piece in pieces:
            if size + len(piece) > bytes_max:
                raise StorageError(f"{path}: more than its {bytes_max} bytes arrived")
            gathered.append(piece)
            size += len(piece)
            if size - position >= SYNCED_BYTES:
                await target.write(position, gathered, sync=True)  # little is ever dirty: commits share the disk
                position, gathered = size, []
        if gathered:
            await target.write(position, gathered, sync=True)
        if check is not None:
            await check(target, temporary, size)
    finally:
        await target.close()
    await files.rename(temporary, path)
