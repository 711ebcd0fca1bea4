"""The metadata as a state machine: commands in, topics and nodes out. No I/O, no clock, no randomness.

Strategy: `check` refuses a command against the present state before it is logged; `apply` changes the state
and is the only place that does, live and at recovery alike. `apply` trusts that the command was checked, so
rules may be tightened later without an old log becoming unreadable; a command that does not fit at all (an
unknown topic number, a number given twice) can only come from a broken log and raises `InconsistentCommand`.
A snapshot is a shorter log with the same end state: `commands()` gives it.

Invariants: a topic number is never given twice (queue ids and so messages hang on it); a deleted topic is
known to be deleted (`was_deleted`), so that data whose topic is merely missing is never taken for garbage;
lookups by name, id and number are one dict access; partitions cost nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from mainstem.errors import MainstemError
from mainstem.model import SLOTS, Node, Topic, TopicSettings, slot_of
from mainstem.nameserver.commands import (
    AddPartitions,
    AdvanceCounters,
    AllocateProducerIds,
    ChangeTopicConfigs,
    Command,
    CreateCluster,
    CreateTopic,
    DeleteTopic,
    Event,
    PartitionsAdded,
    RegisterNode,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from mainstem.nameserver.errors import (
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopicName,
    NameserverError,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.topic_config import check_configs
from mainstem.nameserver.topic_name import check_topic_name, collision_key

PARTITIONS_PER_TOPIC_MAX = 100_000  # one Metadata response of such a topic stays below 4 MiB
PARTITIONS_TOTAL_MAX = 1_000_000
"""Of clients' topics: the queue table is built, and measured, for this many queues per node. The brokers' own topics
may go beyond it, or a full cluster would have no consumer groups."""
TOPICS_MAX = 200_000  # twice what is measured; a snapshot of it stays below 64 MiB
NODES_MAX = 1_000
PRODUCER_IDS_PER_BLOCK = 1_000  # as Kafka: at most this many ids are lost at a restart
FIRST_TOPIC_NUMBER = 1  # 0 is left unused, so that an unset queue id is not a queue
TOPIC_NUMBER_MAX = 0x7FFF_FFFF  # queue ids stay positive as signed 64-bit numbers
PRODUCER_ID_MAX = 0x7FFF_FFFF_FFFF_FFFF

_NO_CONFIGS: Mapping[str, str] = {}


class InconsistentCommand(MainstemError):
    """A logged command does not fit the state it is applied to: the log is not what it was."""


class PendingChanges:
    """Topics that are created or deleted together: commands that were checked and are not applied yet. What is
    checked behind them must fit them, too."""

    def __init__(self) -> None:
        self.name_by_collision_key: dict[str, str] = {}
        """Of the topics to be created."""
        self.partitions = 0
        """Of the topics to be created."""
        self.deleted: set[int] = set()
        """Numbers of the topics to be deleted."""

    def add(self, command: Command) -> None:
        """A command that was checked."""
        if isinstance(command, CreateTopic):
            self.name_by_collision_key[collision_key(command.name)] = command.name
            self.partitions += command.partitions
        elif isinstance(command, DeleteTopic):
            self.deleted.add(command.number)


NOTHING_PENDING = PendingChanges()


class MetadataState:
    """`settings_of` turns a topic's overrides into its effective settings (over this node's defaults)."""

    def __init__(self, settings_of: Callable[[Mapping[str, str]], TopicSettings]) -> None:
        self._settings_of = settings_of
        self._default_settings = settings_of(_NO_CONFIGS)  # shared by all topics without overrides
        self._cluster: CreateCluster | None = None
        self._nodes: dict[int, Node] = {}
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._by_number: dict[int, Topic] = {}
        self._name_by_collision_key: dict[str, str] = {}
        self._partitions_total = 0
        self._next_topic_number = FIRST_TOPIC_NUMBER
        self._next_producer_id = 0

    # lookups

    @property
    def cluster(self) -> CreateCluster | None:
        """The cluster's id and slot table; None before the first command."""
        return self._cluster

    @property
    def nodes(self) -> Sequence[Node]:
        return tuple(self._nodes.values())

    @property
    def topics(self) -> Mapping[str, Topic]:
        """By name. Live: copy it before an await."""
        return self._by_name

    @property
    def partitions_total(self) -> int:
        return self._partitions_total

    @property
    def next_topic_number(self) -> int:
        return self._next_topic_number

    @property
    def next_producer_id(self) -> int:
        return self._next_producer_id

    def node(self, node_id: int) -> Node | None:
        return self._nodes.get(node_id)

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def topic_by_number(self, number: int) -> Topic | None:
        return self._by_number.get(number)

    def was_deleted(self, number: int) -> bool:
        """Whether a topic of this number existed and was deleted by a command. False for a number that this
        state has never given: its data must be kept."""
        return FIRST_TOPIC_NUMBER <= number < self._next_topic_number and number not in self._by_number

    def with_configs(self, topic: Topic, changes: Mapping[str, str | None]) -> Topic:
        """What the topic would be with these configs set (a value) and removed (None)."""
        merged: dict[str, str | None] = {**topic.configs, **changes}
        configs = {key: value for key, value in merged.items() if value is not None}
        return replace(topic, configs=configs, settings=self._settings(configs))

    def write_group(self, queue_id: int) -> int:
        assert self._cluster is not None, "no cluster was created yet"
        return self._cluster.slots[slot_of(queue_id)]

    # before the log

    def check(self, command: Command, pending: PendingChanges = NOTHING_PENDING) -> None:
        """Raise a `NameserverError` when the command must not be logged, with `pending` to be applied before."""
        match command:
            case CreateCluster():
                self._check_cluster(command)
            case RegisterNode(node_id=node_id):
                if node_id not in self._nodes and len(self._nodes) >= NODES_MAX:
                    raise NameserverError(f"the cluster has {NODES_MAX} nodes already, the most it takes")
            case CreateTopic():
                self._check_new_topic(command, pending)
            case AddPartitions():
                self._check_more_partitions(command)
            case ChangeTopicConfigs():
                self._topic_to_change(command.number)
                check_configs({key: value for key, value in command.changes.items() if value is not None})
            case DeleteTopic():
                if command.number in pending.deleted:
                    raise UnknownTopic(f"the topic of number {command.number} is being deleted")
                self._topic_to_change(command.number)
            case AllocateProducerIds():
                if command.first + command.count > PRODUCER_ID_MAX:
                    raise NameserverError("all producer ids have been given")

    def _check_cluster(self, command: CreateCluster) -> None:
        assert self._cluster is None, "a cluster is created once"
        assert len(command.slots) == SLOTS, "one write group per slot"
        assert all(0 <= group < command.write_groups for group in command.slots), "a slot without its group"

    def _check_new_topic(self, command: CreateTopic, pending: PendingChanges) -> None:
        check_topic_name(command.name)
        key = collision_key(command.name)
        like = self._name_by_collision_key.get(key) or pending.name_by_collision_key.get(key)
        if like == command.name:
            raise TopicExists(f"topic {command.name!r} exists already")
        if like is not None:
            raise InvalidTopicName(
                f"topic {command.name!r} collides with {like!r}: they differ in '.' and '_' only"
            )
        topics = len(self._by_name) + len(pending.name_by_collision_key)
        if topics >= TOPICS_MAX or command.number > TOPIC_NUMBER_MAX:
            raise InvalidPartitions(f"the cluster has {topics} topics, the most it takes")
        others = 0 if command.internal else self._partitions_total + pending.partitions
        self._check_partitions(command.name, command.partitions, others)
        if not 1 <= command.replication_factor <= len(self._nodes):
            raise InvalidReplicationFactor(
                f"topic {command.name!r}: replication factor {command.replication_factor}, "
                f"allowed is 1 to {len(self._nodes)}, the number of nodes"
            )
        check_configs(command.configs)

    def _check_more_partitions(self, command: AddPartitions) -> None:
        topic = self._topic_to_change(command.number)
        if command.total == topic.partitions:
            raise InvalidPartitions(f"topic {topic.name!r} has {topic.partitions} partitions already")
        if command.total < topic.partitions:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {topic.partitions} partitions, not fewer: {command.total}"
            )
        self._check_partitions(topic.name, command.total, self._partitions_total - topic.partitions)

    def _check_partitions(self, name: str, wanted: int, others: int) -> None:
        if not 1 <= wanted <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitions(
                f"topic {name!r}: {wanted} partitions, allowed is 1 to {PARTITIONS_PER_TOPIC_MAX}"
            )
        total = others + wanted
        if total > PARTITIONS_TOTAL_MAX:
            raise InvalidPartitions(
                f"topic {name!r}: {wanted} partitions would make {total} in the cluster, "
                f"more than {PARTITIONS_TOTAL_MAX}"
            )

    def _topic_to_change(self, number: int) -> Topic:
        topic = self._by_number.get(number)
        if topic is None:
            raise UnknownTopic(f"no topic has the number {number}")
        return topic

    # after the log

    def apply(self, command: Command) -> Event | None:
        """Change the state; returns the news for those who follow topics. Raises `InconsistentCommand`,
        with the state unchanged, when the command cannot follow those before it."""
        if self._cluster is None and not isinstance(command, CreateCluster):
            raise InconsistentCommand("the first command does not create the cluster")
        match command:
            case CreateCluster():
                if self._cluster is not None or len(command.slots) != SLOTS:
                    raise InconsistentCommand("the cluster is created twice, or its slot table is not whole")
                self._cluster = command
                return None
            case RegisterNode(node_id=node_id, host=host, port=port, rack=rack):
                self._nodes[node_id] = Node(node_id=node_id, host=host, port=port, rack=rack)
                return None
            case CreateTopic():
                return self._apply_new_topic(command)
            case AddPartitions(number=number, total=total):
                before = self._applied_topic(number)
                topic = self._replace(before, replace(before, partitions=total))
                return PartitionsAdded(topic, before.partitions)
            case ChangeTopicConfigs(number=number, changes=changes):
                before = self._applied_topic(number)
                return TopicConfigsChanged(before, self._replace(before, self.with_configs(before, changes)))
            case DeleteTopic(number=number):
                topic = self._applied_topic(number)
                del self._by_name[topic.name], self._by_id[topic.topic_id], self._by_number[number]
                del self._name_by_collision_key[collision_key(topic.name)]
                self._partitions_total -= topic.partitions
                return TopicDeleted(topic)
            case AllocateProducerIds(first=first, count=count):
                if first != self._next_producer_id:
                    raise InconsistentCommand(f"producer ids from {first}, not {self._next_producer_id}")
                self._next_producer_id = first + count
                return None
            case AdvanceCounters(topic_number=topic_number, producer_id=producer_id):
                if topic_number < self._next_topic_number or producer_id < self._next_producer_id:
                    raise InconsistentCommand("counters go back")
                self._next_topic_number, self._next_producer_id = topic_number, producer_id
                return None

    def _apply_new_topic(self, command: CreateTopic) -> TopicCreated:
        key = collision_key(command.name)
        if command.number < self._next_topic_number:
            raise InconsistentCommand(f"topic number {command.number} is given twice")
        if key in self._name_by_collision_key or command.topic_id in self._by_id:
            raise InconsistentCommand(f"topic {command.name!r} is created twice")
        topic = topic_of(command, self._settings(command.configs))
        self._by_name[topic.name] = self._by_id[topic.topic_id] = self._by_number[topic.number] = topic
        self._name_by_collision_key[key] = topic.name
        self._next_topic_number = topic.number + 1
        self._partitions_total += topic.partitions
        return TopicCreated(topic)

    def _applied_topic(self, number: int) -> Topic:
        topic = self._by_number.get(number)
        if topic is None:
            raise InconsistentCommand(f"no topic has the number {number}")
        return topic

    def _replace(self, before: Topic, after: Topic) -> Topic:
        self._by_name[after.name] = self._by_id[after.topic_id] = self._by_number[after.number] = after
        self._partitions_total += after.partitions - before.partitions
        return after

    def _settings(self, configs: Mapping[str, str]) -> TopicSettings:
        return self._settings_of(configs) if configs else self._default_settings

    # snapshots

    def commands(self) -> Iterator[Command]:
        """The shortest log that leads to this state."""
        if self._cluster is None:
            return
        yield self._cluster
        for node in self._nodes.values():
            yield RegisterNode(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
        for topic in self._by_number.values():  # in the order they were created: numbers go up
            yield CreateTopic(
                name=topic.name,
                number=topic.number,
                topic_id=topic.topic_id,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=dict(topic.configs),
                internal=topic.internal,
            )
        yield AdvanceCounters(topic_number=self._next_topic_number, producer_id=self._next_producer_id)


def topic_of(command: CreateTopic, settings: TopicSettings) -> Topic:
    """The topic that a command creates."""
    return Topic(
        name=command.name,
        number=command.number,
        topic_id=command.topic_id,
        partitions=command.partitions,
        configs=command.configs or _NO_CONFIGS,
        settings=settings,
        internal=command.internal,
        replication_factor=command.replication_factor,
    )
