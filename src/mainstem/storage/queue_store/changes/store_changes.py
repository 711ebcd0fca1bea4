"""Changes to the set of files, made one at a time, the manifest first.

The code that changes it holds `lock` from the first look at the manifest to the end of the change. Each change is
written to the manifest's copy on disk 2 (`manifest_copy.py`), and then marks the store, so that an older copy of the
manifest is found out (`store_mark.py`). A change whose mark could not be written counts, but a manifest that lost it
would be taken for a whole one: nothing that the change makes superfluous elsewhere may go before `vouch` has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

from mainstem.ports import Clock
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.manifest.copy_on_disk.manifest_copy import ManifestCopy
from mainstem.storage.queue_store.manifest.database.manifest_database import Entries, WriteGroupSplit
from mainstem.storage.queue_store.manifest.in_memory.spans import (
    FileRange,
    check_keys,
    check_rewritten,
    check_whole_spans,
)
from mainstem.storage.queue_store.manifest.store_mark import StoreMark, write_mark
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.store_files.store_file import StoreFile

log = logging.getLogger(__name__)


class StoreChanges:
    """Changes the manifest of one store."""

    def __init__(self, stored: StoredFiles, clock: Clock, marked: int, copy: ManifestCopy) -> None:
        self._stored = stored
        self._copy = copy
        self._clock = clock
        self._marked = marked
        """Changes of the manifest that the store's mark knows of."""
        self.lock = asyncio.Lock()
        """Held by the one change that is being made."""
        self.unvouched: set[str] = set()
        """Files that were replaced by changes of which the mark knows nothing yet: a manifest made anew from its copy
        would name them."""
        self.going: frozenset[str] = frozenset()
        """Files that are being dropped."""
        self.rewritten = 0
        """How often a write group's files were replaced by others."""

    async def record_splits(self, splits: Sequence[WriteGroupSplit]) -> None:
        """Move the positions of write groups, with these runs. The caller holds `lock` and has checked each split."""
        assert self.lock.locked(), "splits are checked and recorded under the lock"
        await self._stored.manifest.record_splits(splits)
        await self._mark()

    async def drop(self, names: Collection[str], remembered: Collection[str]) -> None:
        """Forget files, then delete them. The caller holds `lock`. `remembered`: those that splits of other
        write groups may still name, and go on without."""
        assert self.lock.locked(), "what is dropped is checked and dropped under the lock"
        gone = [self._stored.search.known(name) for name in names]
        self.going = frozenset(names)
        try:
            await self._stored.manifest.drop(names, self._clock.now_ms(), remembered)
        finally:
            self.going = frozenset()
        await self._mark()
        for known in gone:
            self._stored.search.forget(known)
            await self._stored.remove(known)

    async def supersede(self, group: int, position: int, ranges: Entries, kept_upto: int = 0) -> None:
        """Set a write group's split to `position`, with these files, as (after, upto, file), behind those that it had
        for blocks up to `kept_upto`, and in place of all others. All files must be here; none of them counts as dropped
        any more. Durable when it returns. Raises `StorageError`, nothing being changed, above all when what is to be
        kept was merged with what is not."""
        manifest = self._stored.manifest
        async with self.lock:
            if kept_upto > manifest.position(group).position:
                raise StorageError(f"write group {group} is not split up to block {kept_upto} any more")
            spans = manifest.spans(group)
            place = spans.behind(kept_upto)
            for span in spans[place : place + 1]:
                if span.after < kept_upto:
                    raise StorageError(
                        f"write group {group}: blocks up to {kept_upto} were to be kept, and were merged up to block "
                        f"{span.upto} meanwhile"
                    )
            for file in {file.name: file for _after, _upto, file in ranges}.values():
                await self._stored.verify(file)
            before = [entry.name for span in spans[place:] for entry in span]
            applied_index = min(manifest.position(group))
            gone = await manifest.supersede(group, position, applied_index, ranges, kept_upto)
            await self._rearranged(before, gone)

    async def replace(self, name: str, by: Mapping[int, Sequence[StoreFile]]) -> None:
        """Put other files, which must be here, in a file's place, for each write group it counts for. Durable when it
        returns. Raises `StorageError`, nothing being changed."""
        manifest = self._stored.manifest
        async with self.lock:
            if manifest.counts_for(name) != set(by):
                raise StorageError(f"{name}: it counts for other write groups than when it was examined")
            for file in {file.name: file for files in by.values() for file in files}.values():
                await self._stored.verify(file)
            entries = {}
            for group, files in by.items():
                after, upto = manifest.blocks_of(name, group)
                entries[group] = [(after, upto, file) for file in files]
            gone = await manifest.replace(name, entries)
            await self._rearranged([name], gone)

    async def fold(self) -> None:
        """Have the manifest put files into pages, as long as some fill one; other changes come in between."""
        more = True
        while more:
            async with self.lock:
                more = await self._stored.manifest.fold()

    async def vouch(self) -> None:
        """Return when the store's mark knows of every change made before the call, so that a manifest without one of
        them is refused. Raises `StorageError` when the mark cannot be written."""
        if self._marked >= self._stored.manifest.changes:
            return
        async with self.lock:
            try:
                await self._write_mark()
            except OSError as error:
                raise StorageError(f"the mark of the queue store cannot be written: {error}") from error

    async def merge(
        self,
        group: int,
        inputs: Sequence[FileRange],
        outputs: Sequence[StoreFile],
        is_kept: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """Put a merge's outputs, which must be here, in the place of its inputs: whole spans of a write group,
        neighbours all of them. Durable when it returns. `is_kept` tells of write groups whose files are being copied:
        their files stay meanwhile. Raises `StorageError`, nothing being changed, above all when an input does not count
        any more."""
        manifest = self._stored.manifest
        async with self.lock:
            check_whole_spans(manifest.spans(group), inputs)
            for file in outputs:
                if file.group != group or file.name in manifest.files:
                    raise StorageError(f"{file.name}: it is no new file of write group {group}")
                await self._stored.verify(file)
            check_keys(outputs)
            files = {entry.name: manifest.files[entry.name] for entry in inputs}
            gone = await manifest.merge(group, inputs, outputs)
            await self._replaced(files, gone, linger=is_kept(group))

    async def rewrite(
        self,
        group: int,
        outputs: Mapping[FileRange, Sequence[StoreFile]],
        is_kept: Callable[[int], bool] = lambda group: False,
    ) -> None:
        """Put other files, which must be here, in the place of merged files of a write group, each within the blocks
        and the keys of its input; of an input without an output nothing is left. Durable, all of it in one step, when
        it returns; the rest is as for `merge`."""
        manifest = self._stored.manifest
        async with self.lock:
            check_rewritten(manifest.spans(group), manifest.files, outputs)
            for file in chain.from_iterable(outputs.values()):
                if file.name in manifest.files:
                    raise StorageError(f"{file.name}: it is no new file")
                await self._stored.verify(file)
            files = {entry.name: manifest.files[entry.name] for entry in outputs}
            gone = await manifest.rewrite(group, outputs)
            await self._replaced(files, gone, linger=is_kept(group))

    async def _replaced(self, files: Mapping[str, StoreFile], gone: Collection[str], *, linger: bool) -> None:
        """Let go of inputs that others took the place of. `linger`: those that no write group needs stay meanwhile."""
        manifest = self._stored.manifest
        await self._mark()
        for name in files:
            manifest.files.witness(name, None)  # it may not count for its write group any more
        for name in gone:
            known = self._stored.search.known(name)
            self._stored.search.forget(known)
            if linger:
                self._stored.lingering[name] = files[name]
            elif self._marked >= manifest.changes:  # else they go as orphans: an older manifest would miss them
                await self._stored.remove(known)

    async def _rearranged(self, names: Iterable[str], gone: Collection[str]) -> None:
        """Drop what memory holds of replaced files, and forget those that the manifest forgot."""
        self.rewritten += 1
        self.unvouched.update(gone)
        self.unvouched.update(gone)
        await self._mark()
        for name in names:
            self._stored.manifest.files.witness(name, None)  # the file may not count for its write group any more
        for name in gone:  # orphans now: a decided split may still name them
            self._stored.search.forget(self._stored.search.known(name))

    async def _mark(self) -> None:
        try:
            await self._write_mark()
        except OSError as error:  # the change is made, and `vouch` tries again
            log.error("the mark of the queue store could not be written: %s", error)

    async def _write_mark(self) -> None:
        manifest = self._stored.manifest
        assert manifest.identity is not None
        mark = StoreMark(manifest.identity, manifest.changes)
        await self._copy.write()
        await write_mark(self._stored.files, mark)
        self._marked = mark.changes
        self.unvouched.clear()
