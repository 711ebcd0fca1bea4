"""The configs of a topic and of a broker as clients see them: value, source, type and meaning.

A topic's value comes from the topic, else from the broker's default; the chain of these is its synonyms. Some of a
broker's configs are fixed while it runs. The others, defaults of topics among them, come from what is set for it, else
from what is set for all brokers, else from its configuration file, else from Kafka's default.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mainstem.broker.admin import loggers
from mainstem.broker.broker import Broker
from mainstem.broker.settings.live_settings import BROKER_FIELDS, text_of
from mainstem.model import ResourceType
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig
from mainstem.nameserver.state.resource_configs.broker_configs import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    GROUP_CONFIG_OF,
    TOPIC_CONFIG_OF,
)
from mainstem.nameserver.state.resource_configs.config_table import RULES
from mainstem.nameserver.state.resource_configs.topic_defaults import TopicDefaults
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS


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


def loggers_name_fault(broker: Broker, name: str) -> str | None:
    """The fault in the name of a resource with loggers, in words; None: it is this node's id."""
    return broker_name_fault(broker, name) if name != ALL_BROKERS else "loggers are of one broker, named by its id"


_LOGGER_HELP = "The least level of what is logged: FATAL, ERROR, WARN, INFO, DEBUG or TRACE, which is DEBUG here."


class ConfigSource(enum.IntEnum):
    """The sources of a value, with Kafka's codes."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
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


def topic_entries(broker: Broker, configs: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """All configs of a topic with these overrides."""
    for config in TOPIC_CONFIGS.values():
        if config.broker_names:
            chain = _live_chain(broker, config.broker_names[0])
        else:
            chain = _default_chain(config, broker.facts.topic_defaults)
        if config.name in configs:
            chain = (Synonym(config.name, configs[config.name], ConfigSource.TOPIC), *chain)
        yield ConfigEntry(config.name, config.type, config.help, chain, read_only=False)


def topic_defaults(broker: Broker) -> Mapping[str, str]:
    """By the configs of topics, the values that those have here which set none; where it is not among them, Kafka's."""
    set_for = {name: broker.configs.of(ResourceType.BROKER, name) for name in (ALL_BROKERS, str(broker.node_id))}
    return TopicDefaults(broker.facts.topic_defaults, broker.node_id).in_force(set_for)


def values_beneath(broker: Broker, name: str) -> Mapping[str, str]:
    """The values that a broker's configs would have if nothing were set for the resource of this name."""
    above = () if name == ALL_BROKERS else (ALL_BROKERS,)
    return {config: _live_chain(broker, config, above)[0].value for config in BROKER_CONFIGS}


def resource_entries(broker: Broker, kind: ResourceType, name: str) -> Iterator[ConfigEntry]:
    """All configs of a group or of client metrics: what is set, the node's value, and Kafka's default."""
    present = broker.configs.of(kind, name)
    source = ConfigSource.GROUP if kind is ResourceType.GROUP else ConfigSource.CLIENT_METRICS
    for config in configs_of(kind).values():
        if config.broker_names:
            chain = _live_chain(broker, config.broker_names[0])
        else:
            chain = _default_chain(config, broker.facts.group_defaults)
        if config.name in present:
            chain = (Synonym(config.name, present[config.name], source), *chain)
        yield ConfigEntry(config.name, config.type, config.help, chain, read_only=False)


def broker_entries(broker: Broker) -> Iterator[ConfigEntry]:
    """The configs of this broker under Kafka's names: those that are fixed, then those that change while it runs."""
    for name, type_, value, default, documentation in _own_configs(broker):
        chain: tuple[Synonym, ...] = (Synonym(name, default, ConfigSource.DEFAULT),)
        if value != default:
            chain = (Synonym(name, value, ConfigSource.STATIC_BROKER), *chain)
        yield ConfigEntry(name, type_, documentation, chain, read_only=True)
    for config in BROKER_CONFIGS.values():
        yield ConfigEntry(config.name, config.type, config.help, _live_chain(broker, config.name), read_only=False)


def all_brokers_entries(broker: Broker) -> Iterator[ConfigEntry]:
    """The configs that are set for all brokers, and no others, as in Kafka."""
    for name, value in broker.configs.of(ResourceType.BROKER, ALL_BROKERS).items():
        if (config := BROKER_CONFIGS.get(name)) is not None:
            chain = (Synonym(name, value, ConfigSource.DYNAMIC_DEFAULT_BROKER),)
            yield ConfigEntry(name, config.type, config.help, chain, read_only=False)


def logger_entries() -> Iterator[ConfigEntry]:
    """The loggers of this node's process, with their levels."""
    for name, level in loggers.levels():
        chain = (Synonym(name, level, ConfigSource.DYNAMIC_BROKER_LOGGER),)
        yield ConfigEntry(name, ConfigType.STRING, _LOGGER_HELP, chain, read_only=False)


def fixed_reason(broker: Broker, name: str) -> str | None:
    """Says why a broker's config cannot be changed while it runs; None: it can."""
    if name in BROKER_CONFIGS:
        return None
    for config in TOPIC_CONFIGS.values():
        if name in config.broker_names:
            return f"{name} does not change while a broker runs; {config.broker_names[0]}, of the same meaning, does"
    if any(name == fixed[0] for fixed in _own_configs(broker)):
        return f"{name} is read when a node starts: set it in the configuration file, and start the node anew"
    return (
        f"there is no broker config {name[:100]!r} that can change while a node runs; DescribeConfigs of this broker "
        "lists those that can, as not read-only"
    )


def _live_chain(broker: Broker, name: str, resources: Iterable[str] | None = None) -> tuple[Synonym, ...]:
    """The values of one of `BROKER_CONFIGS`, from that in force on. `resources`: as if nothing were set for others;
    the one that comes before all others last."""
    config = BROKER_CONFIGS[name]
    chain: tuple[Synonym, ...] = (Synonym(name, config.default, ConfigSource.DEFAULT),)
    in_file = _in_file(broker, name)
    if in_file is not None and in_file != config.default:
        chain = (Synonym(name, in_file, ConfigSource.STATIC_BROKER), *chain)
    for resource in (ALL_BROKERS, str(broker.node_id)) if resources is None else resources:
        if (value := broker.configs.of(ResourceType.BROKER, resource).get(name)) is not None:
            is_of_all = resource == ALL_BROKERS
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER if is_of_all else ConfigSource.DYNAMIC_BROKER
            chain = (Synonym(name, value, source), *chain)
    return chain


def _in_file(broker: Broker, name: str) -> str | None:
    """The value in this node's configuration file, or in force by default; None: Kafka's."""
    if name in BROKER_FIELDS:
        return text_of(broker.static_config, name)
    if (of_groups := GROUP_CONFIG_OF.get(name)) is not None:
        return broker.facts.group_defaults.get(of_groups)
    if (of_topics := TOPIC_CONFIG_OF.get(name)) is not None:
        return broker.facts.topic_defaults.get(of_topics)
    return None


def _default_chain(config: DeclaredConfig, defaults: Mapping[str, str]) -> tuple[Synonym, ...]:
    name = config.broker_names[0] if config.broker_names else config.name
    chain = (Synonym(name, config.default, ConfigSource.DEFAULT),)
    if config.name in defaults:
        return (Synonym(name, defaults[config.name], ConfigSource.STATIC_BROKER), *chain)
    return chain


def _own_configs(broker: Broker) -> Iterator[tuple[str, ConfigType, str, str, str]]:
    """(Kafka's name, type, value, default, documentation) of the broker's own configs."""
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
    for name, kind, each, documentation in (
        ("listeners", ConfigType.LIST, broker.facts.listeners, "Where this node listens for clients."),
        ("advertised.listeners", ConfigType.LIST, broker.facts.advertised, "Where clients are told to come to."),
        ("listener.security.protocol.map", ConfigType.STRING, broker.facts.protocols, "What listeners speak."),
    ):
        yield name, kind, ",".join(each), "", documentation
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
    yield "delete.topic.enable", boolean, "true", "true", "Whether topics can be deleted."
    yield (
        "remote.log.storage.system.enable",
        boolean,
        str(broker.facts.has_remote_store).lower(),
        "false",
        "Whether topics may have a remote tier: whether remote_dir is set.",
    )
