"""Copies runs between nodes: the sender checks them as it reads them; the receiver writes them beside its runs, checks
them again, and renames them.

A copy that breaks off leaves `<name>.tmp-copy` behind, which the next try of the same run overwrites, and which the
removal of orphans finds otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import cast

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Sample
from mainstem.ports import Files
from mainstem.storage.errors import FormatError, StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.queue_store.orphans import Orphans
from mainstem.storage.queue_store.run_changes import RunChanges
from mainstem.storage.queue_store.run_reader import load_index
from mainstem.storage.queue_store.store_file import RUNS_DIRECTORY, TEMPORARY_INFIX, StoreFile
from mainstem.storage.queue_store.stored_runs import StoredRuns, check_content, check_name


class RunCopies:
    """Runs that are copied from this node, and to it."""

    def __init__(self, runs: StoredRuns, changes: RunChanges, orphans: Orphans) -> None:
        self._runs = runs
        self._changes = changes
        self._orphans = orphans
        self._kept: Counter[int] = Counter()
        """Groups whose runs are being copied to other nodes."""
        self._copying = asyncio.Lock()
        self._copied_bytes = 0

    @contextmanager
    def kept(self, group: int) -> Iterator[None]:
        """Keep retention from dropping runs of the write group inside the `with`: they are being copied."""
        self._kept[group] += 1
        try:
            yield
        finally:
            self._kept[group] -= 1
            if not self._kept[group]:
                del self._kept[group]

    def is_kept(self, group: int) -> bool:
        """Whether runs of the write group are being copied."""
        return group in self._kept

    async def pieces(self, name: str, length: int) -> AsyncIterator[bytes]:
        """A run from its first to its last byte, `length` at a time, every extent checked. Raises `StorageError`
        naming the place that is damaged, and when the manifest does not name the run."""
        file = self._runs.file(name)
        run = self._runs.search.run(name)
        checks = ExtentChecks(await self._runs.open_runs.index(run), f"{RUNS_DIRECTORY}/{name}")
        async with self._runs.open_runs.opened(run) as opened:
            for position in range(0, file.bytes, length):
                piece = await opened.read(position, min(length, file.bytes - position))
                checks.feed(position, piece)
                yield piece

    async def copy(self, file: StoreFile, fetch: Callable[[str], AsyncIterator[bytes]]) -> bool:
        """Make sure that a run is here, whole and durable, even if the manifest does not name it or has dropped it.
        `fetch` gives its bytes, and is not called when the run is here already. The caller holds the run. One run is
        copied at a time. Returns whether it was fetched. Raises `StorageError`, and what `fetch` raises."""
        check_name(file.name)
        async with self._copying:
            async with self._changes.lock:  # a run that is being dropped does not count as here
                if await self._is_here(file):
                    return False
            async with aclosing(cast(AsyncGenerator[bytes, None], fetch(file.name))) as pieces:
                await copy_run(self._runs.files, file, pieces)
            self._copied_bytes += file.bytes
            await self._runs.renewed(file.name, "it was copied from another node")
            return True

    async def _is_here(self, file: StoreFile) -> bool:
        self._orphans.spare(file.name)
        if file.name in self._runs.damaged:
            return False
        try:
            await self._runs.verify(file)
        except (StorageError, OSError):
            return False
        return True

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample(
            "mainstem_queue_store_copied_bytes_total",
            "counter",
            "Bytes of runs copied from other nodes.",
            self._copied_bytes,
        )


class ExtentChecks:
    """Checks the extents of a run whose bytes pass by in order."""

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


async def copy_run(files: Files, file: StoreFile, pieces: AsyncIterator[bytes]) -> None:
    """Write a run from its bytes; whole, durable and under its name when this returns. Raises `StorageError` for what
    is not that run, OSError, and what `pieces` raises."""
    path = f"{RUNS_DIRECTORY}/{file.name}"
    temporary = f"{path}{TEMPORARY_INFIX}copy"
    target = await files.open(temporary, create=True)
    try:
        await target.size(truncate_to=0)
        position = 0
        async for piece in pieces:
            if position + len(piece) > file.bytes:
                raise StorageError(f"{path}: more than its {file.bytes} bytes arrived")
            await target.write(position, [piece], sync=True)  # little is ever dirty: commits share the disk
            position += len(piece)
        if position != file.bytes:
            raise StorageError(f"{path}: {position} of its {file.bytes} bytes arrived")
        check_content(await load_index(target, temporary, file.name), file)
    finally:
        await target.close()
    await files.rename(temporary, path)
