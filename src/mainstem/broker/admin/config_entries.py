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
from mainstem.broker.settings.fixed_configs import FIXED_CONFIGS, OF_ONE_LISTENER, SAME_FOR_ALL, FixedConfig
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
    """`value` is None where Kafka has no default."""

    name: str
    value: str | None
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
    def value(self) -> str | None:
        return self.synonyms[0].value

    @property
    def is_sensitive(self) -> bool:
        """Whether nobody is told the value."""
        return self.type is ConfigType.PASSWORD

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
    return {name: _live_chain(broker, name, above)[0].value or "" for name in BROKER_CONFIGS}


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
    for name, config, value in _fixed(broker):
        chain: tuple[Synonym, ...] = (Synonym(name, config.default, ConfigSource.DEFAULT),)
        if value != config.default:
            chain = (Synonym(name, value, ConfigSource.STATIC_BROKER), *chain)
        yield ConfigEntry(name, config.type, config.help, chain, read_only=True)
    for live in BROKER_CONFIGS.values():
        yield ConfigEntry(live.name, live.type, live.help, _live_chain(broker, live.name), read_only=False)


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
    if name in SAME_FOR_ALL:
        return f"{name} is {SAME_FOR_ALL[name]} on every node, and cannot be set"
    fixed = FIXED_CONFIGS.get(name)
    if fixed is not None and fixed.without_effect is not None:
        return f"{name} would have no effect here: {fixed.without_effect}"
    if fixed is not None or name in broker.facts.fixed:
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
    if name in broker.facts.fixed:
        return broker.facts.fixed[name]
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


def _fixed(broker: Broker) -> Iterator[tuple[str, FixedConfig, str | None]]:
    """(Kafka's name, config, value) of all that does not change while the broker runs, those of its listeners last."""
    values = _fixed_values(broker)
    for name, config in FIXED_CONFIGS.items():
        yield name, config, values.get(name, config.default) or config.default
    for name, value in values.items():
        if name.startswith(OF_ONE_LISTENER):
            own = FIXED_CONFIGS[name.split(".", 3)[3]]
            documentation = f"As {name.split('.', 3)[3]}, of this listener."
            yield name, FixedConfig(own.type, None, documentation), value


def _fixed_values(broker: Broker) -> Mapping[str, str]:
    """By Kafka's names; empty where nothing is set."""
    facts, node_id = broker.facts, str(broker.node_id)
    values = {
        **SAME_FOR_ALL,
        **facts.fixed,
        "broker.id": node_id,
        "node.id": node_id,
        "log.dirs": ",".join(place.location for place in (facts.write_dir, facts.store_dir) if place),
        "listeners": ",".join(facts.listeners),
        "advertised.listeners": ",".join(facts.advertised),
        "listener.security.protocol.map": ",".join(facts.protocols),
        "broker.rack": facts.rack,
        "remote.log.storage.system.enable": str(facts.has_remote_store).lower(),
    }
    if broker.authorizer is not None:
        rules = broker.authorizer.config
        values["super.users"] = rules.super_users
        values["allow.everyone.if.no.acl.found"] = str(rules.allow_everyone_if_no_acl_found).lower()
    return values
