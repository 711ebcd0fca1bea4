"""A node without storage, and a cluster of nodes that store behind two such brokers. The nodes that store keep the
metadata, too, or three others without storage do.

A node without storage has lives as others have, on a disk that keeps its starts and, where it votes, the metadata: all
that was written. It is no node of the cluster as the history knows it: no records have to be on it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.node import NodeClock, NodeDisk
from tests.simulation.oracle import require
from tests.simulation.whole.cluster import ClientsNode, WholeCluster, WholeSettings

from mainstem.model import Node
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts, OpeningWatch
from mainstem.node.node_roles import Roles
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.role import Storage

BROKERS = 2
VOTERS = 3
"""Of the metadata, where nodes that store do not vote."""
STARTING_SECONDS = 60.0
"""Simulated, without a metadata leader for some of them."""


class ApartSettings(WholeSettings):
    """Three nodes that store, and two brokers numbered behind them; where `votes_apart`, the nodes that vote on the
    metadata are numbered behind these."""

    def __init__(self, rng: random.Random, *, votes_apart: bool = False) -> None:
        super().__init__(rng)
        self.nodes = 3
        self.groups = rng.choice([1, 2, 3])
        self.begins_old = False
        self.brokers = range(self.nodes + 1, self.nodes + BROKERS + 1)
        self.voters = range(self.brokers.stop, self.brokers.stop + VOTERS) if votes_apart else range(0)

    def _roles(self, node_id: int) -> tuple[str, ...]:
        if node_id in self.brokers:
            return ("broker",)
        if node_id in self.voters:
            return ("nameserver",)
        return ("storage",) if self.voters else ("storage", "nameserver")

    def config(self, node_id: int) -> NodeConfig:
        config, roles = super().config(node_id), self._roles(node_id)
        peers = {str(voter): f"10.0.0.{voter}:9093" for voter in self.voters} or config.nameserver.peers
        nameserver = msgspec.structs.replace(
            config.nameserver, peers=peers, heartbeat_ms=300, suspect_ms=900, refused_ms=900, dead_ms=2000
        )
        nameserver.validate()
        return msgspec.structs.replace(config, nameserver=nameserver, roles=roles, rpc=f"10.0.0.{node_id}:9093")


class _Watched(OpeningWatch):
    def __init__(self, cluster: ApartCluster, life: Life) -> None:
        self._cluster = cluster
        self._life = life

    def metadata_opened(self, nameserver: Nameserver) -> None:
        self._cluster.hear_of_topics(nameserver, self._life)


class NodeApart:
    """A node without storage. `start`, `kill`, and so on."""

    def __init__(self, cluster: ApartCluster, node_id: int, directory: Path, seed: int) -> None:
        self.node_id = node_id
        self.clock = NodeClock(cluster.loop)
        self.disk1, self.disk2 = NodeDisk(seed, lambda: None), NodeDisk(seed + 1, lambda: None)
        self.lives: list[Life] = []
        self.opened: list[Storage] = []
        """Empty: it has no storage."""
        self.up = False
        self.roles: Roles | None = None
        """While it is up."""
        self.cluster = cluster
        self._directory = directory
        self._rng = random.Random(seed)
        self._ids = itertools.count(1)

    async def start(self) -> None:
        """Returns when its roles are open, or it has died meanwhile."""
        assert not self.up, f"node {self.node_id} is up"
        loop, life = self.cluster.loop, Life(self.node_id, len(self.lives) + 1)
        self.lives.append(life)
        self.up = True
        self.cluster.history.note("start", self.node_id, round(loop.time(), 6))
        starting = loop.run_in(life, self._start(life), name=f"start of node {self.node_id}")
        over = loop.create_task(life.over.wait())
        await asyncio.wait([starting, over], timeout=STARTING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if life.alive:
            require(starting.done(), f"node {self.node_id} does not start", "S")
            starting.result()

    async def _start(self, life: Life) -> None:
        cluster, handlers = self.cluster, Handlers()

        async def connect(identity: Identity) -> ClusterPorts:
            cluster.calls.serve(life, handlers)
            return ClusterPorts(cluster.network.attach(life), cluster.calls.of(life, identity), handlers, self.clock)

        self.roles = await Roles.open(
            cluster.settings.config(self.node_id),
            Node(node_id=self.node_id, host=f"node-{self.node_id}", port=9092),
            NodePorts(
                clock=self.clock,
                randomness=lambda: random.Random(self._rng.random()),
                new_id=lambda: f"{self.node_id}-{next(self._ids):06}",
                write_files=self.disk1,
                store_files=self.disk2,
                remote_store=None,
                write_dir=self._directory,
                store_dir=self._directory,
                handlers=handlers,
                connect=connect,
                boot="1",
            ),
            AsyncExitStack(),
            _Watched(cluster, life),
        )
        if self.roles.compute is None:
            return
        if cluster.opened is not None:
            cluster.opened(self, self.roles, life)
        cluster.clients_network.open_door(life, self.roles.dispatcher)

    def kill(self) -> None:
        """At once, whatever is under way; its disk keeps what was written."""
        if self.up:
            self.cluster.history.note("crash", self.node_id)
            self.cluster.loop.kill(self.lives[-1])
            self.up, self.roles = False, None
            self.disk1.turn_off()
            self.disk1.crash(keep_all=True)


class ApartCluster(WholeCluster):
    """`nodes` are those that store."""

    stores_apart = True
    settings: ApartSettings

    def __init__(self, seed: int, loop: ClusterLoop, directory: Path, settings: ApartSettings) -> None:
        super().__init__(seed, loop, directory, settings)
        self.brokers, self.voters = (
            {node_id: NodeApart(self, node_id, directory, seed + node_id) for node_id in ids}
            for ids in (settings.brokers, settings.voters)
        )

    @property
    def serving_clients(self) -> Mapping[int, ClientsNode]:
        return self.brokers
