"""The queue store of a node: files on disk 2, found through the manifest, read through the read cache.

Its parts, each with a state of its own:

    stored     which files there are and what is in them (`stored_files`), over descriptors, indexes and the manifest
    history    what readers get of a queue, with read-ahead for those that come back (`queue_history`)
    near       the files around the place where many queues are read together (`near_files`)
    splits     how far each write group is split; the only way in which new runs come to count (`splits`)
    copies     files copied to other nodes and from them (`file_copy`), `parts` of files to this node (`part_copy`)
    mending    damaged files, made whole (`file_mending`)
    merges     what is merged, and its recording (`merges`)
    compactions  what is compacted, and its recording (`compactions`)
    usage      which topic has how much on which level (`topic_usage`)
    copy       what the manifest says, on disk 2, in case it is lost (`manifest_copy`)
    retention  files that go since nothing in them is live (`file_retention`), and files that nobody names (`orphans`)

All changes go through `changes` (`store_changes`): one at a time, manifest first. A file is deleted only when the
manifest, known to be this store's own, does not name it.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.compactions import Compactions
from mainstem.storage.queue_store.changes.file_retention import FileRetention
from mainstem.storage.queue_store.changes.merges import Merges
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.splits import Splits
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.copies.file_copy import FileCopies
from mainstem.storage.queue_store.copies.file_mending import Mending
from mainstem.storage.queue_store.copies.part_copy import PartCopies
from mainstem.storage.queue_store.manifest.copy_on_disk.manifest_copy import ManifestCopy
from mainstem.storage.queue_store.manifest.database.manifest_database import is_new
from mainstem.storage.queue_store.manifest.in_memory.file_table import PAGE_FILES
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.manifest.store_mark import check_empty, pair
from mainstem.storage.queue_store.reading.file_transactions import FileTransactions
from mainstem.storage.queue_store.reading.near_files import NearFiles
from mainstem.storage.queue_store.reading.queue_history import QueueHistory
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.queue_store.usage.topic_usage import TopicUsage
from mainstem.storage.read_cache.read_cache import ReadCache
from mainstem.supervised import Supervision


class QueueStore:
    """Holds the parts of a node's queue store. Make it with `open`."""

    def __init__(
        self,
        files: Files,
        manifest: Manifest,
        marked: int,
        copy: ManifestCopy,
        config: QueueStoreConfig,
        clock: Clock,
        pace: Callable[[int], Awaitable[bool]] | None = None,
        supervision: Supervision | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.manifest = manifest
        """It changes only through the parts of the store."""
        self.copy = copy
        self.cache = ReadCache(
            clock,
            bytes_max=config.read_cache_bytes,
            chunk_bytes=config.read_chunk_bytes,
            bytes_per_second=config.read_bytes_per_second,
            pace=pace,
            supervision=supervision,
        )
        """The read cache; the journal's sealed segments use it too: one bound for all memory of catch-up readers."""
        self.stored = StoredFiles(files, manifest, config, clock, self.cache)
        self.damaged = self.stored.damaged
        self.history = QueueHistory(self.stored, config.read_ahead_chunks_max)
        self.near = NearFiles(self.stored, config.read_ahead_chunks_max)
        self.transactions = FileTransactions(self.stored)
        self.retention_facts_bytes_max = config.facts_cache_bytes // 4
        """Memory for what retention remembers of files."""
        self.orphans = Orphans(files, clock, config.orphan_grace_seconds)
        self.changes = StoreChanges(self.stored, clock, marked, copy)
        self.splits = Splits(self.stored, self.changes, self.orphans)
        self.being_copied = BeingCopied()
        self.copies = FileCopies(self.stored, self.changes, self.orphans)
        self.parts = PartCopies(self.stored, self.copies, self.orphans)
        self.mending = Mending(self.stored, self.changes, self.orphans, new_id)
        self.merges = Merges(
            self.stored, self.changes, self.being_copied, self.orphans, clock, config.facts_cache_bytes * 3 // 4
        )
        self.topic_usage = TopicUsage(self.stored, clock)
        self.compactions = Compactions(self.stored, self.changes, self.being_copied, self.orphans, self.merges, clock)
        self.retention = FileRetention(self.stored, self.changes, self.being_copied, self.orphans)

    @classmethod
    async def open(
        cls,
        files: Files,
        database_path: str,
        config: QueueStoreConfig,
        clock: Clock,
        pace: Callable[[int], Awaitable[bool]] | None = None,
        supervision: Supervision | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
        page_files: int = PAGE_FILES,
    ) -> QueueStore:
        """Open the store in the root of `files` with the manifest at `database_path`; make both when neither
        is there. `pace` is the read cache's; `new_id` gives a new store its identity, and names to mended runs;
        `page_files` is how many files a page of the manifest has. Raises `StorageError` when they do not belong
        together; nothing is changed then."""
        config.validate()
        if is_new(database_path):
            await check_empty(files, database_path)
        manifest = await Manifest.open(database_path, page_files)
        try:
            marked = await pair(files, manifest, database_path, new_id)
            copy = await ManifestCopy.open(files, manifest)
        except BaseException:
            await manifest.close()
            raise
        return cls(files, manifest, marked, copy, config, clock, pace, supervision, new_id)

    async def close(self) -> None:
        await self.cache.close()
        async with self.changes.lock:
            await self.stored.close()

    def is_held(self, name: str) -> bool:
        """Whether work under way needs a file."""
        self.merges.current()  # work whose lease is over ends with that
        return self.orphans.is_held(name)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield from self.stored.samples()
        yield from self.retention.samples()
        yield from self.copies.samples()
        yield from self.cache.samples()
