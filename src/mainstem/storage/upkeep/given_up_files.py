"""An operator gives up files of the object store that are lost for good: readers then pass over what they had.

A file goes only when its bytes were looked for just now and are lost, and when no replica has its records on a disk of
its own. The leader of its write group has the log say so, in one change: the file counts no more, as of any that leaves
the store, and who gave it up when stays noted. So all replicas pass over the same offsets, and neither merges nor
compactions wait for the file. It is final. The rest of its objects is deleted, and one that is restored later is read
by nobody."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

import numpy

from mainstem.kernel import crc32c
from mainstem.model import Topic, topic_number_of
from mainstem.ports import ObjectStore
from mainstem.rpc.errors import RpcError
from mainstem.rpc.messages.repair import FETCH_STRETCHES, FetchStretches
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.rpc.other_nodes import Calls
from mainstem.storage.errors import OutOfReach, StorageError
from mainstem.storage.extents.extent_index import QueueIds
from mainstem.storage.queue_store.copies.file_mending import STRETCH
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_state import RECORDED
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import REMOTE_CLASS_SUFFIX, StoreFile
from mainstem.storage.verifying.file_check import check_file
from mainstem.storage.verifying.findings import KAFKA_INDEX_ADVICE
from mainstem.storage.verifying.object_reading import ObjectsAsFiles

log = logging.getLogger(__name__)

GIVEN_UP_MAX = 10_000
"""Of a write group: each is in every image of what counts. A cluster that has lost more has lost the store."""

FAULT_LENGTH_MAX = 300

CALL_SECONDS_MAX = 60.0


class NotLost(StorageError):
    """A file is not given up; the message says why, and what to do."""


class KeepsCopies(Protocol):
    """Replicas that may have the records of a file on disks of their own."""

    async def holder(self, group: int, after: int, upto: int, file: StoreFile, without: Collection[int]) -> str:
        """The nodes that have some of a file's records, or cannot be asked and may have them; empty: none."""


class GivenUpFiles:
    """Judges what may be given up, and has the log say so."""

    def __init__(
        self,
        store: ObjectStore,
        history: RemoteHistory,
        tier: RemoteTier,
        led_by: Callable[[int], str],
        is_held: Callable[[str], bool],
        copies: KeepsCopies,
    ) -> None:
        """`store`: the cluster's folder. `led_by`: empty for a write group that this node leads, else why it cannot
        change it. `is_held`: whether work under way needs a file."""
        self._store = store
        self._history = history
        self._tier = tier
        self._led_by = led_by
        self._is_held = is_held
        self._copies = copies

    async def judge(self, names: Sequence[str], by: str, without: Collection[int]) -> list[tuple[int, GivenUpFile]]:
        """The files of these names, or of these objects, with their write groups, as they would be noted. Raises
        `NotLost` for the first that is not lost, and `StorageError`."""
        found: dict[str, tuple[int, GivenUpFile]] = {}
        for given in names:
            group, file = await self._find(given)
            if file.name not in found:
                found[file.name] = group, await self._judged(group, file, by, without)
        for group in {group for group, _one in found.values()}:
            more = sum(group == of for of, _one in found.values())
            if len(self._tier.given_up(group)) + more > GIVEN_UP_MAX:
                raise NotLost(f"write group {group}: {GIVEN_UP_MAX} files were given up, and no more can be")
        return list(found.values())

    async def give_up(self, files: Iterable[tuple[int, GivenUpFile]]) -> None:
        """Have the logs of write groups say that these files are given up. Raises `StorageError` at the first write
        group that does not take it; those before it are given up then."""
        of: dict[int, list[GivenUpFile]] = {}
        for group, one in files:
            of.setdefault(group, []).append(one)
        for group, lost in of.items():
            outcome = await self._tier.record(group, given_up=lost)
            if outcome != RECORDED:
                raise StorageError(f"write group {group}: {outcome}")
            for one in lost:
                log.warning(
                    "write group %d: %s is given up by %s, with %d records of blocks (%d, %d]: %s",
                    group, one.name, one.by, one.record_count, one.after, one.upto, one.fault,
                )  # fmt: skip

    async def _find(self, given: str) -> tuple[int, StoreFile]:
        files = self._tier.manifest.files
        file = files.get(given)
        if file is None:
            async for one in self._named(given):
                file = one
        if file is None:
            raise NotLost(
                f"{given}: no file that counts has this name, and none this object. `mainstem store verify` names what "
                "is damaged, `mainstem store status` what readers have met"
            )
        group = min(self._tier.manifest.counts_for(file.name), default=None)
        if group is None or not self._tier.counts(group, file.name):
            raise NotLost(f"{given}: it counts no more, and nobody reads it")
        return group, file

    async def _named(self, given: str) -> AsyncIterator[StoreFile]:
        """The file that an object belongs to; `given` may begin with the folder of the cluster, or with more."""
        _before, slash, path = f"/{given}".rpartition("/groups/")
        if not slash:
            return
        async for page in self._tier.manifest.files.each_page():
            for at in page.alive.nonzero()[0].tolist():
                file = page.rows.file(at)
                for group in self._tier.manifest.counts_for(file.name):
                    if f"groups/{path}" in file_objects(group, file.name):
                        yield file
                        return

    async def _judged(self, group: int, file: StoreFile, by: str, without: Collection[int]) -> GivenUpFile:
        name = file.name
        if refusal := self._led_by(group):
            raise NotLost(f"{name}: {refusal}")
        if self._is_held(name):
            raise NotLost(f"{name}: a merge, a compaction or an upload that is under way needs it; try again")
        try:
            found = await check_file(ObjectsAsFiles(self._store, group), name, file)
        except OutOfReach as error:
            raise NotLost(f"{name}: the object store does not say whether it is lost: {error}") from error
        lost = [one for one in found if one.advice != KAFKA_INDEX_ADVICE]
        if not lost:
            await self._history.whole_again(name, "every byte of its objects was read, and passes its checks")
            raise NotLost(f"{name}: it is not lost, every byte of it was read and passes its checks")
        after, upto = self._blocks(group, name)
        if holder := await self._copies.holder(group, after, upto, file, without):
            raise NotLost(f"{name}: {holder}")
        first, last = (file.first_queue, file.last_queue) if file.group >= 0 else (0, 2**63 - 1)
        fault = f"{lost[0].path}: {lost[0].what}"[:FAULT_LENGTH_MAX]
        return GivenUpFile(
            name, after, upto, file.record_count, file.batch_bytes, first, last, self._tier.now_ms(), by, fault
        )

    def _blocks(self, group: int, name: str) -> tuple[int, int]:
        entries = [entry for entry in self._tier.manifest.entries(name) if entry.group == group]
        return min(entry.after for entry in entries), max(entry.upto for entry in entries)


class LocalAndOtherCopies:
    """`KeepsCopies` of a remote tier: files that were uploaded stay on disk 2 of each replica for a while. Their class
    does not tell which: a topic may have asked for the tier when they were there already."""

    def __init__(
        self,
        node_id: int,
        store: QueueStore,
        others: Callable[[int], Iterable[int]],
        calls: Calls | None,
        topics: Callable[[], Iterable[Topic]],
    ) -> None:
        """`others`: the nodes that have a write group besides this one."""
        self._node_id = node_id
        self._store = store
        self._others = others
        self._calls = calls
        self._topics = topics

    async def holder(self, group: int, after: int, upto: int, file: StoreFile, without: Collection[int]) -> str:
        for entry in self._store.manifest.ranges(group):
            if entry.after < upto and entry.upto > after and await self._has_here(entry.name, file):
                return f"disk 2 of node {self._node_id} has records of the same blocks in {entry.name}: try again later"
        for node_id in sorted(set(self._others(group)) - {self._node_id, *without}):
            try:
                has = await self._has(node_id, group, after, upto, file)
            except (RpcError, ValueError) as error:
                return (
                    f"node {node_id} may have its records, and cannot be asked ({error}): start that node, or give the "
                    f"file up --without {node_id} if that node is lost for good"
                )
            if has:
                return f"node {node_id} has records of the same blocks on its disk 2, and serves them when it leads"
        return ""

    async def _has_here(self, name: str, file: StoreFile) -> bool:
        """Whether a file of disk 2 that has some of the blocks may have records of a lost one."""
        own = self._store.manifest.files.get(name)
        if own is None or name in self._store.damaged:
            return False
        if own.retention_class.endswith(REMOTE_CLASS_SUFFIX):
            return True
        try:
            index = await self._store.stored.open_files.index(self._store.stored.search.known(name), keep=False)
        except (StorageError, OSError):  # noted there as damaged
            return False
        return self._may_be_of(file, index.queues()[0])

    async def _has(self, node_id: int, group: int, after: int, upto: int, file: StoreFile) -> bool:
        if self._calls is None:
            return False
        request = FetchStretches(group, after, upto)
        async with aclosing(
            self._calls.stream(node_id, FETCH_STRETCHES, request, timeout_seconds=CALL_SECONDS_MAX)
        ) as replies:
            async for message, attachment in replies:
                if not isinstance(attachment, (bytes, bytearray, memoryview)) or crc32c(attachment) != message.crc:
                    raise ValueError("what it says fails its checksum")
                if self._may_be_of(file, numpy.unique(numpy.frombuffer(attachment, STRETCH)["queue_id"])):
                    return True
        return False

    def _may_be_of(self, file: StoreFile, queue_ids: QueueIds) -> bool:
        """Whether one of these queues may be in a lost file."""
        tiered = {topic.number for topic in self._topics() if topic.settings.remote_storage_enable}
        if file.group >= 0:
            queue_ids = queue_ids[(queue_ids >= file.first_queue) & (queue_ids <= file.last_queue)]
        return any(topic_number_of(queue_id) in tiered for queue_id in queue_ids.tolist())


class NoCopies:
    """`KeepsCopies` of a shared store, which has the only one."""

    async def holder(self, group: int, after: int, upto: int, file: StoreFile, without: Collection[int]) -> str:
        return ""
