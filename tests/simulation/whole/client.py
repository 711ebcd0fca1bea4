"""A client of the cluster, as Kafka's are: it asks any node for metadata, goes to the leaders it is told of, believes
nobody who knows an older leader than it does, and looks again when it is refused or hears nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from tests.simulation.oracle import require
from tests.simulation.whole.connection import ClientNetwork, Connection, NoAnswer

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

METADATA_VERSIONS = (9, 12, 13)
COORDINATOR_VERSIONS = (3, 4)
PATIENCE_SECONDS = (0.5, 2.0, 10.0)


class Partition(NamedTuple):
    topic_id: UUID
    index: int  # type: ignore[assignment]


class Led(NamedTuple):
    node_id: int
    epoch: int


@dataclass
class Known:
    """A topic, as the newest metadata had it."""

    name: str
    topic_id: UUID
    partitions: int


class Client:
    """`ask` raises `NoAnswer`."""

    def __init__(self, network: ClientNetwork, node_ids: list[int], rng: random.Random) -> None:
        self.network = network
        self.rng = rng
        self.node_ids = node_ids
        self.leaders: dict[Partition, Led] = {}
        self.controller = -1
        self.told_nodes: list[int] = []
        """In the newest metadata."""
        self._connections: dict[int, Connection] = {}
        self._coordinators: dict[str, int] = {}

    # --- asking -------------------------------------------------------------------------------------------

    def connection(self, node_id: int) -> Connection:
        """The one to this node, made if need be. Raises `NoAnswer`."""
        known = self._connections.get(node_id)
        if known is None or not known.open:
            known = self.network.connect(node_id)
            if known is None:
                raise NoAnswer
            self._connections[node_id] = known
        return known

    def patience(self) -> float:
        return self.rng.choice(PATIENCE_SECONDS)

    async def ask(self, node_id: int, request: Any, version: int, patience: float = 0.0) -> Any:
        """Raises `NoAnswer`."""
        return await self.connection(node_id).ask(request, version, patience=patience or self.patience())

    def any_node(self) -> int:
        return self.rng.choice(self.node_ids)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- metadata -----------------------------------------------------------------------------------------

    async def look(self, names: list[str] | None = None) -> dict[str, Known]:
        """Ask some node about topics, None: all. Those it does not know are missing. Raises `NoAnswer`."""
        node_id, version = self.any_node(), self.rng.choice(METADATA_VERSIONS)
        topics = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = await self.ask(node_id, request, version)
        self.controller = response.controller_id
        self.told_nodes = [node.node_id for node in response.brokers]
        found: dict[str, Known] = {}
        for topic in response.topics:
            if topic.error_code:
                allowed = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
                require(topic.error_code in allowed, f"node {node_id}: metadata of {topic.name}: {topic.error_code}")
                continue
            found[topic.name] = Known(topic.name, topic.topic_id, len(topic.partitions))
            if version < 10:
                continue
            for partition in topic.partitions:
                key = Partition(topic.topic_id, partition.partition_index)
                known = self.leaders.get(key)
                if known is None or partition.leader_epoch >= known.epoch:
                    self.leaders[key] = Led(partition.leader_id, partition.leader_epoch)
        return found

    async def leader(self, name: str, partition: Partition) -> Led:
        """Whom to ask about a partition: its leader, mostly. Raises `NoAnswer`."""
        led = self.leaders.get(partition)
        if led is None or led.node_id == -1 or self.rng.random() < 0.05:
            await self.look([name])
            led = self.leaders.get(partition)
            if led is None or led.node_id == -1:
                raise NoAnswer
        return led

    def doubt(self, partition: Partition) -> None:
        """Its leader did not do what was asked: ask who leads, the next time."""
        if (led := self.leaders.get(partition)) is not None:
            self.leaders[partition] = Led(-1, led.epoch)

    def heard(self, partition: Partition, epoch: int) -> None:
        """Somebody leads in this epoch."""
        led = self.leaders.get(partition)
        if led is not None and epoch > led.epoch:
            self.leaders[partition] = Led(-1, epoch)

    async def coordinator(self, group: str) -> int:
        """The node that keeps a group. Raises `NoAnswer` when none is known."""
        known = self._coordinators.get(group, -1)
        if known != -1:
            return known
        version = self.rng.choice(COORDINATOR_VERSIONS)
        request = (
            FindCoordinatorRequest(key=group) if version < 4 else FindCoordinatorRequest(coordinator_keys=(group,))
        )
        response = await self.ask(self.any_node(), request, version)
        answer = response if version < 4 else response.coordinators[0]
        if answer.error_code:
            require(answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of {group}: {answer}")
            raise NoAnswer
        self._coordinators[group] = answer.node_id
        return int(answer.node_id)

    def doubt_coordinator(self, group: str) -> None:
        self._coordinators.pop(group, None)
