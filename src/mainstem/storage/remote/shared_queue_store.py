"""Changes the files of a shared store: its merges and its compactions.

They are those of a queue store of one's own, over the manifest of the remote tier, but a change comes to count in
another way: the leader of the write group has its log say so, and every replica follows. A merge is one command, a
compaction one or several. Only the leader of a write group works on its files. It deletes inputs a while after they
went (`remote_upkeep.py`), for readers that had looked them up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain

from mainstem.model import Sample
from mainstem.ports import Clock
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.compactions import Compactions
from mainstem.storage.queue_store.changes.merges import Merges
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.manifest.in_memory.spans import (
    FileRange,
    check_keys,
    check_rewritten,
    check_whole_spans,
)
from mainstem.storage.queue_store.manifest.manifest import Manifest
from mainstem.storage.queue_store.usage.topic_usage import TopicUsage
from mainstem.storage.remote.decided.remote_changes import Replacement
from mainstem.storage.remote.decided.remote_state import RECORDED
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups.control import RemoteSpan


def _nobody(group: int) -> bool:
    return False


class SharedChanges:
    """`FileChanges` by the logs of write groups that this node leads."""

    def __init__(self, remote: RemoteTier, history: RemoteHistory) -> None:
        self._remote = remote
        self._history = history

    async def merge(
        self,
        group: int,
        inputs: Sequence[FileRange],
        outputs: Sequence[StoreFile],
        is_kept: Callable[[int], bool] = _nobody,
    ) -> None:
        """Raises `StorageError`, nothing being changed, above all when an input does not count any more, or this node
        does not lead the write group in the term in which the outputs were intended."""
        async with self._checking(group, outputs) as manifest:
            check_whole_spans(manifest.spans(group), inputs)
            check_keys(outputs)
            after, upto = min(one.after for one in inputs), max(one.upto for one in inputs)
            spans = [_span(after, upto, outputs)] if outputs else []
        await self._record(group, spans, inputs)

    async def rewrite(
        self,
        group: int,
        outputs: Mapping[FileRange, Sequence[StoreFile]],
        is_kept: Callable[[int], bool] = _nobody,
    ) -> None:
        """As `merge`, but what one command does not take is replaced by several, the oldest files first, and an error
        may leave those replaced. That is no half of a compaction: a batch goes because a later one has its key, which
        stays, or is in younger files; and a tombstone only after all that it covers."""
        async with self._checking(group, list(chain.from_iterable(outputs.values()))) as manifest:
            check_rewritten(manifest.spans(group), manifest.files, outputs)
            oldest_first = sorted(outputs, key=lambda entry: _age(entry, manifest.files[entry.name]))
            replacements = [
                Replacement([_span(entry.after, entry.upto, files)] if (files := outputs[entry]) else [], [entry.name])
                for entry in oldest_first
            ]
        _require(group, await self._remote.replace(group, replacements))

    @asynccontextmanager
    async def _checking(self, group: int, outputs: Sequence[StoreFile]) -> AsyncIterator[Manifest]:
        await self._remote.drained([group])
        manifest = self._remote.manifest
        for file in outputs:
            if file.group != group or file.name in manifest.files:
                raise StorageError(f"{file.name}: it is no new file of write group {group}")
        await self._history.verify(group, outputs)
        yield manifest

    async def _record(self, group: int, spans: Sequence[RemoteSpan], gone: Iterable[FileRange]) -> None:
        names = sorted({entry.name for entry in gone})
        _require(group, await self._remote.record(group, spans=spans, gone=names, at_once=True))


def _require(group: int, outcome: str) -> None:
    if outcome != RECORDED:
        raise StorageError(f"write group {group}: {outcome}")


def _age(entry: FileRange, file: StoreFile) -> tuple[int, int, int]:
    """Sorts files with batches of the same queue, the oldest first: in one span, segments follow each other."""
    return entry.upto, file.first_queue, file.first_offset


def _span(after: int, upto: int, files: Sequence[StoreFile]) -> RemoteSpan:
    return RemoteSpan(after, upto, tuple(file.message() for file in files))


class SharedQueueStore:
    """Holds the parts that work on the files of a shared store."""

    def __init__(
        self,
        remote: RemoteTier,
        history: RemoteHistory,
        config: QueueStoreConfig,
        clock: Clock,
        leads: Callable[[int], bool],
    ) -> None:
        """`leads`: whether this node leads a write group."""
        self.manifest = remote.manifest
        self.stored = stored = history.stored
        self.damaged = stored.damaged
        self.changes = SharedChanges(remote, history)
        self.being_copied = BeingCopied()
        """None ever are: replicas copy no files."""
        self.orphans = Orphans(stored.files, clock, config.orphan_grace_seconds)
        """Counts who holds a file; what nobody names is not looked for, as the log knows it."""
        self.merges = Merges(
            stored, self.changes, self.being_copied, self.orphans, clock, config.facts_cache_bytes * 3 // 4,
            history.expecting, leads,
        )  # fmt: skip
        self.compactions = Compactions(
            stored, self.changes, self.being_copied, self.orphans, self.merges, clock, history.expecting
        )
        self.topic_usage = TopicUsage(stored, clock)

    def is_held(self, name: str) -> bool:
        """Whether work under way needs a file."""
        self.merges.current()  # work whose lease is over ends with that
        return self.orphans.is_held(name)

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`, but for those of merges and compactions."""
        yield Sample(
            "mainstem_shared_store_bytes",
            "gauge",
            "Bytes of files that count in the shared store, of the whole cluster.",
            self.stored.file_bytes(),
        )
