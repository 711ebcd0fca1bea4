"""Says what an object store holds, by what lies in it alone: clusters, their write groups and topics, and up to which
offset each partition is there. For a cluster whose disks 1 are lost, and for whoever wants to know before they are.

The survey finds clusters and write groups by listing, folder by folder. The chain says which files count
(`chain_reading.py`), the list of topics their names (`topic_list_reading.py`), and the index of a file which offsets
lie in it. The survey reads these whole, a thousandth of the bytes of the files, and writes nothing.

It reports what is damaged or missing as a fault of its place, and goes on with the rest. It ends where the store is
out, or refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import NamedTuple

import numpy

from mainstem.model import partition_of, topic_number_of
from mainstem.ports import ObjectRange, ObjectStore
from mainstem.storage.errors import OutOfReach, StorageError
from mainstem.storage.extents.extent_format import FRAME_BYTES
from mainstem.storage.extents.extent_index import ExtentIndex
from mainstem.storage.object_stores.errors import ObjectAbsent
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.queue_store.reading.open_files import load_index
from mainstem.storage.queue_store.reading.stored_files import check_content
from mainstem.storage.remote.chain.chain_reading import StoredTier, read_chain
from mainstem.storage.remote.chain.owner_record import OwnerRecord, read_owner
from mainstem.storage.remote.chain.topic_list_format import ListedTopic, TopicList
from mainstem.storage.remote.chain.topic_list_reading import read_topic_list
from mainstem.storage.remote.reading.object_files import TAIL_BYTES
from mainstem.storage.store_files.object_names import GROUPS, TOPICS, object_of
from mainstem.storage.store_files.store_file import StoreFile, has_index_beside, index_path_of, path_of

INDEXES_AT_ONCE = 8
"""Each is a quarter of a mebibyte, and waits for the store twice."""

BEHIND_SLASH = "0"
"""The character behind the slash: a name that ends in it comes behind all that lies in the folder of the name."""


class Fault(NamedTuple):
    """Something that is not as it should be."""

    place: str
    what: str


class GroupSurvey(NamedTuple):
    """The records that the store has of a write group."""

    group: int
    changes: int
    """The number of the last change; 0: the group has nothing in the store, or its chain cannot be read."""
    upto: int
    """All blocks up to here were considered."""
    files: int
    file_bytes: int
    record_count: int
    min_timestamp: int
    """Of all batches, ms; -1: there is none."""
    max_timestamp: int


class PartitionSurvey(NamedTuple):
    """The records that the store has of a partition."""

    partition: int
    first_offset: int
    end_offset: int
    """Behind the last one."""
    batch_bytes: int
    record_count: int
    max_timestamp: int


class TopicSurvey(NamedTuple):
    """The records that the store has of a topic."""

    number: int
    listed: ListedTopic | None
    """None: the list of topics lacks it."""
    deleted: bool
    """Whether the list knows that it was deleted."""
    partitions: tuple[PartitionSurvey, ...]
    """Those of which the store has anything."""


class ClusterSurvey(NamedTuple):
    """The records that the store has of a cluster."""

    cluster_id: str
    topics_version: int
    """Of the list of topics; 0: there is none."""
    groups: tuple[GroupSurvey, ...]
    topics: tuple[TopicSurvey, ...]
    """Those that are listed, and those of which the store has anything, by their numbers."""
    faults: tuple[Fault, ...]
    tiers: Mapping[int, StoredTier]
    """Per write group what counts, where its chain can be read."""
    write_groups: int
    """As the list of topics says; 0: there is none."""
    next_number: int
    """Of the next topic, as the list says; 0: there is none."""
    slots: tuple[int, ...] = ()
    """The write group of each slot, as the list says; empty: they are in turns."""
    owner: OwnerRecord | None = None
    """Of the cluster, or of an adoption; None: nothing says whether it lives, or that is damaged."""


async def cluster_ids(store: ObjectStore) -> list[str]:
    """The clusters of a store. Raises `StorageError`."""
    return [
        name
        async for name in folders_of(store, "")
        if [folder async for folder in folders_of(StoreFolder(store, name), "") if folder in (GROUPS, TOPICS)]
    ]


def _nobody(_name: str, _index: ExtentIndex) -> None:
    return


async def survey(
    store: ObjectStore, cluster_id: str, each: Callable[[str, ExtentIndex], None] = _nobody
) -> ClusterSurvey:
    """The records that the store has of a cluster. `each` hears of each file: the object, in the cluster's folder, in
    which its batches lie, and its index. Raises `StorageError` while the store is out, or refuses."""
    folder = StoreFolder(store, cluster_id)
    faults: list[Fault] = []
    topics = await _topic_list(folder, faults)
    found = {int(name) async for name in folders_of(folder, GROUPS) if name.isdecimal()}
    groups: list[GroupSurvey] = []
    tiers: dict[int, StoredTier] = {}
    parts = _Parts()
    for group in sorted(found | set(range(topics.write_groups if topics is not None else 0))):
        tier = await _tier(folder, group, faults)
        groups.append(_of_group(group, tier))
        if tier is not None:
            tiers[group] = tier
            await _add_files(folder, group, [file for _after, _upto, file in tier.files], parts, each, faults)
    if topics is None and any(group.files for group in groups) and not any(it.place == TOPICS for it in faults):
        faults.append(Fault(TOPICS, "there is no list of topics: names and configs of topics are not known"))
    version, next_number, write_groups = topics[:3] if topics is not None else (0, 0, 0)
    return ClusterSurvey(
        cluster_id,
        version,
        tuple(groups),
        parts.topics(topics),
        tuple(faults),
        tiers,
        write_groups,
        next_number,
        topics.slots if topics is not None else (),
        (await read_owner(folder)).record,
    )


async def folders_of(store: ObjectStore, folder: str) -> AsyncIterator[str]:
    """The names of the folders in a folder, one request each, however many objects they have."""
    prefix = f"{folder}/" if folder else ""
    page = await store.page_for_upkeep(folder)
    while page:
        last = page[-1].name
        seen: set[str] = set()
        for entry in page:
            name, slash, _rest = entry.name.removeprefix(prefix).partition("/")
            if slash and name not in seen:
                seen.add(name)
                yield name
                last = f"{prefix}{name}{BEHIND_SLASH}"
        page = await store.page_for_upkeep(folder, max(last, page[-1].name))


async def _topic_list(folder: ObjectStore, faults: list[Fault]) -> TopicList | None:
    try:
        return await read_topic_list(folder)
    except OutOfReach:
        raise
    except StorageError as error:
        faults.append(Fault(TOPICS, str(error)))
        return None


async def _tier(folder: ObjectStore, group: int, faults: list[Fault]) -> StoredTier | None:
    try:
        return await read_chain(folder, group)
    except OutOfReach:
        raise
    except StorageError as error:
        faults.append(Fault(f"{GROUPS}/{group}", str(error)))
        return None


def _of_group(group: int, tier: StoredTier | None) -> GroupSurvey:
    if tier is None:
        return GroupSurvey(group, 0, 0, 0, 0, 0, -1, -1)
    files = [file for _after, _upto, file in tier.files]
    return GroupSurvey(
        group,
        tier.position.number,
        tier.position.upto,
        len(files),
        sum(file.bytes for file in files),
        sum(file.record_count for file in files),
        min((file.min_timestamp for file in files if file.min_timestamp >= 0), default=-1),
        max((file.max_timestamp for file in files), default=-1),
    )


async def _add_files(
    folder: ObjectStore,
    group: int,
    files: Iterable[StoreFile],
    parts: _Parts,
    each: Callable[[str, ExtentIndex], None],
    faults: list[Fault],
) -> None:
    """Add what lies in files, by their indexes. A file that left the tier meanwhile is no fault."""
    left = iter(files)
    absent: dict[str, ObjectAbsent] = {}

    async def work() -> None:
        for file in left:
            try:
                index = await _index(folder, group, file)
                parts.add(index)
                each(object_of(group, path_of(file.name)), index)
            except OutOfReach:
                raise
            except ObjectAbsent as error:
                absent[file.name] = error
            except StorageError as error:
                faults.append(Fault(object_of(group, index_path_of(file.name)), str(error)))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(INDEXES_AT_ONCE):
                tasks.create_task(work())
    except ExceptionGroup as group_of_errors:
        raise group_of_errors.exceptions[0] from None
    tier = await read_chain(folder, group) if absent else None
    for _after, _upto, file in tier.files if tier is not None else ():
        if file.name in absent:
            faults.append(Fault(object_of(group, index_path_of(file.name)), str(absent[file.name])))


async def _index(folder: ObjectStore, group: int, file: StoreFile) -> ExtentIndex:
    """Raises `StorageError` where it is damaged or another file's."""
    path = index_path_of(file.name)
    name = object_of(group, path)
    beside = has_index_beside(file.name)
    size = (await folder.info(name)).size_bytes if beside else file.bytes
    tail = max(0, size - TAIL_BYTES)
    head_range = [ObjectRange(0, min(FRAME_BYTES, tail))] if tail else []
    *head, end = await folder.read(name, [*head_range, ObjectRange(tail, size - tail)])
    read = _Read(folder, name, size, bytes(head[0]) if head else b"", bytes(end))
    index = await load_index(read, name, file.name, file.bytes if beside else None)
    check_content(index, file)
    return index


class _Read:
    """An object of which beginning and end were read."""

    def __init__(self, folder: ObjectStore, name: str, size: int, head: bytes, end: bytes) -> None:
        self._folder = folder
        self._name = name
        self._size = size
        self._head = head
        self._end = end

    async def size(self) -> int:
        return self._size

    async def read(self, position: int, length: int) -> bytes:
        length = max(0, min(length, self._size - position))
        tail = self._size - len(self._end)
        if position >= tail:
            return self._end[position - tail : position - tail + length]
        if position + length <= len(self._head):
            return self._head[position : position + length]
        (content,) = await self._folder.read(self._name, [ObjectRange(position, length)])
        return bytes(content)


class _Parts:
    """The findings of each queue."""

    def __init__(self) -> None:
        self._queues: dict[int, PartitionSurvey] = {}

    def add(self, index: ExtentIndex) -> None:
        rows = index.rows
        if not len(rows):
            return
        begins = numpy.flatnonzero(numpy.diff(rows["queue_id"], prepend=~rows["queue_id"][0]) != 0)
        ends = numpy.append(begins[1:], len(rows)) - 1
        sums = [numpy.add.reduceat(rows[name].astype(numpy.int64), begins) for name in ("length", "record_count")]
        newest = numpy.maximum.reduceat(rows["max_timestamp"], begins)
        for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            queue_id = int(rows["queue_id"][begin])
            self._add(
                queue_id,
                PartitionSurvey(
                    partition_of(queue_id),
                    int(rows["base_offset"][begin]),
                    int(rows["last_offset"][end]) + 1,
                    int(sums[0][at]),
                    int(sums[1][at]),
                    int(newest[at]),
                ),
            )

    def _add(self, queue_id: int, more: PartitionSurvey) -> None:
        known = self._queues.get(queue_id)
        self._queues[queue_id] = more if known is None else _together(known, more)

    def topics(self, listed: TopicList | None) -> tuple[TopicSurvey, ...]:
        known = {topic.number: topic for topic in listed.topics} if listed is not None else {}
        found: dict[int, list[PartitionSurvey]] = {number: [] for number in known}
        for queue_id, part in sorted(self._queues.items()):
            found.setdefault(topic_number_of(queue_id), []).append(part)
        return tuple(
            TopicSurvey(
                number,
                known.get(number),
                listed is not None and number not in known and number < listed.next_number,
                tuple(parts),
            )
            for number, parts in sorted(found.items())
        )


def _together(one: PartitionSurvey, other: PartitionSurvey) -> PartitionSurvey:
    return PartitionSurvey(
        one.partition,
        min(one.first_offset, other.first_offset),
        max(one.end_offset, other.end_offset),
        one.batch_bytes + other.batch_bytes,
        one.record_count + other.record_count,
        max(one.max_timestamp, other.max_timestamp),
    )
