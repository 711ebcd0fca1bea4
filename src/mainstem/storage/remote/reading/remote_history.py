"""The history of each queue in the remote tier, as this node reads it.

The same search, indexes and checks as on disk 2 (`queue_store/reading/`), over the tier's own manifest and objects in
place of files (`object_files.py`), with a read cache of its own. Neighbouring chunks come in one request, since each
request takes the node's time, those included that a reader is likely to ask for next. A reader that comes back has many
requests on their way at once, and one that was never here, and asks for a chunk or more, has half of them as long as no
other is read ahead of. So the index, the first request and all others are three times that a reader waits; the index
and the first request are one where the manifest tells where a queue begins (`known_beginnings.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mainstem.model import Sample
from mainstem.ports import Clock, Files, ObjectStore
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.reading.file_search import SPANS_PER_TURN
from mainstem.storage.queue_store.reading.file_transactions import FileTransactions
from mainstem.storage.queue_store.reading.queue_history import QueueHistory
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.queue_store.reading.stored_slice import StoredSlice
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.object_files import ObjectFiles
from mainstem.storage.remote.reading.pieces_on_disk import PiecesOnDisk
from mainstem.storage.store_files.store_file import StoreFile, paths_of
from mainstem.supervised import Supervision

AHEAD_TOGETHER = 32
"""Requests on their way ahead of one reader: with 16 of 4 MiB obstore alone is fastest, and smaller ones bring less."""

AHEAD_AT_ONCE = 32
"""Chunks ahead of a reader that was never here and asks for one or more: half of what it may have. One that goes on has
waited for the index and for what it took first, and no more; one that does not has had these asked for in vain."""

INDEXES_AHEAD = 8
"""Files ahead of one reader of which the indexes are read: each a quarter of a mebibyte or less."""

FILES_KNOWN_MAX = 4096
"""Remote files that are open at once, each some hundred bytes: there is no descriptor to it."""

VERIFIED_AT_ONCE = 16
"""Files whose indexes are read at a time before they come to count."""

SWEEP_SECONDS = 10.0
"""Between two looks for files that left the tier, of which memory still holds something."""


class RemoteExtent(NamedTuple):
    """A stretch of a queue, and the largest timestamp in it."""

    base_offset: int
    last_offset: int
    max_timestamp: int


class RemoteHistory:
    """Reads queues from the remote tier. Make it with `open`."""

    def __init__(
        self,
        tier: RemoteTier,
        store: ObjectStore,
        config: ReadCacheConfig,
        clock: Clock,
        pieces: PiecesOnDisk | None,
        supervision: Supervision | None,
    ) -> None:
        self._manifest = manifest = tier.manifest
        self._clock = clock
        self._pieces = pieces
        self._files = ObjectFiles(store, manifest, tier.counts, pieces)
        self.cache = ReadCache(
            clock,
            bytes_max=config.memory_bytes,
            chunk_bytes=config.chunk_bytes,
            supervision=supervision,
            ahead_together=AHEAD_TOGETHER,
            chunks_per_read=config.request_bytes // config.chunk_bytes,
            past_when_crowded=pieces is None,  # what disk 2 keeps it finds again by where its chunks begin
        )
        self.stored = StoredFiles(
            self._files,
            manifest,
            QueueStoreConfig(index_cache_bytes=config.index_bytes, open_files_max=FILES_KNOWN_MAX),
            clock,
            self.cache,
        )
        self.damaged = self.stored.damaged
        self.transactions = FileTransactions(self.stored)
        self._history = QueueHistory(
            self.stored,
            config.read_ahead_chunks_max,
            read_ahead_chunks_least=config.read_ahead_chunks_max,
            read_ahead_chunks_at_once=AHEAD_AT_ONCE,
            indexes_ahead=INDEXES_AHEAD,
            supervision=supervision,
        )
        self._swept_changes = manifest.changes
        self._swept_at = clock.monotonic()
        self.reads = 0
        self.bytes_read = 0
        self.failures = 0
        """Reads that failed, those of an outage included."""

    @classmethod
    async def open(
        cls,
        tier: RemoteTier,
        store: ObjectStore,
        config: ReadCacheConfig,
        clock: Clock,
        store_files: Files,
        supervision: Supervision | None = None,
    ) -> RemoteHistory:
        """Read the files of a tier in the cluster's folder of an object store. `store_files`: disk 2. The tier stays
        its owner's to close. Raises `ConfigError`, OSError."""
        config.validate()
        pieces = await PiecesOnDisk.open(store_files, clock, config.disk_bytes, config.chunk_bytes, supervision)
        return cls(tier, store, config, clock, pieces, supervision)

    @contextmanager
    def expecting(self, group: int, files: Sequence[StoreFile]) -> Iterator[None]:
        """Inside the `with`, read these files of a write group too, which lie in the store, and do not count yet."""
        with self._files.expecting(group, files):
            yield

    async def verify(self, group: int, files: Sequence[StoreFile]) -> None:
        """Check that files which do not count yet are in the store, whole, and as described. Raises `OutOfReach`,
        `StorageError`."""
        bounded = asyncio.Semaphore(VERIFIED_AT_ONCE)

        async def verify(file: StoreFile) -> None:
            async with bounded:
                await self.stored.verify(file)

        with self.expecting(group, files):
            await asyncio.gather(*map(verify, files))

    def know_log_starts(self, log_start: Callable[[int], int]) -> None:
        """From now on readers that begin at the log start of a queue are brought what comes as those who begin at 0."""
        self._history.begins_at = log_start

    def has(self, group: int) -> bool:
        """Whether the tier has anything of a write group."""
        return len(self._manifest.spans(group)) > 0

    async def read(self, queue_id: int, group: int, offset: int, bytes_max: int) -> StoredSlice | None:
        """Batches from the one that holds `offset`, or the next that the tier has, as `QueueHistory.read`. Raises
        `OutOfReach` while the store is out or refuses this node, and `StorageError` when an object is lost or
        damaged."""
        await self._sweep()
        self.reads += 1
        try:
            found = await self._history.read(queue_id, group, offset, bytes_max)
        except (StorageError, OSError):
            self.failures += 1
            raise
        self.bytes_read += sum(map(len, found.batches)) if found is not None else 0
        return found

    async def first_offset(self, queue_id: int, group: int, offset: int) -> int | None:
        """The offset itself if the tier has it, else the next that it has; None: there is none. Raises as `read`."""
        return await self._history.first_offset(queue_id, group, offset)

    async def last_offset(self, queue_id: int, group: int) -> int | None:
        """The last offset of a queue in the tier. Raises as `read`."""
        spans = self._manifest.spans(group)
        for at in range(len(spans) - 1, -1, -1):
            if at % SPANS_PER_TURN == 0:
                await asyncio.sleep(0)
            for entry in reversed([*spans[at].keyed(queue_id, 0)]):
                index = await self.stored.open_files.rows_with(self.stored.search.known(entry.name), queue_id)
                first, end = index.queue_rows(queue_id)
                if first < end:
                    return int(index.rows["last_offset"][end - 1])
        return None

    async def bounds(self, queue_id: int, group: int) -> tuple[int, int] | None:
        """The first and the last offset of a queue in the tier; None: it has nothing of it. Raises as `read`."""
        first, last = await self.first_offset(queue_id, group, 0), await self.last_offset(queue_id, group)
        return None if first is None or last is None else (first, last)

    async def extents(self, queue_id: int, group: int, offset: int) -> AsyncGenerator[RemoteExtent, None]:
        """Yield the queue's extents in the tier, from the one that holds `offset`, or the next there is, on. Raises as
        `read`."""
        async for extent in self._history.extents(queue_id, group, offset):
            yield RemoteExtent(*extent)

    async def extents_since(
        self, queue_id: int, group: int, offset: int, timestamp: int
    ) -> AsyncGenerator[RemoteExtent, None]:
        """Yield those of `extents` that have records of this time (ms) or later. A file that has none is not asked
        for its index. Raises as `read`."""
        for entry in await self._keyed(queue_id, group, offset):
            file = self._manifest.files.get(entry.name)
            if file is None or file.max_timestamp < timestamp:
                continue
            for extent in await self._extents_of(entry.name, queue_id):
                if extent.last_offset >= offset and extent.max_timestamp >= timestamp:
                    yield extent

    async def latest_extents(
        self, queue_id: int, group: int, offset: int
    ) -> AsyncGenerator[tuple[int, RemoteExtent], None]:
        """Yield the queue's extents from `offset` on, file after file, such that those files come first that may have
        the latest records, each extent with the latest time that any file from there on may have. Raises as `read`."""
        entries = await self._keyed(queue_id, group, offset)
        described = [(entry, self._manifest.files.get(entry.name)) for entry in entries]
        files = sorted(
            ((file.max_timestamp, entry.name) for entry, file in described if file is not None),
            key=lambda one: -one[0],
        )
        for latest, name in files:
            for extent in await self._extents_of(name, queue_id):
                if extent.last_offset >= offset:
                    yield latest, extent

    async def _extents_of(self, name: str, queue_id: int) -> list[RemoteExtent]:
        index = await self.stored.open_files.rows_with(self.stored.search.known(name), queue_id)
        first, end = index.queue_rows(queue_id)
        fields = ("base_offset", "last_offset", "max_timestamp")
        columns = [index.rows[field][first:end].tolist() for field in fields]
        return [RemoteExtent(*extent) for extent in zip(*columns, strict=True)]

    async def _keyed(self, queue_id: int, group: int, offset: int) -> list[FileRange]:
        """The files that may have this offset of a queue or later ones, in the order of their offsets."""
        found: list[FileRange] = []
        for at, span in enumerate(self._manifest.spans(group)):
            if at % SPANS_PER_TURN == 0:
                await asyncio.sleep(0)
            found += span.keyed(queue_id, offset)
        return found

    async def whole_again(self, name: str, how: str) -> None:
        """Take back the note of a damaged file, and let go of all that is held of its bytes."""
        self._files.forget(paths_of(name))
        await self.stored.renewed(name, how)

    async def _sweep(self) -> None:
        """Let go of what memory holds of files that left the tier."""
        now = self._clock.monotonic()
        if self._manifest.changes == self._swept_changes or now < self._swept_at + SWEEP_SECONDS:
            return
        self._swept_changes, self._swept_at = self._manifest.changes, now
        for known in self.stored.search.outdated():
            self.stored.search.forget(known)
            self.cache.forget(known.name)
            self._files.forget(paths_of(known.name))
            await self.stored.open_files.renewed(known.name)

    async def close(self) -> None:
        await self._history.close()
        await self.cache.close()
        await self.stored.open_files.close()
        if self._pieces is not None:
            await self._pieces.close()

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample("mainstem_remote_reads_total", "counter", "Reads of the remote tier.", self.reads)
        yield Sample("mainstem_remote_read_bytes_total", "counter", "Bytes read from the remote tier.", self.bytes_read)
        yield Sample(
            "mainstem_remote_read_errors_total", "counter", "Reads of the remote tier that failed.", self.failures
        )
        yield Sample(
            "mainstem_remote_damaged_files",
            "gauge",
            "Remote files whose objects are known to be lost or damaged.",
            len(self.damaged.all()),
        )
        yield Sample(
            "mainstem_remote_index_bytes", "gauge", "Memory held by indexes of remote files.",
            self.stored.open_files.index_bytes,
        )  # fmt: skip
        yield from self.cache.samples("remote_", "the object store")
        if self._pieces is not None:
            yield from self._pieces.samples()
