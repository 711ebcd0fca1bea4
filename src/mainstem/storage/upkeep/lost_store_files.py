"""An operator gives up files of this node's own disk 2 that are lost for good: readers then pass over what they had.

Only where no other node has a write group of the file: a replica mends it otherwise (`repair/file_repair.py`). A file
goes only when its bytes were looked for just now and are lost. It is noted on disk 1 first; then it leaves the manifest
as files do that retention drops. From there on readers go on with the next offset that there is, and where a queue has
none, with a batch without records up to its end, as behind files of the object store (`given_up_files.py`). Log starts
stay. It is final: a file that is restored later is one that nobody names. If the file was uploaded, only a copy is
lost: it goes and nothing is noted, since readers are served from the remote tier, before and after.

    given_up_files    on disk 1, JSON: which files, who gave them up and when, and what was found
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from mainstem.model import Sample
from mainstem.ports import Clock, Files
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.disks.notes_for_people import read_notes, write_notes
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.store_files.store_file import StoreFile, path_of
from mainstem.storage.upkeep.given_up_files import FAULT_LENGTH_MAX, GIVEN_UP_MAX, NotLost
from mainstem.storage.upkeep.remote_files import RemoteFiles
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import KAFKA_INDEX_ADVICE

log = logging.getLogger(__name__)

NAME = "given_up_files"

IN_TIER = "; the remote tier has all of its records"


class NotedFile(msgspec.Struct, frozen=True):
    """A file's share of one write group."""

    group: int
    file: GivenUpFile


class LostStoreFiles:
    """Judges which files of disk 2 may be given up, and lets them go. Make it with `open`."""

    def __init__(
        self,
        write_files: Files,
        store_files: Files,
        store: QueueStore,
        clock: Clock,
        tier: RemoteFiles,
        noted: Sequence[NotedFile],
    ) -> None:
        """`write_files`, `store_files`: disks 1 and 2; `tier`: what the remote tier has, if there is one."""
        self._write_files = write_files
        self._store_files = store_files
        self._store = store
        self._clock = clock
        self._tier = tier
        self._noted = list(noted)
        self._turn = asyncio.Lock()
        """Held while files are noted and dropped: requests that come together would lose each other's notes."""

    @classmethod
    async def open(
        cls, write_files: Files, store_files: Files, store: QueueStore, clock: Clock, tier: RemoteFiles
    ) -> LostStoreFiles:
        """Raises `FormatError` when the notes cannot be read, OSError."""
        noted = await read_notes(
            write_files, NAME, list[NotedFile],
            "It says which lost files of disk 2 were given up: restore it, or remove it; without it readers wait at "
            "the ends of partitions whose last records were in such files",
        )  # fmt: skip
        return cls(write_files, store_files, store, clock, tier, noted)

    # --- what was given up ----------------------------------------------------------------------------------

    def may_have_lost(self, group: int, queue_id: int) -> bool:
        """Whether files that were given up may have had records of a queue."""
        return any(
            one.group == group and one.file.first_queue <= queue_id <= one.file.last_queue for one in self._noted
        )

    def given_up(self) -> Sequence[NotedFile]:
        """The oldest first."""
        return self._noted

    def names(self, given: str) -> str | None:
        """The file of disk 2 that counts and has this name, or this path below `store_dir`; None: there is none."""
        files = self._store.manifest.files
        if files.get(given) is not None:
            return given
        _directory, _, name = given.partition("/")
        return name if files.get(name) is not None and path_of(name) == given else None

    # --- giving up ------------------------------------------------------------------------------------------

    async def judge(
        self,
        name: str,
        by: str,
        others: Callable[[int], Collection[int]],
        is_held: Callable[[str], bool],
    ) -> list[tuple[int, GivenUpFile]]:
        """A file as it would be noted, for each write group; one of which the remote tier has all records is not.
        `others`: the other nodes that have a write group; `is_held`: whether work under way needs a file. Raises
        `NotLost`, `StorageError`, OSError."""
        manifest = self._store.manifest
        file = manifest.files.get(name)
        groups = sorted(manifest.counts_for(name))
        if file is None or not groups:
            raise NotLost(f"{name}: it counts no more, and nobody reads it")
        for group in groups:
            if nodes := sorted(others(group)):
                raise NotLost(
                    f"{name}: node {nodes[0]} has write group {group}, too, and mends the file as soon as it can be "
                    "asked. If it is lost for good, have another node take its place first (mainstem cluster replace)"
                )
        if is_held(name):
            raise NotLost(f"{name}: a merge, a compaction or an upload that is under way needs it; try again")
        found = await check_file(self._store_files, name, file)
        lost = [one for one in found if one.advice != KAFKA_INDEX_ADVICE]
        if not lost:
            self._store.damaged.whole_again(name, "every byte of it was read, and passes its checks")
            raise NotLost(f"{name}: it is not lost, every byte of it was read and passes its checks")
        fault = f"{lost[0].path}: {lost[0].what}"[:FAULT_LENGTH_MAX]
        if self._is_in_tier(file):
            fault = f"{fault[: FAULT_LENGTH_MAX - len(IN_TIER)]}{IN_TIER}"
            file = msgspec.structs.replace(file, record_count=0, batch_bytes=0)
        elif len(self._noted) + len(groups) > GIVEN_UP_MAX:
            raise NotLost(f"{GIVEN_UP_MAX} files were given up, and no more can be: restore disk 2 from a copy")
        return [(group, self._note(group, file, by, fault)) for group in groups]

    def _is_a_copy(self, name: str) -> bool:
        """Whether the remote tier has what a file that counts had."""
        file = self._store.manifest.files.get(name)
        return file is not None and self._is_in_tier(file)

    def _is_in_tier(self, file: StoreFile) -> bool:
        """Whether a file that counts in the remote tier is an upload of this one, by all that is said of both: the
        content of the one is lost, and the other may be out of reach."""
        manifest, upto = self._tier.manifest, self._tier.upto(file.group) if file.is_merged else -1
        for entry in self._store.manifest.entries(file.name):
            for span in manifest.spans(entry.group).overlapping(entry.after, min(entry.upto, upto)):
                if span.upto > upto:
                    break
                files = map(manifest.files.get, (one.name for one in span))
                if any(one is not None and one.content == file.content for one in files):
                    return True
        return False

    def _note(self, group: int, file: StoreFile, by: str, fault: str) -> GivenUpFile:
        entries = [entry for entry in self._store.manifest.entries(file.name) if entry.group == group]
        first, last = (file.first_queue, file.last_queue) if file.group >= 0 else (0, 2**63 - 1)
        after, upto = min(entry.after for entry in entries), max(entry.upto for entry in entries)
        return GivenUpFile(
            file.name, after, upto, file.record_count, file.batch_bytes, first, last, self._clock.now_ms(), by, fault
        )

    async def give_up(self, files: Iterable[tuple[int, GivenUpFile]]) -> None:
        """Note these files, then have them count no more. Raises `StorageError` for those that work under way has come
        to need: they are noted, and count. Raises OSError when disk 1 takes no note: then nothing is given up."""
        async with self._turn:
            await self._note_and_drop([NotedFile(group, file) for group, file in files])

    async def _note_and_drop(self, new: Sequence[NotedFile]) -> None:
        names = {one.file.name for one in new}
        lost = [one for one in new if not self._is_a_copy(one.file.name)]
        if lost:
            await self._save([*(one for one in self._noted if one.file.name not in names), *lost])
        left = names - set(await self._store.retention.drop_lost(sorted(names)))
        for one in new:
            if one.file.name not in left:
                log.warning(
                    "write group %d: %s of disk 2 is given up by %s, with %d records of blocks (%d, %d]: %s",
                    one.group, one.file.name, one.file.by, one.file.record_count, one.file.after, one.file.upto,
                    one.file.fault,
                )  # fmt: skip
        if left:
            raise StorageError(f"{', '.join(sorted(left))}: work that is under way needs it; try again")

    async def _save(self, noted: Sequence[NotedFile]) -> None:
        await write_notes(self._write_files, NAME, noted)
        self._noted = list(noted)

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_queue_store_given_up_files",
            "gauge",
            "Files of disk 2 that were lost and given up",
            len({one.file.name for one in self._noted}),
        )
