"""Kafka's configs of brokers that change while nodes run, for one node or for all of them at once: those of the broker
itself, the defaults of groups and of topics, and those that are kept and do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mainstem.host_bounds import HostBoundsError, host_bounds
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import INT_MAX, ConfigType, DeclaredConfig
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS, check_group
from mainstem.nameserver.state.resource_configs.kept_broker_configs import KEPT_CONFIGS
from mainstem.nameserver.state.topic_config import TOPIC_CONFIGS, check_configs

ALL_BROKERS = ""
"""The name of the resource with what is set for all nodes; what is set for one node comes before it."""

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""The one of Kafka's selectors that there is here as well."""

CONNECTIONS, CONNECTIONS_OF_IP = "max.connections", "max.connections.per.ip"
CONNECTIONS_OF_IPS = "max.connections.per.ip.overrides"

_OF_BROKERS = (
    DeclaredConfig(
        name="auto.create.topics.enable",
        type=ConfigType.BOOLEAN,
        default="true",
        documentation="Whether asking for an unknown topic creates it.",
    ),
    DeclaredConfig(
        name="num.partitions",
        type=ConfigType.INT,
        default="1",
        minimum=1,
        maximum=1_000_000,
        documentation="Partitions of topics that are created without a count.",
    ),
    DeclaredConfig(
        name="default.replication.factor",
        type=ConfigType.INT,
        default="-1",
        minimum=-1,
        maximum=32_767,
        documentation="Replicas of topics that are created without a count; -1: as many as the write groups have with "
        "which the cluster began. A topic has as many copies as the write groups that it is in have replicas; "
        "CreateTopics answers how many, and refuses a number that none of them has.",
    ),
    DeclaredConfig(
        name="fetch.max.bytes",
        type=ConfigType.INT,
        default="57671680",
        minimum=1024,
        maximum=INT_MAX,
        documentation="The most bytes of one fetch response.",
    ),
    DeclaredConfig(
        name=CONNECTIONS,
        type=ConfigType.INT,
        default=str(INT_MAX),
        minimum=1,
        maximum=INT_MAX,
        documentation="The most connections of clients. Where more are open none is closed, and no new one is let in.",
    ),
    DeclaredConfig(
        name=CONNECTIONS_OF_IP,
        type=ConfigType.INT,
        default=str(INT_MAX),
        minimum=0,
        maximum=INT_MAX,
        documentation="The most connections of one address.",
    ),
    DeclaredConfig(
        name=CONNECTIONS_OF_IPS,
        type=ConfigType.STRING,
        default="",
        documentation="The addresses that may have more, or fewer: ADDRESS:COUNT, separated by commas.",
    ),
    DeclaredConfig(
        name="max.incremental.fetch.session.cache.slots",
        type=ConfigType.INT,
        default="1000",
        minimum=0,
        maximum=1_000_000,
        documentation="The most fetch sessions that are remembered.",
    ),
    DeclaredConfig(
        name="replica.selector.class",
        type=ConfigType.STRING,
        default="",
        choices=("", RACK_AWARE_SELECTOR),
        documentation="Where consumers read that name their rack; empty: from leaders alone.",
    ),
    DeclaredConfig(
        name="telemetry.max.bytes",
        type=ConfigType.INT,
        default="1048576",
        minimum=1,
        maximum=INT_MAX,
        documentation="The most bytes that a client pushes of its metrics at once, compressed.",
    ),
)
GROUP_CONFIG_OF = {config.broker_names[0]: config.name for config in GROUP_CONFIGS.values() if config.broker_names}
"""By Kafka's broker config the config of groups that it is the default of."""
TOPIC_CONFIG_OF = {config.broker_names[0]: config.name for config in TOPIC_CONFIGS.values() if config.broker_names}
"""The same of topics. Kafka's other names of them (`log.retention.hours`) do not change while a broker runs."""

BROKER_CONFIGS: Mapping[str, DeclaredConfig] = {
    **{config.name: config for config in _OF_BROKERS},
    **{name: replace(GROUP_CONFIGS[own], name=name, broker_names=()) for name, own in GROUP_CONFIG_OF.items()},
    **{name: replace(TOPIC_CONFIGS[own], name=name, broker_names=()) for name, own in TOPIC_CONFIG_OF.items()},
    **{config.name: config for config in KEPT_CONFIGS},
}


def broker_name_fault(name: str) -> str | None:
    if name == ALL_BROKERS or (name.isascii() and name.isdigit() and len(name) <= 10):
        return None
    return "a broker is named by its id, and all brokers by nothing"


def check_broker(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for values that do not go together."""
    try:
        check_group({GROUP_CONFIG_OF[name]: value for name, value in configs.items() if name in GROUP_CONFIG_OF})
    except InvalidConfig as error:
        raise InvalidConfig(f"of groups: {error}") from None
    check_configs(defaults_of_topics(configs))
    try:
        of_hosts = host_bounds(configs.get(CONNECTIONS_OF_IPS, ""))
    except HostBoundsError as error:
        raise InvalidConfig(f"{CONNECTIONS_OF_IPS}: {error}") from None
    if not any(of_hosts.values()) and int(configs.get(CONNECTIONS_OF_IP, 1)) == 0:
        raise InvalidConfig(f"{CONNECTIONS_OF_IP}=0 lets nobody in, unless {CONNECTIONS_OF_IPS} names who may come")


def defaults_of_topics(configs: Mapping[str, str]) -> dict[str, str]:
    """Those among a broker's configs, by the names that they have as configs of topics."""
    return {TOPIC_CONFIG_OF[name]: value for name, value in configs.items() if name in TOPIC_CONFIG_OF}
