"""Checks what an object store holds of a cluster, by what lies in it alone: the list of topics, the chain of each
write group, and every byte of every file that counts. For shared stores and the remote tier alike.

One write group comes after the other, so that no more than one chain is in memory, and of files a window at a time. If
objects are lost, the indexes of all write groups are read once more for their queues, which may have been in several.
The cluster may run meanwhile: what left the store since the chain was read is left out of the report, and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from mainstem.model import slot_of
from mainstem.ports import ObjectStore
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.errors import FormatError, OutOfReach, StorageError
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.queue_store.manifest.database.manifest_database import Contents, WriteGroupPosition
from mainstem.storage.queue_store.manifest.in_memory.spans import FileRange
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.queue_store.reading.stored_files import check_content
from mainstem.storage.remote.chain.chain_format import decode_head
from mainstem.storage.remote.chain.chain_reading import StoredTier, read_chain, whole_object
from mainstem.storage.remote.chain.topic_list_reading import read_topic_list
from mainstem.storage.remote.reading.object_files import TAIL_BYTES
from mainstem.storage.remote.survey.store_survey import folders_of
from mainstem.storage.store_files.object_names import (
    GROUPS,
    TOPICS,
    change_object,
    group_folder,
    head_object,
    object_of,
)
from mainstem.storage.store_files.store_file import StoreFile, has_index_beside, index_path_of
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import (
    CHAIN_ADVICE,
    HEAD_ADVICE,
    KAFKA_INDEX_ADVICE,
    KAFKA_OBJECT_ADVICE,
    OBJECT_ADVICE,
    Finding,
)
from mainstem.storage.verifying.missing_offsets import AFFECTED_PER_FILE_MAX, PresentOffsets
from mainstem.storage.verifying.object_reading import ObjectsAsFiles
from mainstem.storage.verifying.store_check import FINDINGS_MAX, StoreReport, manifest_faults

CHAIN_READS_MAX = 5
"""A running cluster goes on while its chain is read."""


class ClusterProgress(NamedTuple):
    """How far a check is; sizes are those of the write groups that were begun."""

    group: int
    groups: int
    files: int
    files_total: int
    bytes: int
    bytes_total: int


class ClusterReport(NamedTuple):
    """The result of a check of a cluster. Paths of findings are names of objects in the store."""

    cluster_id: str
    report: StoreReport
    topics: Mapping[int, str]
    """Names by number, as the newest list has them."""
    given_up: Sequence[GivenUpFile]
    """Files that were lost, and that readers pass over."""


async def check_cluster(
    store: ObjectStore,
    cluster_id: str,
    jobs: int,
    progress: Callable[[ClusterProgress], None] = lambda progress: None,
) -> ClusterReport:
    """Check a cluster's folder of a store, `jobs` files at a time. Changes nothing. Raises `OutOfReach` while the store
    is out, or refuses."""
    return await _ClusterCheck(StoreFolder(store, cluster_id), cluster_id, jobs, progress).run()


class _ClusterCheck:
    def __init__(
        self, folder: ObjectStore, cluster_id: str, jobs: int, progress: Callable[[ClusterProgress], None]
    ) -> None:
        self._folder = folder
        self._cluster_id = cluster_id
        self._jobs = jobs
        self._progress = progress
        self._at = ClusterProgress(0, 0, 0, 0, 0, 0)
        self._found: list[Finding] = []
        self._left_out = 0
        self._gone = 0
        self._given_up: list[GivenUpFile] = []
        self._supposed: dict[str, int] = {}
        """Of each object that is lost with its index, the write group: the offsets that it had are supposed ones."""

    async def run(self) -> ClusterReport:
        topics: dict[int, str] = {}
        slots: Sequence[int] = ()
        groups = {int(name) async for name in folders_of(self._folder, GROUPS) if name.isdecimal()}
        try:
            known = await read_topic_list(self._folder)
        except OutOfReach:
            raise
        except StorageError as error:
            self._note([self._of_metadata(TOPICS, str(error))])
        else:
            if known is not None:
                topics, slots = {topic.number: topic.name for topic in known.topics}, known.slots
                groups |= set(range(known.write_groups))
            elif groups:
                self._note([self._of_metadata(TOPICS, "there is no list of topics: names and configs are not known")])
        for number, group in enumerate(sorted(groups), 1):
            self._at = self._at._replace(group=number, groups=len(groups))
            self._note(await self._check_group(group))
        await self._leave_out_what_others_have(sorted(groups), slots)
        report = StoreReport(
            files=self._at.files,
            bytes=self._at.bytes,
            gone=self._gone,
            findings=self._found,
            findings_left_out=self._left_out,
            unnamed=(),
            unnamed_left_out=0,
        )
        return ClusterReport(self._cluster_id, report, topics, self._given_up)

    def _note(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            if len(self._found) < FINDINGS_MAX:
                self._found.append(finding)
            else:
                self._left_out += 1

    def _of_metadata(self, place: str, what: str, advice: str = CHAIN_ADVICE) -> Finding:
        path = f"{self._cluster_id}/{place}"
        return Finding(path=path, position=None, what=what.removeprefix(f"{place}: "), advice=advice)

    # --- chains ---------------------------------------------------------------------------------------------

    async def _check_group(self, group: int) -> list[Finding]:
        place = group_folder(group)
        try:
            tier, faults = await self._chain(group)
        except OutOfReach:
            raise
        except StorageError as error:
            return [self._of_metadata(place, f"{error}; what counts is not known, and no file of it was read")]
        if tier is None:
            return faults
        self._given_up += tier.notes.given_up
        where = f"{self._cluster_id}/{place}"
        described = manifest_faults(_as_contents(group, tier), where)
        faults += [self._of_metadata(place, finding.what) for finding in described]
        return faults + await self._check_files(group, tier)

    async def _chain(self, group: int) -> tuple[StoredTier | None, list[Finding]]:
        """The files of a write group that count, and the places at which its chain has lost an object. Raises
        `StorageError`."""
        head, faults = await self._head(group)
        tier = await read_chain(self._folder, group)
        for _ in range(CHAIN_READS_MAX):
            number = tier.position.number if tier is not None else 0
            later = await self._folder.page_for_upkeep(f"{group_folder(group)}/chain", change_object(group, number))
            if not later and head <= number:
                return tier, faults
            again = await read_chain(self._folder, group)
            if again is None or again.position.number == number:
                newest = max([head, *(int(entry.name.rpartition("/")[2]) for entry in later)])
                what = f"is missing, and there is change {newest}: what is read here may be long past"
                return tier, [*faults, self._of_metadata(change_object(group, number + 1), what)]
            tier = again
        return tier, faults

    async def _head(self, group: int) -> tuple[int, list[Finding]]:
        """The change that the head of a chain names; 0: it names none."""
        name = head_object(group)
        try:
            return decode_head(await whole_object(self._folder, name), name, group).number, []
        except ObjectAbsent:
            return 0, []
        except FormatError as error:
            return 0, [self._of_metadata(name, str(error), HEAD_ADVICE)]

    # --- files ----------------------------------------------------------------------------------------------

    async def _check_files(self, group: int, tier: StoredTier) -> list[Finding]:
        found: list[Finding] = []
        files = ObjectsAsFiles(self._folder, group)
        self._at = self._at._replace(
            files_total=self._at.files_total + len(tier.files),
            bytes_total=self._at.bytes_total + sum(file.bytes for _after, _upto, file in tier.files),
        )
        waiting = iter(tier.files)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._jobs):
                    tasks.create_task(self._check_in_turn(files, waiting, found))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if not found:
            return []
        later = await read_chain(self._folder, group)
        still = {file.name for _after, _upto, file in later.files} if later is not None else set()
        self._gone += len({one.name for one in found} - still)
        return await self._as_objects(group, tier, [one for one in found if one.name in still])

    async def _check_in_turn(
        self, files: ObjectsAsFiles, waiting: Iterator[tuple[int, int, StoreFile]], found: list[Finding]
    ) -> None:
        for _after, _upto, file in waiting:
            of_file = await check_file(files, file.name, file, self._read)
            room = max(0, FINDINGS_MAX - len(found))
            found += of_file[:room]
            self._left_out += len(of_file[room:])
            self._at = self._at._replace(files=self._at.files + 1)
            self._progress(self._at)

    def _read(self, size: int) -> None:
        self._at = self._at._replace(bytes=self._at.bytes + size)
        self._progress(self._at)

    async def _as_objects(self, group: int, tier: StoredTier, found: Sequence[Finding]) -> list[Finding]:
        """The findings by their objects, with the offsets that may be lost where nothing else says which."""
        damaged = {one.name for one in found if not one.affected and one.advice != KAFKA_INDEX_ADVICE}
        lost: dict[str, tuple[int, int, StoreFile]] = {}
        present, files = PresentOffsets(), ObjectsAsFiles(self._folder, group, whole_bytes_max=TAIL_BYTES)
        for after, upto, file in tier.files if damaged else ():
            index = await _index(files, file)
            if index is not None:
                present.add(index)
            elif file.name in damaged:
                lost[file.name] = after, upto, file
        told: list[Finding] = []
        for one in found:
            entry = lost.pop(one.name, None) if one.name in damaged and one.advice != KAFKA_INDEX_ADVICE else None
            what, affected = one.what, one.affected
            if entry is not None:
                after, upto, file = entry
                what += f"; it had {file.record_count} records, of blocks ({after}, {upto}] of write group {group}"
                affected = present.missing(file)
            path = f"{self._cluster_id}/{object_of(group, one.path)}"
            if entry is not None:
                self._supposed[path] = group
            told.append(
                Finding(
                    path=path,
                    position=one.position,
                    what=what,
                    advice=KAFKA_OBJECT_ADVICE if one.advice == KAFKA_INDEX_ADVICE else OBJECT_ADVICE,
                    name=one.name,
                    affected=affected,
                )
            )
        return told

    # --- queues that were in several write groups -----------------------------------------------------------

    async def _leave_out_what_others_have(self, groups: Sequence[int], slots: Sequence[int]) -> None:
        """Take from the offsets that lost objects are supposed to have had those that other write groups have: their
        queues have been there. `slots`: the write group of each slot, as far as it is known."""
        supposed = {at: one for at, one in enumerate(self._found) if one.path in self._supposed and one.affected}
        queues = {it.queue_id for one in supposed.values() for it in one.affected}
        for group in groups if queues else ():
            present = await self._present(group, queues)
            for at, one in supposed.items():
                its_group = self._supposed[one.path]
                if its_group != group:
                    here = {it for it in queues if slot_of(it) >= len(slots) or slots[slot_of(it)] == its_group}
                    left = list(present.without(self._found[at].affected, here))
                    self._found[at] = structs.replace(self._found[at], affected=left[:AFFECTED_PER_FILE_MAX])

    async def _present(self, group: int, queues: Collection[int]) -> PresentOffsets:
        """The offsets that a write group has of these queues, as far as its chain can be read."""
        present, files = PresentOffsets(queues), ObjectsAsFiles(self._folder, group, whole_bytes_max=TAIL_BYTES)
        try:
            tier = await read_chain(self._folder, group)
        except OutOfReach:
            raise
        except StorageError:  # it is told
            return present
        for _after, _upto, file in tier.files if tier is not None else ():
            if file.is_merged and not any(file.first_queue <= it <= file.last_queue for it in queues):
                continue
            if (index := await _index(files, file)) is not None:
                present.add(index)
        return present


async def _index(files: ObjectsAsFiles, file: StoreFile) -> ExtentIndex | None:
    """The index of a file; None: it cannot be read, or is not this file's. Raises `OutOfReach`."""
    path = index_path_of(file.name)
    segment_bytes = file.bytes if has_index_beside(file.name) else None
    try:
        index = await load_index(await files.open(path), path, file.name, segment_bytes)
        check_content(index, file)
    except OutOfReach:
        raise
    except (StorageError, OSError):
        return None
    return index


def _as_contents(group: int, tier: StoredTier) -> Contents:
    """A chain as what a manifest says."""
    entries = [FileRange(at, group, after, upto, file.name) for at, (after, upto, file) in enumerate(tier.files)]
    return Contents(
        identity=None,
        changes=tier.position.number,
        files=[file for _after, _upto, file in tier.files],
        ranges=entries,
        positions={group: WriteGroupPosition(tier.position.upto, 0)},
        dropped=set(),
        seen={},
    )
