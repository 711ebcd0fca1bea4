"""A cluster in one process: nodes, the network between them, topics, and the observer of it all."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tests.fakes.object_store import SimulatedBucket
from tests.simulation.cluster.calls import Switchboard
from tests.simulation.cluster.compacted import CompactedQueue
from tests.simulation.cluster.history import History
from tests.simulation.cluster.lives import ClusterLoop
from tests.simulation.cluster.network import SimulatedNetwork, caused
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.promises import Promises
from tests.simulation.oracle import Violation, require

from mainstem.model import Durability, FeatureLevel, Topic, TopicSettings, slot_of
from mainstem.raft import BrokenInvariant, Message
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.role import Storage
from mainstem.storage.write_groups import control

POLL_SECONDS = 0.05
"""Simulated; how often is looked whether something has come about."""

DONE_ONCE = ("producers are read", "rejoining")
"""Tasks of a node that end by themselves."""


class Settings:
    """The configuration of one run, drawn from its seed: small numbers, so that every bound is met."""

    def __init__(self, rng: random.Random) -> None:
        self.nodes = rng.choice([3, 3, 3, 5])
        self.groups = rng.choice([1, 1, 2, 3])
        self.storage = StorageConfig(
            write_cache_bytes=rng.choice([0, 5000, 1 << 20]),
            block_bytes_max=rng.choice([4096, 8192, 1 << 22]),
            checkpoint_bytes=rng.choice([4096, 20_000, 1 << 20]),
            checkpoint_seconds=rng.choice([0.3, 1.0, 5.0]),
            prune_seconds=rng.choice([0.1, 0.3, 1.0]),
            retention_check_seconds=1e9,
        )
        self.journal = JournalConfig(
            segment_bytes=rng.choice([4, 6, 12]) * 4096,
            segment_age_seconds=rng.choice([2.0, 20.0]),
            pool_segments=rng.randint(0, 2),
            pool_segments_max=rng.randint(2, 4),
            durability=Durability.SYNC,
            index_cache_bytes=rng.choice([0, 1 << 20]),
        )
        self.store = QueueStoreConfig(
            read_cache_bytes=rng.choice([0, 1 << 16]),
            read_chunk_bytes=4096,
            index_cache_bytes=rng.choice([0, 1 << 20]),
            open_files_max=rng.choice([1, 256]),
            orphan_grace_seconds=30.0,
        )
        # where there is no pool, memory holds two producers of each write group
        in_memory = 1 << 17 if self.journal.pool_segments else 2 * self.groups
        self.storage = msgspec.structs.replace(self.storage, producers_in_memory=in_memory)
        self.snapshots = random.Random(repr(self.storage)).random() < 0.8
        """A journal is pruned whatever other replicas lack."""
        self.segment_bytes = random.Random(f"{self.storage} segments").choice([500, 3000, 1 << 30])
        """`segment.bytes` of every other topic."""
        self.whole_files_upto = random.Random(f"{self.storage} whole files").choice([0, 0, 0, 1, 2])
        """Nodes with ids up to this are of a version that gives files of the queue store only as a whole."""

    def forget_soon(self) -> None:
        """Let journals be as short as can be, so that who is away for a while needs a snapshot."""
        self.snapshots = True
        self.storage = msgspec.structs.replace(self.storage, prune_seconds=0.1, checkpoint_seconds=0.3)
        self.journal = msgspec.structs.replace(self.journal, segment_bytes=4 * 4096, segment_age_seconds=1.0)


class SimulatedCluster:
    """`nodes` by their ids."""

    def __init__(self, seed: int, loop: ClusterLoop, directory: Path, settings: Settings) -> None:
        self.loop = loop
        self.settings = settings
        self.history = History()
        self.trouble: Exception | None = None
        """The first thing that must never happen and did."""
        self.troubled = asyncio.Event()
        rng = random.Random(seed)
        self.promises = Promises(self.history, durable=settings.journal.durability is Durability.SYNC)
        self.network = SimulatedNetwork(loop, random.Random(rng.random()), self.report, self._sent)
        self.calls = Switchboard(loop, self.network)
        self.topics: list[Topic] = []
        self.snapshots = 0
        """How many were taken."""
        self.bucket: SimulatedBucket | None = None
        """The object store of the remote tier, if the nodes have one."""
        self.shared = False
        """It is the queue store of all nodes."""
        self.store_troubles = 0
        """How often something of it was made to fail."""
        self.kept_spans = 0
        """Spans of those who took them that stayed."""
        self.nodes: dict[int, SimulatedNode] = {}
        for node_id in range(1, settings.nodes + 1):
            self.nodes[node_id] = SimulatedNode(self, node_id, directory, rng.randrange(1 << 30))
        self.placements = {group: sorted(self.nodes) for group in range(settings.groups)}
        """Per group, where its replicas are wanted."""
        self.moves = False
        """They may change."""
        self.level = FeatureLevel.newest()
        """The feature level of the nodes."""

    def report(self, error: Exception) -> None:
        if self.trouble is None:
            self.trouble = error
            self.troubled.set()

    def _sent(self, node_id: int, group: int, messages: Sequence[Message]) -> None:
        self.guard(lambda: self.promises.sent(node_id, group, messages))

    def guard(self, check: Callable[[], None]) -> None:
        """Every finding of a check ends the run, wherever it is found."""
        try:
            check()
        except Violation as error:
            self.report(error)

    def clocks(self) -> list[int | None]:
        """The readings of the metadata quorum's clocks, as every node hears them: of one that is down nothing."""
        return [node.clock.now_ms() if node.up else None for node in self.nodes.values()]

    def group_of(self, queue_id: int) -> int:
        return slot_of(queue_id) % self.settings.groups

    def applied_everywhere(self, group: int) -> int:
        return min(node.applied.get(group, 0) for node in self.nodes.values())

    def leader_heard(self, group: int) -> int:
        """The node that leads a write group, as the metadata has it; -1: it does not know."""
        return next((node.node_id for node in self.leaders(group)), -1)

    def leaders(self, group: int) -> list[SimulatedNode]:
        """Nodes that serve a group, the newest term first."""
        found = [node for node in self.nodes.values() if node.leads(group)]
        return sorted(found, key=lambda node: -node.storage.groups[group].term)

    async def lead(self, group: int, patience: float) -> SimulatedNode:
        """The node that leads a group, as soon as there is one."""
        for _ in range(int(patience / POLL_SECONDS)):
            if found := self.leaders(group):
                return found[0]
            await asyncio.sleep(POLL_SECONDS)
        raise Violation(f"write group {group} has no leader after {patience:g} s", "S")

    async def create_topic(
        self,
        partitions: int,
        patience: float,
        compaction: TopicSettings | None = None,
        settings: TopicSettings | None = None,
    ) -> Topic:
        """Have a topic's queues created in the log of every group that has some. `compaction`: what it asks for if it
        is to be compacted; every other such topic is the log of a machine. `settings`: those of another topic; without
        them it keeps everything."""
        number = len(self.topics) + 1
        internal = compaction is not None and number % 2 == 0
        settings = dataclasses.replace(
            settings or dataclasses.replace(compaction or TopicSettings(), retention_ms=-1),
            segment_bytes=self.settings.segment_bytes if number % 2 else TopicSettings().segment_bytes,
        )
        topic = Topic(
            name=f"topic-{number}",
            number=number,
            topic_id=uuid.UUID(int=number),
            partitions=partitions,
            settings=settings,
            internal=internal,
        )
        if compaction is not None:
            for queue_id in map(topic.queue_id, range(partitions)):
                self.history.compacted[queue_id] = CompactedQueue(queue_id, settings, covered=internal)
        self.topics.append(topic)
        groups = {self.group_of(topic.queue_id(partition)) for partition in range(partitions)}
        for group in sorted(groups):
            for _ in range(int(patience / POLL_SECONDS)):
                if await self._create(topic, group):
                    break
                await asyncio.sleep(POLL_SECONDS)
            else:
                raise Violation(f"queues of write group {group} cannot be created within {patience:g} s", "S")
        return topic

    async def _create(self, topic: Topic, group: int) -> bool:
        for node in self.leaders(group):
            storage = node.storage
            command = control.QueuesCreated(topic.number, 0, topic.partitions)

            async def propose(storage: Storage = storage, command: control.Command = command) -> bool:
                try:
                    future = storage.groups[group].propose([command])
                    storage.write_loop.wake()
                    await future
                except (NotTheLeader, StorageFailed):
                    return False
                return True

            if await node.call(propose(), patience=5):
                return True
        return False

    def check_tasks(self) -> None:
        """No task of a node that writes may have ended, apart from those that do once, and no group of it alone. (What
        a task died of is logged, and `TroubleHandler` sees it.)"""
        for node in self.nodes.values():
            if node.serving is None:
                continue
            for group in node.serving.groups:
                failure = group.consensus.failure
                if failure is not None and isinstance(failure.__cause__, BrokenInvariant):
                    raise caused(f"node {node.node_id}, write group {group.group}", failure)
            if node.serving.failure is None:
                for task in node.serving.tasks:
                    ended = task.done() and task.get_name() not in DONE_ONCE
                    require(not ended, f"node {node.node_id}: task {task.get_name()!r} ended: {task!r}")


class TroubleHandler(logging.Handler):
    """Nodes log and survive what they did not expect; here it ends the run."""

    def __init__(self, cluster: SimulatedCluster, expected: tuple[type[BaseException], ...]) -> None:
        super().__init__(logging.ERROR)
        self._cluster = cluster
        self._expected = expected

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Exception) and not isinstance(error, self._expected):
            self._cluster.report(caused(f"logged: {record.getMessage()}", error))
