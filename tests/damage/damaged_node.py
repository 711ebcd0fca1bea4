"""A whole node alone, on simulated disks, whose files can be damaged between two of its lives.

Two lives make its files: each creates a topic, publishes, splits a part, and checkpoints; the second one merges what it
has split so far, into queue segments and packed files, and splits some more. `Directories` are what the disks hold
then; `fate` starts a node on them and says what came of it.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy
from tests.fakes.files import SimulatedFiles
from tests.fakes.simulated_loop import SimulatedLoop
from tests.fakes.splitting.run_target import dying_writers
from tests.simulation.merger import Mergers
from tests.storage.small_node import new_batch

from mainstem.errors import MainstemError
from mainstem.model import NewTopic, Node, Outcome, QueueRead
from mainstem.nameserver.config import NameserverConfig
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts
from mainstem.node.node_roles import Roles
from mainstem.pipeline.slices.journal_slice import places_of
from mainstem.pipeline.slices.split_slice import split_slice
from mainstem.rpc.handlers import Handlers
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.encoding.format import PAGE_BYTES, SegmentHeader
from mainstem.storage.journal.segments.segment_files import segment_path
from mainstem.storage.merging.merge_lines import MergeLines
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.role import Storage

PATIENCE_SECONDS = 600.0
BATCHES = 24
SEGMENT_BYTES = 16 * 1024
CONFIGS = {"topic-0": {"segment.bytes": "4000"}, "topic-1": {}}
"""The queues of the first topic get queue segments, those of the second one packed files."""
LINES = MergeLines(packed_bytes=8_000, level_one_bytes=8_000, wait_bytes_max=8_000)

Content = dict[int, list[bytes]]
"""Queue id → its batches, from the behind the offset on."""


@dataclass
class Directories:
    disk1: dict[str, bytes]
    disk2: dict[str, bytes]
    manifest: dict[str, bytes]
    """The files of sqlite, which lie on disk 1."""
    content: Content = field(default_factory=dict)
    """The records acknowledged, and must be there."""

    def copy(self) -> Directories:
        return Directories(dict(self.disk1), dict(self.disk2), dict(self.manifest), self.content)

    def names(self) -> list[str]:
        return [*self.disk1, *self.disk2, *self.manifest]

    def said_in(self, name: str) -> bytes | None:
        """The content of a file; None: it is not there, or is a log of sqlite's that says nothing."""
        content = self._get(name)
        return content or None if name.endswith("-wal") else content

    def _get(self, name: str) -> bytes | None:
        return next((tree[name] for tree in (self.disk1, self.disk2, self.manifest) if name in tree), None)

    def tree(self, name: str) -> dict[str, bytes]:
        """The place of a file."""
        return next(tree for tree in (self.disk1, self.disk2, self.manifest) if name in tree)


class Fate(NamedTuple):
    """The fate of a node."""

    refused: str = ""
    """Why it did not start; empty: it did."""
    unread: tuple[str, ...] = ()
    """Of each queue that could not be read to its end, why."""
    changed: tuple[str, ...] = ()
    """Files that a start that refused has changed, made or removed."""
    wrong: tuple[str, ...] = ()
    """The records served that differ from those acknowledged, or are missing without a word."""


class DamagedNode:
    """One node on some directories; `node_id` tells it from its neighbour."""

    def __init__(self, place: Path, directories: Directories, node_id: int, seed: int) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self._place = place
        self._node_id = node_id
        self._rng = random.Random(seed)
        self.disk1, self.disk2 = SimulatedFiles(seed), SimulatedFiles(seed + 1)
        for disk, tree in ((self.disk1, directories.disk1), (self.disk2, directories.disk2)):
            for name, content in tree.items():
                disk.put(name, content)
        for name, content in directories.manifest.items():
            (place / name).write_bytes(content)
        self._stack = AsyncExitStack()
        self.roles: Roles
        self.storage: Storage
        self.serving: Storage | None = None
        self.is_handing_in = False
        self.manifest_path = str(place / "manifest.sqlite")

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        config = NodeConfig(
            node_id=self._node_id,
            nameserver=NameserverConfig(node_id=self._node_id, write_groups=1, log_bytes_max=2048),
            storage=StorageConfig(write_cache_bytes=0, prune_seconds=1.0, retention_check_seconds=1e9),
            journal=JournalConfig(segment_bytes=SEGMENT_BYTES, pool_segments=1, segment_age_seconds=1e6),
            queue_store=QueueStoreConfig(read_cache_bytes=0),
        )
        try:
            self.roles = await Roles.open(
                config,
                Node(node_id=self._node_id, host="127.0.0.1", port=9092),
                NodePorts(
                    clock=loop,
                    randomness=lambda: random.Random(self._rng.random()),
                    new_id=lambda: str(self._rng.random()),
                    write_files=self.disk1,
                    store_files=self.disk2,
                    write_dir=self._place,
                    store_dir=self._place,
                    handlers=Handlers(),
                    connect=None,
                ),
                self._stack,
            )
        except BaseException:
            await self._stack.aclose()
            raise
        self.storage = self.serving = self.roles.storage

    async def stop(self) -> None:
        await self._stack.aclose()

    def directories(self, content: Content) -> Directories:
        """Of a node that has stopped."""
        disk1, disk2 = ({path: disk.content(path) for path in disk.paths()} for disk in (self.disk1, self.disk2))
        manifest = {path.name: path.read_bytes() for path in sorted(self._place.glob("manifest*"))}
        return Directories(disk1, disk2, manifest, content)

    # --- a life -------------------------------------------------------------------------------------------

    async def work(self, topic: str, content: Content, *, merges: bool) -> None:
        """Publish to a new topic and to all before it, half of it split; what is acknowledged goes into `content`.
        `merges`: a sixth is merged."""
        nameserver, storage = self.roles.nameserver, self.roles.storage
        (created,) = await nameserver.administration.create_topics(
            [NewTopic(topic, 2, 1, {"retention.ms": "-1"} | CONFIGS[topic])]
        )
        assert not isinstance(created, Exception), created
        await storage.queues.settle(0, nameserver.lookups.topics(), nameserver.lookups.was_deleted)
        queue_ids = [it.queue_id(partition) for it in nameserver.lookups.topics() for partition in range(it.partitions)]
        for number in range(BATCHES):
            queue_id = queue_ids[number % len(queue_ids)]
            batch = new_batch(queue_id, 1500 - 8 * self._node_id, timestamp=1000 + len(content.get(queue_id, [])))
            (result,) = await storage.messages.append([batch], -1)
            assert result.outcome is Outcome.OK, result
            content.setdefault(queue_id, []).append(bytes(batch.data)[16:])
            if merges and number == BATCHES // 6:
                await self._split()
                await self._merge()
            if number == BATCHES // 2:
                await self._split()
        await storage.checkpointer.checkpoint()
        await asyncio.sleep(5.0)

    async def _split(self) -> None:
        log = self.roles.storage.split_log
        after = {group.group: group.split for group in log.positions()}
        classes = await log.retention_classes()
        for work in log.slices(after, log.limit(after, 1 << 40), 1 << 40):
            *places, size = places_of(work.extents)
            buffer = numpy.zeros(size, numpy.uint8)
            for part, place in zip(work.extents, places, strict=True):
                found = await log.read(part.sequence, part.start, part.end - part.start)
                buffer[place : place + len(found)] = numpy.frombuffer(found, numpy.uint8)
            done = split_slice(work, buffer, classes, dying_writers(self.disk2))
            await log.record(done.ranges, done.files)

    async def _merge(self) -> None:
        mergers = Mergers(self, self._rng)
        mergers.lines = LINES
        while await mergers.merge(well_behaved=True, drain=True):
            pass
        assert set(mergers.kinds) == {"pack", "log"}, mergers.seen()

    # --- what became of it --------------------------------------------------------------------------------

    async def fate(self, content: Content) -> Fate:
        """Start, read everything, publish once more."""
        before = self.directories(content)
        try:
            await self.start()
        except MainstemError as error:
            return Fate(refused=str(error), changed=changed(before, self.directories(content)))
        unread: list[str] = []
        wrong: list[str] = []
        try:
            known = {it.number for it in self.roles.nameserver.lookups.topics()}
            if not {queue_id >> 32 for queue_id in content} <= known:
                wrong.append(f"the metadata has topics {sorted(known)}")
            for queue_id, batches in content.items():
                await self._read(queue_id, batches, unread, wrong)
            await self._append(next(iter(content)), wrong)
        finally:
            await self.stop()
        return Fate(unread=tuple(unread), wrong=tuple(wrong))

    async def _read(self, queue_id: int, batches: list[bytes], unread: list[str], wrong: list[str]) -> None:
        messages, offset = self.roles.storage.messages, 0
        (offsets,) = messages.offsets([queue_id]).result()
        if offsets is None or (offsets.log_start, offsets.high_watermark) != (0, len(batches)):
            wrong.append(f"queue {queue_id:#x} has {offsets}, {len(batches)} batches were acknowledged")
            return
        while offset < len(batches):
            try:
                (found,) = await messages.read([QueueRead(queue_id, offset, 1 << 20)], 1 << 20)
            except (MainstemError, OSError) as error:
                unread.append(f"queue {queue_id:#x} at {offset}: {error}")
                return
            if not found.batches:
                unread.append(f"queue {queue_id:#x} at {offset}: {found.outcome}")
                return
            for batch in found.batches:
                if bytes(batch)[16:] != batches[offset] or int.from_bytes(bytes(batch[:8]), "big") != offset:
                    wrong.append(f"queue {queue_id:#x} at {offset}: other bytes than were acknowledged")
                    return
                offset += 1

    async def _append(self, queue_id: int, wrong: list[str]) -> None:
        (result,) = await self.roles.storage.messages.append([new_batch(queue_id)], -1)
        if result.outcome is not Outcome.OK:
            wrong.append(f"queue {queue_id:#x} takes nothing: {result}")


MAY_CHANGE = re.compile(r"starts|lost_blocks|metadata/(vote|\d+\.log)|.*-shm")
"""The files that a start that refuses may write: that it was one; what it has found to be lost, so that an operator may
give that up by name; what the nameserver, which is there before the store, promises and logs as a member of its quorum.
The last is memory that processes share which have the database open."""


def taken_ahead(directories: Directories) -> str:
    """The segment that was taken ahead of the first write to it, and has nothing to lose; empty: there is none."""
    last = max((name for name in directories.disk1 if name.endswith(".wal")), default="")
    if not last:
        return ""
    try:
        header = SegmentHeader.unpack(directories.disk1[last][:PAGE_BYTES], last)
    except FormatError:
        return last
    return "" if segment_path(header.sequence) == last else last


def changed(before: Directories, after: Directories) -> tuple[str, ...]:
    """The files that are not what they were, but for those that may change."""
    names = {*before.names(), *after.names()}
    names = {name for name in names if not MAY_CHANGE.fullmatch(name) and name != taken_ahead(before)}
    return tuple(sorted(name for name in names if before.said_in(name) != after.said_in(name)))


class Lives(NamedTuple):
    """The remains of a node's two lives."""

    first: Directories
    second: Directories
    killed: Directories
    """The second, had it not been stopped: sqlite has a log beside its file."""


def lives(place: Path, node_id: int) -> Lives:
    left: list[Directories] = []
    killed: list[Directories] = []
    content: Content = {}

    async def live(number: int) -> None:
        before = left[-1] if left else Directories({}, {}, {})
        node = DamagedNode(place, before, node_id, 10 * node_id + number)
        await node.start()
        await node.work(f"topic-{number}", content, merges=number > 0)
        kept = {queue_id: list(batches) for queue_id, batches in content.items()}
        killed.append(node.directories(kept))
        await node.stop()
        left.append(node.directories(kept))

    for number in range(2):
        simulated(live(number))
    return Lives(left[0], left[1], killed[1])


def fate(place: Path, directories: Directories, node_id: int = 1) -> Fate:
    async def judged() -> Fate:
        return await DamagedNode(place, directories, node_id, 99).fate(directories.content)

    result = simulated(judged())
    assert isinstance(result, Fate)
    return result


def simulated(work: object) -> object:
    loop = SimulatedLoop()

    async def told() -> object:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work  # type: ignore[misc]

    try:
        return loop.run_until_complete(told())
    finally:
        loop.close()
