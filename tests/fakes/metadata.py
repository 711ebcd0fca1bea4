"""The cluster's metadata in memory: `Metadata` and `MetadataAdmin` over one table, one or more nodes.

The table of topics is the nameserver's own, so that refusals are the real ones; nothing is logged, and every change is
there at once. Every partition is led by node 1 unless a test says otherwise in `leaders`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mainstem.errors import MainstemError
from mainstem.model import NewTopic, Node, Topic
from mainstem.nameserver.errors import UnknownTopic
from mainstem.nameserver.state.commands import AddPartitions, ChangeTopicConfigs, CreateTopic, DeleteTopic
from mainstem.nameserver.state.plans.replica_classes import Factors, class_for, factor_for
from mainstem.nameserver.state.topic_config import topic_settings
from mainstem.nameserver.state.topic_table import PendingChanges, TopicTable, topic_of

NODE = Node(node_id=1, host="127.0.0.1", port=9092)


class FakeMetadata:
    """`ports.Metadata`, `ports.Cluster` and `ports.MetadataAdmin`. Tests may set `nodes_known`, `dead` (ids of those
    that do not live), `leaders` (by queue id), `metadata_leader`, `out_of_touch`, `factors` (of the classes of write
    groups) and `refuse` (what every change raises until it is None again)."""

    def __init__(self, nodes: Sequence[Node] = (NODE,)) -> None:
        self.nodes_known = list(nodes)
        self.dead: set[int] = set()
        self.leaders: dict[int, int] = {}
        self.metadata_leader = nodes[0].node_id if nodes else -1
        self.out_of_touch = False
        self.factors: Factors = ()
        self.refuse: MainstemError | None = None
        self._table = TopicTable()
        self._producer_ids = 0

    # Metadata

    def topic(self, name: str) -> Topic | None:
        return self._table.by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._table.by_id.get(topic_id)

    def topics(self) -> Iterable[Topic]:
        return list(self._table.by_name.values())

    def nodes(self) -> Sequence[Node]:
        return list(self.nodes_known)

    def leader(self, queue_id: int) -> int:
        return self.leaders.get(queue_id, self.nodes_known[0].node_id if self.nodes_known else -1)

    def cluster_id(self) -> str:
        return "fake-cluster"

    # Cluster

    def alive_nodes(self) -> Sequence[Node]:
        return [node for node in self.nodes_known if node.node_id not in self.dead]

    # MetadataAdmin

    async def create_topic(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        self._refuse()
        if validate_only:
            return self._checked(name, partitions, replication_factor, configs, internal, PendingChanges())
        return self.add_topic(name, partitions, replication_factor, configs, internal)

    def add_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] = {},
        internal: bool = False,
    ) -> Topic:
        """As `create_topic`, whatever is to be refused."""
        self._checked(name, partitions, replication_factor, configs, internal, PendingChanges())
        return self._table.create(self._creation(name, partitions, replication_factor, configs, internal)).topic

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        self._refuse()
        outcomes: list[Topic | MainstemError] = []
        pending = PendingChanges()
        for topic in wanted:
            try:
                if validate_only:
                    outcomes.append(self._checked(*topic, False, pending))
                else:
                    outcomes.append(await self.create_topic(*topic))
            except MainstemError as refusal:
                outcomes.append(refusal)
        return outcomes

    def drop_topic(self, name: str) -> Topic:
        """Deleted, and nobody is told."""
        return self._table.delete(DeleteTopic(self._table.by_name[name].number)).topic

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        self._refuse()
        return [
            self.drop_topic(name) if name in self._table.by_name else UnknownTopic(f"no topic {name!r}")
            for name in names
        ]

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic:
        self._refuse()
        topic = self._known(name)
        command = AddPartitions(topic.number, total)
        self._table.check_more_partitions(command)
        return replace(topic, partitions=total) if validate_only else self._table.add_partitions(command).topic

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        self._refuse()
        topic = self._known(name)
        command = ChangeTopicConfigs(topic.number, dict(changes))
        self._table.check_configs(command)
        return self._table.with_configs(topic, changes) if validate_only else self._table.change_configs(command).topic

    async def allocate_producer_id(self) -> int:
        self._refuse()
        self._producer_ids += 1
        return self._producer_ids

    # inside

    def _refuse(self) -> None:
        if self.refuse is not None:
            raise self.refuse

    def _known(self, name: str) -> Topic:
        topic = self._table.by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name!r}")
        return topic

    def _creation(
        self, name: str, partitions: int, replication_factor: int, configs: Mapping[str, str], internal: bool
    ) -> CreateTopic:
        number = self._table.next_number
        which = class_for(replication_factor, self.factors, internal=internal)
        replication_factor = factor_for(replication_factor, self.factors, which, internal=internal)
        topic_id = uuid.UUID(int=0xFACADE << 64 | number)
        return CreateTopic(name, number, topic_id, partitions, replication_factor, dict(configs), internal)

    def _checked(
        self,
        name: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        internal: bool,
        pending: PendingChanges,
    ) -> Topic:
        """The topic as it would be, behind those that are pending, of which it is one from now on."""
        command = self._creation(name, partitions, replication_factor, configs, internal)
        self._table.check_new(command, pending, len(self.nodes_known), self.factors)
        pending.add(command)
        return topic_of(command, topic_settings(configs, {}))
