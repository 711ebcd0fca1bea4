"""The queue store of a node: runs on disk 2, found through the manifest, read through the read cache.

Its parts, each with a state of its own:

    runs       which runs there are and what is in them (`stored_runs`), over descriptors, indexes and the manifest
    history    what readers get of a queue, with read-ahead for those that come back (`queue_history`)
    commits    how far each write group is split; the only way in which new runs come to count (`split_commits`)
    copies     files copied to other nodes and from them (`run_copy`), `parts` of files to this node (`part_copy`)
    mending    damaged runs, made whole (`mending`)
    merges     what is merged, and its recording (`merges`)
    compactions  what is compacted, and its recording (`compactions`)
    usage      which topic has how much on which level (`topic_usage`)
    retention  runs that go since nothing in them is live (`run_retention`), and files that nobody names (`orphans`)

All changes go through `changes` (`run_changes`): one at a time, manifest first. A file is deleted only when the
manifest, known to be this store's own, does not name it.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.storage.disks.read_cache import ReadCache
from mainstem.storage.queue_store.compactions import Compactions
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest import Manifest
from mainstem.storage.queue_store.mending import Mending
from mainstem.storage.queue_store.merges import Merges
from mainstem.storage.queue_store.orphans import Orphans
from mainstem.storage.queue_store.part_copy import PartCopies
from mainstem.storage.queue_store.queue_history import QueueHistory
from mainstem.storage.queue_store.run_changes import RunChanges
from mainstem.storage.queue_store.run_copy import RunCopies
from mainstem.storage.queue_store.run_retention import RunRetention
from mainstem.storage.queue_store.split_commits import SplitCommits
from mainstem.storage.queue_store.store_mark import pair
from mainstem.storage.queue_store.stored_runs import StoredRuns
from mainstem.storage.queue_store.topic_usage import TopicUsage
from mainstem.supervised import Supervision


class QueueStore:
    """Holds the parts of a node's queue store. Make it with `open`."""

    def __init__(
        self,
        files: Files,
        manifest: Manifest,
        marked: int,
        config: QueueStoreConfig,
        clock: Clock,
        pace: Callable[[int], Awaitable[bool]] | None = None,
        supervision: Supervision | None = None,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self.manifest = manifest
        """It changes only through the parts of the store."""
        self.cache = ReadCache(
            clock,
            bytes_max=config.read_cache_bytes,
            chunk_bytes=config.read_chunk_bytes,
            bytes_per_second=config.read_bytes_per_second,
            pace=pace,
            supervision=supervision,
        )
        """The read cache; the journal's sealed segments use it too: one bound for all memory of catch-up readers."""
        self.runs = StoredRuns(files, manifest, config, clock, self.cache)
        self.damaged = self.runs.damaged
        self.history = QueueHistory(self.runs, config.read_ahead_chunks_max)
        self.orphans = Orphans(files, clock, config.orphan_grace_seconds)
        self.changes = RunChanges(self.runs, clock, marked)
        self.commits = SplitCommits(self.runs, self.changes, self.orphans)
        self.copies = RunCopies(self.runs, self.changes, self.orphans)
        self.parts = PartCopies(self.runs, self.copies, self.orphans)
        self.mending = Mending(self.runs, self.changes, self.orphans, new_id)
        self.merges = Merges(self.runs, self.changes, self.copies, self.orphans, clock)
        self.topic_usage = TopicUsage(self.runs, clock)
        self.compactions = Compactions(self.runs, self.changes, self.copies, self.orphans, self.merges, clock)
        self.retention = RunRetention(self.runs, self.changes, self.copies, self.orphans)

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
    ) -> QueueStore:
        """Open the store in the root of `files` with the manifest at `database_path`; make both when neither
        is there. `pace` is the read cache's; `new_id` gives a new store its identity, and names to mended runs. Raises
        `StorageError` when they do not belong together; nothing is changed then."""
        config.validate()
        manifest = await Manifest.open(database_path)
        try:
            marked = await pair(files, manifest, database_path, new_id)
        except BaseException:
            await manifest.close()
            raise
        return cls(files, manifest, marked, config, clock, pace, supervision, new_id)

    async def close(self) -> None:
        await self.cache.close()
        async with self.changes.lock:
            await self.runs.close()

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield from self.runs.samples()
        yield from self.retention.samples()
        yield from self.merges.samples()
        yield from self.compactions.samples()
        yield from self.copies.samples()
        yield from self.cache.samples()
