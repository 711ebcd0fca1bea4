"""The topics of the metadata state: holds them, checks what is wanted of them, and applies commands to them.
No I/O.

Invariants: a topic number is never given twice (queue ids, and so messages, depend on it); a deleted topic is
known to be deleted (`was_deleted`), so that data whose topic is merely missing is never taken for garbage;
lookups by name, id and number are one dict access; partitions cost nothing.

Topic names are legal, and no two can be mistaken for each other. Kafka's rules: 1 to 249 characters of a-z, A-Z, 0-9,
'.', '_' and '-', but neither '.' nor '..'. Metric systems turn '.' into '_', so two topics may not differ in these
alone.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mainstem.model import Topic, TopicSettings
from mainstem.nameserver.errors import (
    InconsistentCommand,
    InvalidConfig,
    InvalidPartitions,
    InvalidTopicName,
    TopicExists,
    UnknownTopic,
)
from mainstem.nameserver.state.commands import (
    AddAcl,
    AddPartitions,
    ChangeQuotas,
    ChangeTopicConfigs,
    Command,
    CreateTopic,
    DeleteTopic,
    PartitionsAdded,
    SetScramCredential,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from mainstem.nameserver.state.plans.replica_classes import Factors, check_factor
from mainstem.nameserver.state.tiering_rules import REMOTE, check_local_limits, check_tiering
from mainstem.nameserver.state.topic_config import check_configs, config_named, topic_settings
from mainstem.security.acls.acl import Acl
from mainstem.security.quotas.quota import Entity, entity_of

NAME_LENGTH_MAX = 249  # with "-<partition>" added it still fits a file name of 255 bytes
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopicName` unless the name is legal."""
    if not name:
        raise InvalidTopicName("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicName(f"the topic name cannot be {name!r}")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"the topic name has {len(name)} characters, more than {NAME_LENGTH_MAX}: {name[:40]!r}…"
        )
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(
            f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
        )


def collision_key(name: str) -> str:
    """Equal for names that could be mistaken for each other."""
    return name.replace(".", "_")


PARTITIONS_PER_TOPIC_MAX = 100_000  # one Metadata response of such a topic stays below 4 MiB
PARTITIONS_TOTAL_MAX = 1_000_000
"""Of clients' topics: the queue table is built and measured for this many queues per node. The brokers' own
topics may exceed it, or a full cluster would have no consumer groups."""
TOPICS_MAX = 200_000  # twice what is measured; a snapshot of it stays below 64 MiB
FIRST_TOPIC_NUMBER = 1  # 0 is left unused, so that an unset queue id is not a queue
TOPIC_NUMBER_MAX = 0x7FFF_FFFF  # queue ids stay positive as signed 64-bit numbers

_NO_CONFIGS: Mapping[str, str] = {}


class PendingChanges:
    """Commands that were checked and are not applied yet, of topics that are created or deleted together, and of access
    rules that are added together. A command checked after them must fit them, too."""

    def __init__(self) -> None:
        self.name_by_collision_key: dict[str, str] = {}
        """Names of the topics to be created."""
        self.partitions = 0
        """Partitions of the topics to be created."""
        self.deleted: set[int] = set()
        """Numbers of the topics to be deleted."""
        self.acls: set[Acl] = set()
        """Access rules to be added."""
        self.users: set[str] = set()
        """Users who get credentials."""
        self.with_quotas: set[Entity] = set()
        """Entities that get quotas."""
        self.queues_of_tenants: Counter[str] = Counter()
        """Partitions of the topics to be created, by tenant."""

    def add(self, command: Command) -> None:
        """Add a command that was checked."""
        if isinstance(command, CreateTopic):
            self.name_by_collision_key[collision_key(command.name)] = command.name
            self.partitions += command.partitions
        elif isinstance(command, DeleteTopic):
            self.deleted.add(command.number)
        elif isinstance(command, AddAcl):
            self.acls.add(command.acl)
        elif isinstance(command, SetScramCredential):
            self.users.add(command.user)
        elif isinstance(command, ChangeQuotas) and any(value is not None for value in command.changes.values()):
            self.with_quotas.add(entity_of(command.entity))


NOTHING_PENDING = PendingChanges()


class TopicTable:
    """Holds the topics. `defaults`: this node's configs of those that have none of their own. `has_remote_store`:
    whether topics may have a remote tier."""

    def __init__(self, defaults: Mapping[str, str] = _NO_CONFIGS, *, has_remote_store: bool = False) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[uuid.UUID, Topic] = {}
        self.by_number: dict[int, Topic] = {}
        self.partitions_total = 0
        self.deletions = 0
        """Topics deleted since this table was made."""
        self.next_number = FIRST_TOPIC_NUMBER
        self._name_by_collision_key: dict[str, str] = {}
        self._has_remote_store = has_remote_store
        self.defaults = defaults
        self.default_settings = topic_settings(_NO_CONFIGS, defaults)  # shared by all topics without overrides

    def was_deleted(self, number: int) -> bool:
        """Whether a topic of this number existed and was deleted by a command. False for a number that this
        state has never given out: its data must be kept."""
        return FIRST_TOPIC_NUMBER <= number < self.next_number and number not in self.by_number

    def with_configs(self, topic: Topic, changes: Mapping[str, str | None]) -> Topic:
        """The topic as it would be with these configs set (a value) and removed (None)."""
        merged: dict[str, str | None] = {**topic.configs, **changes}
        configs = {key: value for key, value in merged.items() if value is not None}
        return replace(topic, configs=configs, settings=self._settings(configs))

    # before the log

    def check_new(self, command: CreateTopic, pending: PendingChanges, nodes: int, factors: Factors) -> None:
        """`nodes`: how many store; `factors`: those of the classes of write groups."""
        check_topic_name(command.name)
        key = collision_key(command.name)
        like = self._name_by_collision_key.get(key) or pending.name_by_collision_key.get(key)
        if like == command.name:
            raise TopicExists(f"topic {command.name!r} exists already")
        if like is not None:
            raise InvalidTopicName(f"topic {command.name!r} collides with {like!r}: they differ in '.' and '_' only")
        topics = len(self.by_name) + len(pending.name_by_collision_key)
        if topics >= TOPICS_MAX or command.number > TOPIC_NUMBER_MAX:
            raise InvalidPartitions(f"the cluster has {topics} topics, the most it takes")
        others = 0 if command.internal else self.partitions_total + pending.partitions
        self._check_partitions(command.name, command.partitions, others)
        check_factor(command, nodes, factors)
        check_configs(command.configs)
        self._check_tiering(command.configs, None)

    def check_more_partitions(self, command: AddPartitions) -> None:
        topic = self._topic_to_change(command.number)
        if command.total == topic.partitions:
            raise InvalidPartitions(f"topic {topic.name!r} has {topic.partitions} partitions already")
        if command.total < topic.partitions:
            raise InvalidPartitions(
                f"topic {topic.name!r} has {topic.partitions} partitions, not fewer: {command.total}"
            )
        self._check_partitions(topic.name, command.total, self.partitions_total - topic.partitions)

    def check_configs(self, command: ChangeTopicConfigs) -> None:
        topic = self._topic_to_change(command.number)
        merged = {**topic.configs, **command.changes}
        wanted = {key: value for key, value in merged.items() if value is not None}
        check_configs(wanted)
        self._check_tiering(wanted, topic)

    def check_deletion(self, command: DeleteTopic, pending: PendingChanges) -> None:
        if command.number in pending.deleted:
            raise UnknownTopic(f"the topic of number {command.number} is being deleted")
        self._topic_to_change(command.number)

    def switches_tiering_on(self, command: CreateTopic | ChangeTopicConfigs) -> bool:
        """Whether a command, which was checked, gives a remote tier to a topic."""
        return _is_tiered(command.configs if isinstance(command, CreateTopic) else command.changes)

    def _check_tiering(self, configs: Mapping[str, str], before: Topic | None) -> None:
        """Check configs that are each as they should be against those of the topic, if it exists."""
        was_tiered = before is not None and before.settings.remote_storage_enable
        if was_tiered or _is_tiered(configs):
            settings = before.settings if before is not None else None
            check_tiering(self._settings(configs), settings, has_store=self._has_remote_store)

    def _check_partitions(self, name: str, wanted: int, others: int) -> None:
        if not 1 <= wanted <= PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitions(f"topic {name!r}: {wanted} partitions, allowed is 1 to {PARTITIONS_PER_TOPIC_MAX}")
        total = others + wanted
        if total > PARTITIONS_TOTAL_MAX:
            raise InvalidPartitions(
                f"topic {name!r}: {wanted} partitions would make {total} in the cluster, "
                f"more than {PARTITIONS_TOTAL_MAX}"
            )

    def _topic_to_change(self, number: int) -> Topic:
        topic = self.by_number.get(number)
        if topic is None:
            raise UnknownTopic(f"no topic has the number {number}")
        return topic

    # after the log

    def create(self, command: CreateTopic) -> TopicCreated:
        key = collision_key(command.name)
        if command.number < self.next_number:
            raise InconsistentCommand(f"topic number {command.number} is given twice")
        if key in self._name_by_collision_key or command.topic_id in self.by_id:
            raise InconsistentCommand(f"topic {command.name!r} is created twice")
        topic = topic_of(command, self._settings(command.configs))
        self.by_name[topic.name] = self.by_id[topic.topic_id] = self.by_number[topic.number] = topic
        self._name_by_collision_key[key] = topic.name
        self.next_number = topic.number + 1
        self.partitions_total += topic.partitions
        return TopicCreated(topic)

    def add_partitions(self, command: AddPartitions) -> PartitionsAdded:
        before = self._applied(command.number)
        return PartitionsAdded(self._replace(before, replace(before, partitions=command.total)), before.partitions)

    def change_configs(self, command: ChangeTopicConfigs) -> TopicConfigsChanged:
        before = self._applied(command.number)
        return TopicConfigsChanged(before, self._replace(before, self.with_configs(before, command.changes)))

    def delete(self, command: DeleteTopic) -> TopicDeleted:
        topic = self._applied(command.number)
        del self.by_name[topic.name], self.by_id[topic.topic_id], self.by_number[topic.number]
        del self._name_by_collision_key[collision_key(topic.name)]
        self.partitions_total -= topic.partitions
        self.deletions += 1
        return TopicDeleted(topic)

    def _applied(self, number: int) -> Topic:
        topic = self.by_number.get(number)
        if topic is None:
            raise InconsistentCommand(f"no topic has the number {number}")
        return topic

    def _replace(self, before: Topic, after: Topic) -> Topic:
        self.by_name[after.name] = self.by_id[after.topic_id] = self.by_number[after.number] = after
        self.partitions_total += after.partitions - before.partitions
        return after

    def _settings(self, configs: Mapping[str, str]) -> TopicSettings:
        return topic_settings(configs, self.defaults) if configs else self.default_settings

    # other defaults

    def use(self, defaults: Mapping[str, str]) -> None:
        """New topics have these defaults from now on; for the others see `reconsidered`."""
        self.defaults = defaults
        self.default_settings = topic_settings(_NO_CONFIGS, defaults)

    def reconsidered(self) -> Iterator[TopicConfigsChanged]:
        """Give the present topics the settings that they have by the present defaults, one after the other, as it is
        asked for the next; no topic may change meanwhile."""
        for topic, after in self._changed_by(self.defaults):
            yield TopicConfigsChanged(topic, self._replace(topic, after))

    def check_defaults(self, defaults: Mapping[str, str]) -> Iterator[tuple[Topic, Topic]]:
        """Each topic that they change, as it is and as it would be. Raises `InvalidConfig` for what a topic cannot
        have, or for two defaults that do not go together."""
        check_configs(defaults)
        if self._has_remote_store:
            check_local_limits(topic_settings(_NO_CONFIGS, defaults))
        for topic, after in self._changed_by(defaults):
            if topic.settings.remote_storage_enable:
                try:
                    check_tiering(after.settings, topic.settings, has_store=self._has_remote_store)
                except InvalidConfig as error:
                    raise InvalidConfig(f"topic {topic.name!r} has a remote tier: {error}") from None
            yield topic, after

    def _changed_by(self, defaults: Mapping[str, str]) -> Iterator[tuple[Topic, Topic]]:
        """Each topic that has other settings by these defaults, as it is and as it would be."""
        known: dict[tuple[tuple[str, str], ...], TopicSettings] = {}
        for topic in tuple(self.by_number.values()):
            key = tuple(sorted(topic.configs.items()))
            settings = known.get(key) or known.setdefault(key, topic_settings(topic.configs, defaults))
            if settings != topic.settings:
                yield topic, replace(topic, settings=settings)

    # snapshots

    def commands(self) -> Iterator[CreateTopic]:
        """The commands that create the present topics; changes made meanwhile do not show in them."""
        return map(_creation_of, tuple(self.by_number.values()))  # in the order they were created: numbers go up


def _is_tiered(configs: Mapping[str, str | None]) -> bool:
    """Whether these configs of a topic, or changes of them, give it a remote tier. No node's default does."""
    value = configs.get(REMOTE)
    return value is not None and config_named(REMOTE).parse(value) is True


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


def _creation_of(topic: Topic) -> CreateTopic:
    return CreateTopic(
        name=topic.name,
        number=topic.number,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=dict(topic.configs),
        internal=topic.internal,
    )
