"""The broker changes the metadata through its own node: a call returns once this node has applied the
change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mainstem.errors import MainstemError
from mainstem.model import FACTOR_OF_CLUSTER, FeatureLevel, NewTopic, Topic
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import (
    MetadataUnavailable,
    NameserverError,
    refusal_of,
)
from mainstem.nameserver.requests import Requests
from mainstem.nameserver.state.changes import Ids, make_commands, named
from mainstem.nameserver.state.commands import AddPartitions, ChangeTopicConfigs, CreateTopic
from mainstem.nameserver.state.replica import ChangeOutcome, MetadataReplica
from mainstem.nameserver.state.state import PRODUCER_IDS_PER_BLOCK
from mainstem.nameserver.state.topic_config import topic_settings
from mainstem.nameserver.state.topic_table import topic_of
from mainstem.rpc.messages.metadata import (
    WantConfigs,
    WantDeletions,
    WantedTopic,
    WantPartitions,
    WantProducerIds,
    WantTopics,
)

TOGETHER_MAX = 1_000
"""Items of one change, which is one log entry: the event loop encodes or decodes so many in a few ms."""
TOGETHER_BYTES_MAX = 1024 * 1024
"""Bytes of names and configs in one change, unless a single topic has more: a log entry stays far below its
bound."""
TOPIC_BYTES = 64
"""Roughly what a topic without name and configs takes."""


class MetadataAdministration:
    """Implements `ports.MetadataAdmin`: has the metadata leader make the change, and returns the state after
    it."""

    def __init__(self, requests: Requests, replica: MetadataReplica, ids: Ids, config: NameserverConfig) -> None:
        self._requests = requests
        self._replica = replica
        self._ids = ids
        self._config = config
        self._producer_ids = range(0)
        self._producer_ids_lock = asyncio.Lock()

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
        topic = WantedTopic(name, partitions, self._factor(replication_factor), dict(configs), internal)
        (outcome,) = await self._create([topic], validate_only=validate_only)
        return _or_raise(outcome)

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | MainstemError]:
        topics = (
            WantedTopic(it.name, it.partitions, self._factor(it.replication_factor), dict(it.configs)) for it in wanted
        )
        return await self._create(topics, validate_only=validate_only)

    def _factor(self, asked: int) -> int:
        """A leader of an older version takes no factor that leaves the choice to it, and has none."""
        is_old = self._replica.state.feature_level < FeatureLevel.CLASSED
        return 1 if asked == FACTOR_OF_CLUSTER and is_old else asked

    async def _create(self, wanted: Iterable[WantedTopic], *, validate_only: bool) -> list[Topic | MainstemError]:
        if validate_only:
            return await self._as_created(WantTopics(list(wanted)))
        outcomes: list[Topic | MainstemError] = []
        for part in _parts(wanted):
            outcomes += _topics(await self._requests.change(WantTopics(part)))
        return outcomes

    async def _as_created(self, wanted: WantTopics) -> list[Topic | MainstemError]:
        """The topics as the change would make them, judged by what this node knows now; nothing is
        changed."""
        made = await make_commands(wanted, self._replica.state, self._ids, replicas=1)
        topics: list[Topic | MainstemError] = []
        for command in made.commands:
            assert isinstance(command, CreateTopic), "topics are created"
            topics.append(topic_of(command, topic_settings(command.configs, self._replica.state.topic_table.defaults)))
        for refusal in made.refusals:
            topics.insert(refusal.item, refusal_of(refusal.kind, refusal.message))
        return topics

    async def delete_topics(self, names: Sequence[str]) -> list[Topic | MainstemError]:
        """Returns the topics as they were. Their queues still exist."""
        outcomes: list[Topic | MainstemError] = []
        for first in range(0, len(names), TOGETHER_MAX):
            part = list(names[first : first + TOGETHER_MAX])
            outcomes += _topics(await self._requests.change(WantDeletions(part)))
        return outcomes

    async def create_partitions(self, name: str, total: int, *, validate_only: bool = False) -> Topic:
        if validate_only:
            topic = named(self._replica.state, name)
            self._replica.state.check(AddPartitions(topic.number, total))
            return replace(topic, partitions=total)
        (outcome,) = _topics(await self._requests.change(WantPartitions(name, total)))
        return _or_raise(outcome)

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        if validate_only:
            topic = named(self._replica.state, name)
            self._replica.state.check(ChangeTopicConfigs(topic.number, dict(changes)))
            return self._replica.state.with_configs(topic, changes)
        (outcome,) = _topics(await self._requests.change(WantConfigs(name, dict(changes))))
        return _or_raise(outcome)

    async def allocate_producer_id(self) -> int:
        async with self._producer_ids_lock:
            if not self._producer_ids:
                (block,) = (await self._requests.change(WantProducerIds(self._config.node_id))).items
                if isinstance(block, NameserverError):
                    raise block
                self._producer_ids = range(block.number, block.number + PRODUCER_IDS_PER_BLOCK)
            producer_id = self._producer_ids[0]
            self._producer_ids = self._producer_ids[1:]
            return producer_id


def _parts(wanted: Iterable[WantedTopic]) -> Iterator[list[WantedTopic]]:
    """Splits the topics, in order, into parts that each fit one log entry."""
    part: list[WantedTopic] = []
    size = 0
    for topic in wanted:
        weight = TOPIC_BYTES + len(topic.name) + sum(len(k) + len(v) for k, v in topic.configs.items())
        if part and (len(part) == TOGETHER_MAX or size + weight > TOGETHER_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(topic)
        size += weight
    if part:
        yield part


def _topics(outcome: ChangeOutcome) -> list[Topic | MainstemError]:
    topics: list[Topic | MainstemError] = []
    for item in outcome.items:
        if isinstance(item, NameserverError):
            topics.append(item)
        elif item.topic is not None:
            topics.append(item.topic)
        else:  # this node got a snapshot in between, and has not seen the event itself
            topics.append(MetadataUnavailable("the change was made, and the topic changed again since; look it up"))
    return topics


def _or_raise(outcome: Topic | MainstemError) -> Topic:
    if isinstance(outcome, MainstemError):
        raise outcome
    return outcome
