"""The files of a queue store, as all its parts share them: which there are, what is in them, and what memory holds of
them.

The manifest says which files count, and for which write groups. An index says which extents of which queues a file has.
A file that cannot be read is noted (`damaged_files.py`), and those who list the contents of many leave it out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import ExtentIndex, QueueIds, Rows
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.reading.damaged_files import DamagedFiles
from mainstem.storage.queue_store.reading.file_search import FileSearch
from mainstem.storage.queue_store.reading.open_files import FileGone, KnownFile, OpenFiles
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.store_files.store_file import StoreFile, kind_of, owner_of, path_of

log = logging.getLogger(__name__)

WriteGroupsAt = Callable[[QueueIds, numpy.typing.NDArray[numpy.int64]], numpy.typing.NDArray[numpy.int64]]
"""Gives the write group in whose log each of these offsets is, one per queue id."""


class QueueFile(NamedTuple):
    """A file, and what of it belongs to one queue."""

    name: str
    file_bytes: int
    queue_bytes: int
    first_offset: int
    last_offset: int
    extents: int
    """Rows of its index that belong to the queue."""


class StoredFiles:
    """The files that the manifest names. The parts of the store use its attributes; nobody else does."""

    def __init__(
        self, files: Files, manifest: Manifest, config: QueueStoreConfig, clock: Clock, cache: ReadCache
    ) -> None:
        self.files = files
        self.manifest = manifest
        self.cache = cache
        self.damaged = DamagedFiles(clock, manifest.files.__contains__)
        self.open_files = OpenFiles(
            files,
            index_bytes_max=config.index_cache_bytes,
            open_files_max=config.open_files_max,
            check=self._check,
            damaged=self.damaged.note,
        )
        """Descriptors and indexes."""
        self.search = FileSearch(manifest, self.open_files)
        self.lingering: dict[str, StoreFile] = {}
        """Files that were merged while they were being copied to other nodes."""

    # --- which there are ------------------------------------------------------------------------------------

    def file(self, name: str) -> StoreFile:
        """A file as it was described when it was recorded. Raises `FileGone`."""
        file = self.manifest.files.get(name) or self.lingering.get(name)
        if file is None:
            raise FileGone(f"{name}: the manifest of this node does not name it")
        return file

    def counts(self, name: str, group: int) -> bool:
        """Whether a file counts for a group."""
        return group in self.manifest.counts_for(name)

    def file_count(self, group: int) -> int:
        """Files that hold blocks of the group."""
        return self.manifest.spans(group).file_count

    def file_bytes(self) -> int:
        """Bytes of all files on disk 2."""
        return sum(sums.bytes for sums in self.manifest.files.levels.copy().values())  # metrics are read in any thread

    def in_order(self) -> Iterator[tuple[StoreFile, list[int]]]:
        """Yield every file and the groups it counts for, such that the files of every group come oldest first; see
        `Manifest.in_order`."""
        return ((self.manifest.files[name], groups) for name, groups in self.manifest.in_order())

    # --- what is in them ------------------------------------------------------------------------------------

    async def all_rows(self, groups_at: WriteGroupsAt, *, whole: bool = False) -> AsyncIterator[Rows]:
        """The extents of every file, those of each queue oldest first, including those that are no longer live.
        Extents of a group that the file does not count for are left out; `groups_at` gives the group per queue
        id and offset. So are files that cannot be read; `whole`: what keeps one from being read is raised instead."""
        for name, groups in self.manifest.in_order():
            rows = await self.rows_of(name, groups, groups_at)
            if rows is not None:
                yield rows
            elif whole and name in self.manifest.files:
                await self.open_files.index(self.search.known(name))
                raise StorageError(f"{name}: it could not be read, and now it can; try again")

    async def rows_of(self, name: str, groups: Sequence[int], groups_at: WriteGroupsAt) -> Rows | None:
        """The extents of one file that are of these groups; None when it is gone or cannot be read. Readers' indexes
        stay in memory."""
        try:
            rows = (await self.open_files.index(self.search.known(name), keep=False)).rows
        except (StorageError, OSError):  # noted there
            return None
        counts = numpy.isin(groups_at(rows["queue_id"], rows["base_offset"]), groups)
        return rows if counts.all() else rows[counts]

    async def files_of(self, queue_id: int, group: int) -> list[QueueFile]:
        """The files that hold batches of a queue, in offset order, without those that cannot be read."""
        found: list[QueueFile] = []
        for name in [
            entry.name for span in self.manifest.spans(group) for entry in (*span.runs, *span.keyed(queue_id, 0))
        ]:
            try:
                index = await self.open_files.rows_with(self.search.known(name), queue_id)
            except (StorageError, OSError):  # noted there
                continue
            first, end = index.queue_rows(queue_id)
            rows = index.rows[first:end]
            if len(rows) and name in self.manifest.files:
                found.append(
                    QueueFile(
                        name,
                        self.manifest.files[name].bytes,
                        int(rows["length"].sum(dtype=numpy.int64)),
                        int(rows["base_offset"][0]),
                        int(rows["last_offset"][-1]),
                        len(rows),
                    )
                )
        return found

    # --- checks -------------------------------------------------------------------------------------------

    async def verify(self, file: StoreFile) -> None:
        """Check that a file is there, whole, and as described. Raises `StorageError`, OSError."""
        kind_of(file.name)
        known = self.manifest.files.get(file.name)
        if known is None:
            check_content(await self.open_files.index(KnownFile(file.name)), file)
        elif known != file:
            raise StorageError(f"{file.name}: recorded before as {known}, now as {file}")

    def _check(self, name: str, index: ExtentIndex) -> None:
        """Raises `StorageError` when a file has not what the manifest says of it."""
        file = self.manifest.files.get(name)
        if file is not None:
            check_content(index, file)

    # --- their files --------------------------------------------------------------------------------------

    async def renewed(self, name: str, how: str) -> None:
        """Take back the note of a file that is whole again, and drop all that memory holds of it."""
        self.cache.forget(name)
        await self.open_files.renewed(name)
        self.damaged.whole_again(name, how)

    async def remove(self, known: KnownFile) -> None:
        """Delete a file that the manifest does not name."""
        self.cache.forget(known.name)
        try:
            await self.open_files.remove(known)
        except OSError as error:  # it is an orphan now, and tried again as one
            log.warning("%s could not be removed: %s", path_of(known.name), error)

    async def remove_path(self, path: str) -> None:
        """Delete a file that the manifest does not name, or what lies beside one, or was being written for one."""
        owner = owner_of(path)
        if owner is not None and path_of(owner) == path:
            await self.remove(KnownFile(owner))
            return
        try:
            await self.files.remove(path)
        except OSError as error:  # it is tried again
            log.warning("%s could not be removed: %s", path, error)

    async def close(self) -> None:
        await self.open_files.close()
        await self.manifest.close()

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample("mainstem_queue_store_files", "gauge", "Files on disk 2.", len(self.manifest.files))
        yield Sample("mainstem_queue_store_bytes", "gauge", "Bytes of runs on disk 2.", self.file_bytes())
        yield Sample(
            "mainstem_queue_store_index_bytes", "gauge", "Memory held by indexes of runs.", self.open_files.index_bytes
        )
        yield Sample(
            "mainstem_queue_store_index_loads_total",
            "counter",
            "Indexes of runs read from disk 2.",
            self.open_files.index_loads,
        )
        yield Sample("mainstem_queue_store_open_files", "gauge", "Runs held open.", self.open_files.open_count)
        yield from self.damaged.samples()


def check_content(index: ExtentIndex, file: StoreFile) -> None:
    """Raises `StorageError` unless a file's counts are those that `file` states."""
    rows = index.rows
    found = (
        int(rows["length"].sum(dtype=numpy.int64)),
        int(rows["batch_count"].sum(dtype=numpy.int64)),
        int(rows["record_count"].sum(dtype=numpy.int64)),
        len(index.queues()[0]),
    )
    said = (file.batch_bytes, file.batch_count, file.record_count, file.queue_count)
    if found != said:
        raise StorageError(f"{file.name}: has (bytes, batches, records, queues) {found}, is said to have {said}")
    if file.is_merged:
        ends = (int(rows["queue_id"][0]), int(rows["queue_id"][-1]), int(rows["base_offset"][0])) if len(rows) else ()
        if ends != (file.first_queue, file.last_queue, file.first_offset):
            raise StorageError(f"{file.name}: its first or last key is not what it is said to be")
