"""A cluster of whole nodes, and what is written down about it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec
from tests.simulation.cluster.cluster import Settings, SimulatedCluster
from tests.simulation.cluster.compacted import CompactedQueue
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.node import NodeClock, NodeDisk
from tests.simulation.whole.connection import ClientNetwork
from tests.simulation.whole.ledger import Ledger
from tests.simulation.whole.node import WholeNode

from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.broker.transactions.config import TransactionsConfig
from mainstem.model import Durability, Topic
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import Event, TopicCreated, TopicDeleted
from mainstem.node.config import NodeConfig
from mainstem.node.node_roles import Roles


class WholeSettings(Settings):
    """The configuration of one run, drawn from its seed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.storage = msgspec.structs.replace(self.storage, retention_check_seconds=rng.choice([0.5, 2.0, 10.0]))
        if rng.random() < 0.25:
            self.journal = msgspec.structs.replace(
                self.journal, durability=Durability.ASYNC, flush_interval_seconds=rng.choice([0.3, 1.0])
            )
        self.begins_old = rng.random() < 0.25
        """Each node is of a program that knows of no feature levels, until it is started again."""
        self.metadata_bytes_max = rng.choice([4096, 16_384, 1 << 20])
        self.groups_config = ConsumerGroupsConfig(
            session_timeout_ms_min=500,
            rebalance_delay_ms=rng.choice([0, 500]),
            offsets_topic_partitions=rng.choice([1, 2, 4]),
            snapshot_after_bytes=rng.choice([500, 4000, 1 << 20]),
            append_bytes_max=rng.choice([200, 1 << 17]),
            load_bytes=rng.choice([500, 1 << 20]),
        )

        groups = self.groups_config
        self.transactions = TransactionsConfig(
            topic_partitions=groups.offsets_topic_partitions,
            snapshot_after_bytes=groups.snapshot_after_bytes,
            append_bytes_max=groups.append_bytes_max,
            load_bytes=groups.load_bytes,
        )

        self.shares = ShareGroupsConfig()

    @property
    def copies(self) -> int:
        """Replicas of each write group."""
        return self.nodes

    @property
    def is_async(self) -> bool:
        return self.journal.durability is Durability.ASYNC

    def config(self, node_id: int) -> NodeConfig:
        peers = {str(number): f"10.0.0.{number}:9093" for number in range(1, self.nodes + 1)}
        nameserver = NameserverConfig(
            node_id=node_id, peers=peers, write_groups=self.groups, replication_factor=self.copies,
            log_bytes_max=self.metadata_bytes_max, feature_level="automatic" if self.begins_old else "operator",
        )  # fmt: skip
        nameserver.validate()
        self.groups_config.validate()
        self.shares.validate()
        return NodeConfig(
            node_id=node_id,
            nameserver=nameserver,
            broker=BrokerConfig(auto_create_topics=False),
            groups=self.groups_config,
            transactions=self.transactions,
            shares=self.shares,
            storage=self.storage,
            journal=self.journal,
            queue_store=self.store,
        )


class ClientsNode(Protocol):
    """As much of a node that serves clients as what they are told is judged by."""

    disk1: NodeDisk
    disk2: NodeDisk
    clock: NodeClock

    @property
    def roles(self) -> Roles | None: ...

    @property
    def node_id(self) -> int: ...

    @property
    def cluster(self) -> WholeCluster: ...


class WholeCluster(SimulatedCluster):
    """`nodes` are whole ones; their metadata says which topics there are."""

    node_kind: ClassVar[type[WholeNode]] = WholeNode
    settings: WholeSettings
    cluster_id: str = ""
    """Known once a node has started."""
    compacts: bool = False
    """Whether anybody compacts what is to be compacted."""
    stores_apart: ClassVar[bool] = False
    """Whether nodes that serve clients are others than those that store."""
    opened: Callable[[ClientsNode, Roles, Life], None] | None = None
    """Is told of each node that serves clients once it has opened its roles, if anybody is."""
    nodes: dict[int, WholeNode]  # type: ignore[assignment]

    def __init__(self, seed: int, loop: ClusterLoop, directory: Path, settings: WholeSettings) -> None:
        super().__init__(seed, loop, directory, settings)
        rng = random.Random(seed + 1)
        self.nodes = {
            node_id: self.node_kind(self, node_id, directory, rng.randrange(1 << 30)) for node_id in list(self.nodes)
        }
        self.clients_network = ClientNetwork(loop, random.Random(rng.random()), self.report)
        self.ledger = Ledger(self.history, loop.now_ms, self.clocks_off)
        self.history.group_of = self.group_of

    @property
    def serving_clients(self) -> Mapping[int, ClientsNode]:
        """The nodes that clients talk to."""
        return self.nodes

    def hear_of_topics(self, nameserver: Nameserver, life: Life) -> None:
        """Have the ledger told of the topics that a node's metadata has, from now on."""

        def heard(event: Event) -> None:
            if not life.alive:
                return
            if isinstance(event, TopicCreated):
                self.guard(lambda: self.created(event.topic))
            elif isinstance(event, TopicDeleted):
                self.guard(lambda: self.ledger.deleted(event.topic))

        for topic in nameserver.lookups.topics():
            self.created(topic)
        nameserver.subscribe(heard)

    def created(self, topic: Topic) -> None:
        """Some node's metadata has this topic."""
        self.ledger.created(topic)
        if self.compacts and "compact" in topic.settings.cleanup_policy:
            for queue_id in map(topic.queue_id, range(topic.partitions)):
                if queue_id not in self.history.compacted:
                    compacted = CompactedQueue(queue_id, topic.settings, covered=topic.internal)
                    self.history.compacted[queue_id] = compacted

    def clocks_off(self) -> tuple[int, int]:
        """How far a majority of the clocks may have agreed to be behind, and ahead, at any time so far: no further than
        as many of them ever were, each for itself. Nodes that begin without feature levels go by their own clocks until
        the level is raised."""
        clocks, voting = [node.clock for node in self.nodes.values()], self.settings.nodes
        outvoted = voting - voting // 2 - 1
        behind = sorted(clock.ahead_ms_min for clock in clocks)
        ahead = sorted(clock.ahead_ms_max for clock in clocks)
        if self.settings.begins_old:
            return behind[0], ahead[-1]
        return behind[-1 - outvoted], ahead[outvoted]

    def copies_of(self, topic: Topic, group: int) -> int:
        """How many replicas the write group has in which a batch of a topic lies."""
        return self.settings.copies

    def holders(self, group: int, index: int) -> int:
        """How many nodes have a committed block in their journals, or had it until others took their places."""
        return sum(node.holds(group, index) for node in self.nodes.values())

    def check_tasks(self) -> None:
        super().check_tasks()
        for node in self.nodes.values():
            node.check_tasks()
