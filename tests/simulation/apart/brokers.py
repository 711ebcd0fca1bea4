"""A broker without storage, and a cluster of nodes that store and keep the metadata behind two of them.

A broker has lives as a node has, on a disk that keeps nothing but its starts. It is no node of the cluster as the
history knows it: nothing has to be on it.
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
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts
from mainstem.node.node_roles import Roles
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.role import Storage

BROKERS = 2
STARTING_SECONDS = 60.0
"""Simulated, without a metadata leader for some of them."""


class ApartSettings(WholeSettings):
    """Three nodes that store, and two brokers numbered behind them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.nodes = 3
        self.groups = rng.choice([1, 2, 3])
        self.begins_old = False

    def config(self, node_id: int) -> NodeConfig:
        config = super().config(node_id)
        roles = ("storage", "nameserver") if node_id <= self.nodes else ("broker",)
        nameserver = msgspec.structs.replace(
            config.nameserver, heartbeat_ms=300, suspect_ms=900, refused_ms=900, dead_ms=2000
        )
        nameserver.validate()
        return msgspec.structs.replace(config, nameserver=nameserver, roles=roles, rpc=f"10.0.0.{node_id}:9093")


class SimulatedBroker:
    """One of the two. `start`, `kill`, and so on."""

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
        """Returns when it serves clients, or has died meanwhile."""
        assert not self.up, f"broker {self.node_id} is up"
        loop, life = self.cluster.loop, Life(self.node_id, len(self.lives) + 1)
        self.lives.append(life)
        self.up = True
        self.cluster.history.note("start", self.node_id, round(loop.time(), 6))
        starting = loop.run_in(life, self._start(life), name=f"start of broker {self.node_id}")
        over = loop.create_task(life.over.wait())
        await asyncio.wait([starting, over], timeout=STARTING_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if life.alive:
            require(starting.done(), f"broker {self.node_id} does not start", "S")
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
        )
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
        ids = range(settings.nodes + 1, settings.nodes + BROKERS + 1)
        self.brokers = {node_id: SimulatedBroker(self, node_id, directory, seed + node_id) for node_id in ids}

    @property
    def serving_clients(self) -> Mapping[int, ClientsNode]:
        return self.brokers
