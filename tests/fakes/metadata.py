"""The cluster's metadata in memory: `Metadata` and `MetadataAdmin` over one dictionary, one or more nodes.

Names, partition counts and configs are checked by the nameserver's own rules, so that refusals are the real
ones. Every partition is led by node 1 unless a test says otherwise in `leaders`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mainstem.errors import MainstemError
from mainstem.model import NewTopic, Node, Topic, TopicSettings
from mainstem.nameserver.errors import InvalidPartitions, InvalidReplicationFactor, TopicExists, UnknownTopic
from mainstem.nameserver.topic_config import check_configs, topic_settings
from mainstem.nameserver.topic_name import check_topic_name

NODE = Node(node_id=1, host="127.0.0.1", port=9092)


class FakeMetadata:
    """`ports.Metadata`, `ports.Cluster` and `ports.MetadataAdmin`. Tests may set `nodes_known`, `dead` (ids of those
    that do not live), `leaders` (by queue id), `metadata_leader`, `out_of_touch` and `refuse` (what every change
    raises until it is None again)."""

    def __init__(self, nodes: Sequence[Node] = (NODE,)) -> None:
        self.nodes_known = list(nodes)
        self.dead: set[int] = set()
        self.leaders: dict[int, int] = {}
        self.metadata_leader = nodes[0].node_id if nodes else -1
        self.out_of_touch = False
        self.refuse: MainstemError | None = None
        self._topics: dict[str, Topic] = {}
        self._numbers = 0
        self._producer_ids = 0

    # Metadata

    def topic(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.topic_id == topic_id), None)

    def topics(self) -> Iterable[Topic]:
        return list(self._topics.values())

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
        return self.add_topic(name, partitions, replication_factor, configs, validate_only, internal)

    def add_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 1,
        configs: Mapping[str, str] = {},
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        """As `create_topic`, whatever is to be refused."""
        check_topic_name(name)
        if name in self._topics:
            raise TopicExists(f"topic {name!r} exists")
        if partitions < 1:
            raise InvalidPartitions(f"{partitions} partitions")
        if not 1 <= replication_factor <= len(self.nodes_known):
            raise InvalidReplicationFactor(f"{replication_factor} replicas")
        check_configs(configs)
        topic = Topic(
            name=name,
            number=self._numbers + 1,
            topic_id=uuid.UUID(int=0xFACADE << 64 | self._numbers + 1),
            partitions=partitions,
            configs=dict(configs),
            settings=self._settings(configs),
            internal=internal,
            replication_factor=replication_factor,
        )
        if not validate_only:
            self._numbers += 1
            self._topics[name] = topic
        return topic

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        self._refuse()
        outcomes: list[Topic | MainstemError] = []
        for topic in wanted:
            try:
                outcomes.append(await self.create_topic(*topic, validate_only=validate_only))
            except MainstemError as refusal:
                outcomes.append(refusal)
        return outcomes

    def drop_topic(self, name: str) -> Topic:
        """Deleted, and nobody is told."""
        return self._topics.pop(name)

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        self._refuse()
        return [
            self._topics.pop(name) if name in self._topics else UnknownTopic(f"no topic {name!r}")
            for name in names
        ]

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic:
        self._refuse()
        topic = self._known(name)
        if total <= topic.partitions:
            raise InvalidPartitions(f"{total} partitions are not more than {topic.partitions}")
        return self._change(replace(topic, partitions=total), validate_only)

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        self._refuse()
        topic = self._known(name)
        merged = {**topic.configs, **changes}
        configs = {key: value for key, value in merged.items() if value is not None}
        check_configs(configs)
        changed = replace(topic, configs=configs, settings=self._settings(configs))
        return self._change(changed, validate_only)

    async def allocate_producer_id(self) -> int:
        self._refuse()
        self._producer_ids += 1
        return self._producer_ids

    # inside

    def _refuse(self) -> None:
        if self.refuse is not None:
            raise self.refuse

    def _known(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"no topic {name!r}")
        return topic

    def _change(self, topic: Topic, validate_only: bool) -> Topic:
        if not validate_only:
            self._topics[topic.name] = topic
        return topic

    def _settings(self, configs: Mapping[str, str]) -> TopicSettings:
        return topic_settings(configs, {})
