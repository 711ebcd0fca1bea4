"""The configs of a topic and of a broker as clients see them: value, source, type and meaning.

A topic's value comes from the topic, else from the node's default, else from Kafka's default; the chain of these
is its synonyms. A broker's configs are fixed while it runs.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mainstem.broker.broker import Broker
from mainstem.model import ResourceType
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig
from mainstem.nameserver.state.resource_configs.config_table import RULES
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one of Kafka's selectors that there is here as well."""

ALL_BROKERS = ""
"""The resource name of the defaults that Kafka lets a client set for all brokers at once; here there are
none."""


def unsupported_message(resource_type: int) -> str:
    names = {kind.value: kind.name for kind in ResourceType}
    named = names.get(resource_type, resource_type)
    return f"resources of type {named} have no configs here; topics, brokers, groups and client metrics have"


def configs_of(resource_type: int) -> Mapping[str, DeclaredConfig]:
    """The configs that the metadata keeps for resources of a type that is no topic; empty: none."""
    rules = RULES.get(ResourceType(resource_type)) if resource_type in set(ResourceType) else None
    return {} if rules is None else rules.configs


def broker_name_fault(broker: Broker, name: str) -> str | None:
    """The fault in a broker resource's name, in words; None: it is this node's id, or empty for all
    brokers."""
    if name in (ALL_BROKERS, str(broker.node_id)):
        return None
    return f"this is broker {broker.node_id}; ask broker {name[:20]!r} itself"


class ConfigSource(enum.IntEnum):
    """The sources of a value, with Kafka's codes."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One config. `synonyms` run from the value in force to the value that would hold if nothing was set."""

    name: str
    type: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]
    read_only: bool

    @property
    def value(self) -> str:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


def topic_entries(configs: Mapping[str, str], defaults: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """All configs of a topic with these overrides on a node with these defaults."""
    for config in TOPIC_CONFIGS.values():
        chain = _default_chain(config, defaults)
        if config.name in configs:
            chain = (Synonym(config.name, configs[config.name], ConfigSource.TOPIC), *chain)
        yield ConfigEntry(config.name, config.type, config.help, chain, read_only=False)


def resource_entries(broker: Broker, kind: ResourceType, name: str) -> Iterator[ConfigEntry]:
    """All configs of a resource that is no topic and no broker: what is set, the node's value, and Kafka's default."""
    present = broker.configs.of(kind, name)
    is_group = kind is ResourceType.GROUP
    source = ConfigSource.GROUP if is_group else ConfigSource.CLIENT_METRICS
    defaults: Mapping[str, str] = broker.facts.group_defaults if is_group else {}
    for config in configs_of(kind).values():
        chain = _default_chain(config, defaults)
        if config.name in present:
            chain = (Synonym(config.name, present[config.name], source), *chain)
        yield ConfigEntry(config.name, config.type, config.help, chain, read_only=False)


def broker_entries(broker: Broker) -> Iterator[ConfigEntry]:
    """The configs of this broker under Kafka's names: its own, then the defaults it gives to topics."""
    for name, type_, value, default, documentation in _own_configs(broker):
        chain: tuple[Synonym, ...] = (Synonym(name, default, ConfigSource.DEFAULT),)
        if value != default:
            chain = (Synonym(name, value, ConfigSource.STATIC_BROKER), *chain)
        yield ConfigEntry(name, type_, documentation, chain, read_only=True)
    for config in TOPIC_CONFIGS.values():
        if config.broker_names:
            chain = _default_chain(config, broker.facts.topic_defaults)
            yield ConfigEntry(config.broker_names[0], config.type, config.help, chain, read_only=True)


def _default_chain(config: DeclaredConfig, defaults: Mapping[str, str]) -> tuple[Synonym, ...]:
    name = config.broker_names[0] if config.broker_names else config.name
    chain = (Synonym(name, config.default, ConfigSource.DEFAULT),)
    if config.name in defaults:
        return (Synonym(name, defaults[config.name], ConfigSource.STATIC_BROKER), *chain)
    return chain


def _own_configs(broker: Broker) -> Iterator[tuple[str, ConfigType, str, str, str]]:
    """(Kafka's name, type, value, default, documentation) of the broker's own configs."""
    config = broker.config
    usual = type(config)()
    node_id = str(broker.node_id)
    whole, boolean = ConfigType.INT, ConfigType.BOOLEAN
    yield "broker.id", whole, node_id, "-1", "The id of this node in the cluster."
    yield "node.id", whole, node_id, "-1", "The id of this node in the cluster."
    yield (
        "log.dirs",
        ConfigType.STRING,
        ",".join(place.location for place in (broker.facts.write_dir, broker.facts.store_dir) if place),
        "",
        "Where messages lie: the journal's directory, and the queue store.",
    )
    for name, addresses, documentation in (
        ("listeners", broker.facts.listeners, "Where this node listens for clients."),
        ("advertised.listeners", (broker.facts.advertised,), "Where clients are told to come to."),
    ):
        text = ",".join(f"PLAINTEXT://{address}" for address in addresses if address)
        yield name, ConfigType.LIST, text, "", documentation
    if broker.authorizer is not None:
        rules = broker.authorizer.config
        yield "super.users", ConfigType.STRING, rules.super_users, "", "Principals that may do everything."
        yield (
            "allow.everyone.if.no.acl.found",
            boolean,
            str(rules.allow_everyone_if_no_acl_found).lower(),
            "false",
            "Whether everybody may do everything with what no access rule is about.",
        )
    yield "broker.rack", ConfigType.STRING, broker.facts.rack, "", "Where this node stands."
    yield (
        "replica.selector.class",
        ConfigType.STRING,
        RACK_AWARE_SELECTOR if config.rack_aware_reads else "",
        "",
        "Where consumers read that name their rack; empty: from leaders alone.",
    )
    yield (
        "auto.create.topics.enable",
        boolean,
        str(config.auto_create_topics).lower(),
        str(usual.auto_create_topics).lower(),
        "Whether asking for an unknown topic creates it.",
    )
    yield "delete.topic.enable", boolean, "true", "true", "Whether topics can be deleted."
    yield (
        "num.partitions",
        whole,
        str(config.num_partitions),
        str(usual.num_partitions),
        "Partitions of topics that are created without a count.",
    )
    yield (
        "default.replication.factor",
        whole,
        str(config.default_replication_factor),
        str(usual.default_replication_factor),
        "Replicas of topics that are created without a count. The cluster keeps as many copies of every topic as its "
        f"write groups have replicas, up to {broker.facts.replication_factor}; CreateTopics answers how many, and "
        "refuses more.",
    )
    yield (
        "remote.log.storage.system.enable",
        boolean,
        str(broker.facts.has_remote_store).lower(),
        "false",
        "Whether topics may have a remote tier: whether remote_dir is set.",
    )
    yield (
        "fetch.max.bytes",
        whole,
        str(config.fetch_bytes_max),
        str(usual.fetch_bytes_max),
        "The most bytes of one fetch response.",
    )
    yield (
        "max.incremental.fetch.session.cache.slots",
        whole,
        str(config.fetch_sessions_max),
        str(usual.fetch_sessions_max),
        "The most fetch sessions that are remembered.",
    )
