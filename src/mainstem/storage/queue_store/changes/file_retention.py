"""Retention of files: those in which nothing is live go, and so do files that the manifest never named.

A file is deleted only when the manifest, known to be this store's own, does not name it. A file whose witness, an
extent that was live at the last look, is still live is not looked at again."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Iterable, Mapping
from typing import NamedTuple

import numpy
import numpy.typing

from mainstem.model import Sample
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.changes.being_copied import BeingCopied
from mainstem.storage.queue_store.changes.orphans import Orphans
from mainstem.storage.queue_store.changes.store_changes import StoreChanges
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import FileKind, StoreFile, kind_of, owner_of

log = logging.getLogger(__name__)

QUEUES_PER_TURN = 16_384
"""Queues whose log starts are looked up in one turn of the event loop: some milliseconds if all their topics were
deleted."""

LogStartsOf = Callable[[QueueIds], numpy.typing.NDArray[numpy.int64]]
EverIn = Callable[[QueueIds, Collection[int]], numpy.typing.NDArray[numpy.bool_]]
"""Tells which of these queues are in one of these write groups, or have been."""


class DroppedFiles(NamedTuple):
    """Files that went since the start."""

    files: int
    bytes: int


class FileVerdict(enum.Enum):
    """Retention's verdict on a file."""

    LIVE = "live"
    DEAD = "dead"
    """No batch in it is live, of any write group."""
    DEAD_HERE = "dead here"
    """No batch in it is live, of the write groups it counts for. It may hold batches of other write groups, which are
    not here or have the same in their own files."""


class _Either:
    """The rows in one of two."""

    def __init__(self, one: Container[str], other: Container[str]) -> None:
        self._one = one
        self._other = other

    def __contains__(self, name: object) -> bool:
        return name in self._one or name in self._other


class FileRetention:
    """Drops the files of one store."""

    def __init__(self, stored: StoredFiles, changes: StoreChanges, being_copied: BeingCopied, orphans: Orphans) -> None:
        self._stored = stored
        self._manifest = stored.manifest
        self._changes = changes
        self._being_copied = being_copied
        self._orphans = orphans
        self._dropped_files = 0
        self._dropped_bytes = 0

    @property
    def dropped(self) -> DroppedFiles:
        """Those in which nothing was live."""
        return DroppedFiles(self._dropped_files, self._dropped_bytes)

    async def retain(
        self,
        log_starts: LogStartsOf,
        confirmed: Callable[[], Awaitable[None]] | None = None,
        ever_in: EverIn | None = None,
    ) -> list[StoreFile]:
        """Drop the files in which no extent is live of the groups they count for, and remove files that the manifest
        never named. A file that cannot be read stays.

        `log_starts` gives the log start per queue id, the largest i64 for a queue that is known to be deleted: an
        answer that is larger than the truth deletes data. `confirmed` is awaited before any file is dropped: when it
        returns, the log starts can no longer be taken back. `ever_in` tells which queues may have extents of these
        groups; without it all extents count. Returns what was dropped."""
        rewritten = self._changes.rewritten
        dead: dict[str, tuple[FileVerdict, frozenset[int]]] = {}
        async for name in self._without_witness(log_starts):
            counts_for = self._manifest.counts_for(name)
            if not self._has_kept(name):
                verdict = await self._verdict(name, counts_for, log_starts, ever_in)
                if verdict is not FileVerdict.LIVE:
                    dead[name] = verdict, counts_for
        dropped: list[StoreFile] = []
        if dead:
            if confirmed is not None:
                await confirmed()
            async with self._changes.lock:
                if (
                    self._changes.rewritten == rewritten
                ):  # otherwise a write group's files changed since they were checked
                    dropped = await self._drop(dead)
            log.info("retention dropped %d runs of %d bytes", len(dropped), sum(file.bytes for file in dropped))
        await self._remove_orphans()
        return dropped

    async def _drop(self, dead: Mapping[str, tuple[FileVerdict, frozenset[int]]]) -> list[StoreFile]:
        """Drop these files, if their verdict still holds for the write groups it was found for."""
        names = [
            name
            for name, (_verdict, counts_for) in dead.items()
            if name in self._manifest.files
            and not self._has_kept(name)
            and self._manifest.counts_for(name) == counts_for
        ]
        if not names:
            return []
        dropped = [self._manifest.files[name] for name in names]
        await self._changes.drop(names, [name for name in names if dead[name][0] is FileVerdict.DEAD])
        self._dropped_files += len(dropped)
        self._dropped_bytes += sum(file.bytes for file in dropped)
        return dropped

    async def drop_copies(self, copies: Mapping[str, int]) -> list[StoreFile]:
        """Drop merged files, each of one write group (name → group), of which the caller knows that the remote tier has
        what is live in them. Those that are held, or are being copied, or count no more as they did, stay. Returns what
        was dropped."""
        async with self._changes.lock:
            names = [
                name
                for name, group in copies.items()
                if self._manifest.counts_for(name) == {group} and not self._has_kept(name)
            ]
            dropped = [self._manifest.files[name] for name in names]
            if names:
                await self._changes.drop(names, ())
        return dropped

    async def drop_lost(self, names: Collection[str]) -> list[str]:
        """Drop files that cannot be read and that an operator gave up. Those that work under way needs stay. Returns
        what was dropped."""
        async with self._changes.lock:
            found = [name for name in names if name in self._manifest.files and not self._has_kept(name)]
            if found:
                await self._changes.drop(found, [name for name in found if kind_of(name) is FileKind.RUN])
        return found

    def _has_kept(self, name: str) -> bool:
        groups = self._manifest.counts_for(name)
        return self._orphans.is_held(name) or any(map(self._being_copied.is_kept, groups))

    async def _without_witness(self, log_starts: LogStartsOf) -> AsyncIterator[str]:
        """Yield the files whose extent that was live at the last look is not live any more, or that have none."""
        async for page in self._manifest.files.each_page():
            places, queue_ids, last_offsets = page.witnesses()
            looked_at = last_offsets >= 0
            live = numpy.zeros(len(places), numpy.bool_)
            live[looked_at] = last_offsets[looked_at] >= log_starts(queue_ids[looked_at])
            for at in places[~live].tolist():
                if page.alive[at]:
                    yield page.rows.name(at)

    async def _verdict(
        self, name: str, counts_for: frozenset[int], log_starts: LogStartsOf, ever_in: EverIn | None
    ) -> FileVerdict:
        known = self._stored.search.known(name)
        try:
            index = await self._stored.open_files.index(known, keep=False)
        except (StorageError, OSError):  # noted there: its content is unknown
            return FileVerdict.LIVE
        all_ids, all_last = index.last_offsets()
        longest, others_live = -1, False
        witness: tuple[int, int] | None = None
        for first in range(0, len(all_ids), QUEUES_PER_TURN):
            queue_ids = all_ids[first : first + QUEUES_PER_TURN]
            last_offsets = all_last[first : first + QUEUES_PER_TURN]
            margins = last_offsets - numpy.minimum(log_starts(queue_ids), last_offsets + 1)
            if ever_in is not None:
                counts = ever_in(queue_ids, counts_for)
                others_live = others_live or bool((margins[~counts] >= 0).any())
                margins[~counts] = -1
            at = int(margins.argmax())
            if int(margins[at]) > longest:
                longest = int(margins[at])
                witness = int(queue_ids[at]), int(last_offsets[at])
            if first + QUEUES_PER_TURN < len(all_ids):
                await asyncio.sleep(0)
        self._manifest.files.witness(name, witness)
        if longest >= 0:
            return FileVerdict.LIVE
        return FileVerdict.DEAD_HERE if others_live else FileVerdict.DEAD

    async def _remove_orphans(self) -> None:
        for name in list(self._stored.lingering):
            if not self._being_copied.any_kept():
                async with self._changes.lock:
                    del self._stored.lingering[name]
                    await self._stored.remove(self._stored.search.known(name))
        for path in await self._orphans.due(self._named()):
            async with self._changes.lock:
                if self._orphans.is_due(path, self._named()) and owner_of(path) not in self._changes.unvouched:
                    log.info("removing %s, which the manifest does not name", path)
                    await self._stored.remove_path(path)

    def _named(self) -> Container[str]:
        return _Either(self._manifest.files, self._stored.lingering)

    async def first_seen(self, now_ms: int) -> Mapping[str, int]:
        """The time at which retention first saw each file, by name; files not seen before that exist at the call get
        `now_ms`. Durable when it returns. It is a view: later files are seen by a later call."""
        before_row = self._manifest.files.next_row
        async with self._changes.lock:
            await self._manifest.see(now_ms, before_row)
        return self._manifest.seen

    def samples(self) -> Iterable[Sample]:
        """Current values, for `/metrics`."""
        yield Sample(
            "mainstem_queue_store_dropped_files_total", "counter", "Files deleted by retention.", self._dropped_files
        )
        yield Sample(
            "mainstem_queue_store_dropped_bytes_total",
            "counter",
            "Bytes of runs deleted by retention.",
            self._dropped_bytes,
        )
