"""The values of a node's settings under Kafka's names, as DescribeConfigs tells them of its broker: what
`kafka_names.py` takes, the other way round."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.handlers.describe_topic_partitions import PARTITIONS_MAX
from mainstem.model import NodeRole
from mainstem.node.config import NodeConfig
from mainstem.node.kafka_names import (
    AUTHORIZER,
    AUTHORIZERS,
    CLIENT_AUTH,
    KEYSTORE,
    KEYSTORE_TYPE,
    MAPPING,
    MECHANISMS,
    OF_ONE_LISTENER,
    OURS,
    TLS_VERSIONS,
    TRUSTSTORE,
    TRUSTSTORE_TYPE,
    VERSIONS_OF_TLS,
)
from mainstem.server.listener_config import ListenerConfig


def values_of(config: NodeConfig) -> dict[str, str]:
    """By Kafka's names. Empty texts stand for what is not set."""
    values = {name: _text(_at(config, path)) for name, path in OURS.items()}
    roles = {
        "broker": config.has_role(NodeRole.BROKER) or config.has_role(NodeRole.STORAGE),
        "controller": config.has_role(NodeRole.NAMESERVER),
    }
    offered = dict.fromkeys(name for names in config.sasl_mechanisms.values() for name in names)
    values |= {
        "process.roles": ",".join(role for role, has in roles.items() if has),
        "log.dir": config.write_dir,
        "metadata.log.dir": config.write_dir,
        AUTHORIZER: AUTHORIZERS[0] if config.authorizer.enabled else "",
        MECHANISMS: ",".join(offered or config.sasl.mechanisms),
        "security.inter.broker.protocol": "SSL" if config.rpc_tls.enabled else "PLAINTEXT",
        "producer.id.expiration.ms": _milliseconds(config.storage.producer_expiry_seconds),
        "log.retention.check.interval.ms": _milliseconds(config.storage.retention_check_seconds),
        "max.request.partition.size.limit": str(PARTITIONS_MAX),
    }
    size = str(config.groups.group_size_max)
    values |= {f"group.{protocol}.max.size": size for protocol in ("consumer", "share", "streams")}
    for name, listener in config.server.listeners.items():
        of_one = f"{OF_ONE_LISTENER}{name.lower()}."
        values |= {f"{of_one}{key}": value for key, value in _of_listener(listener, config) if value}
    return values


def _of_listener(listener: ListenerConfig, config: NodeConfig) -> Iterator[tuple[str, str]]:
    if listener.protocol.startswith("SASL"):
        yield MECHANISMS, ",".join(listener.mechanisms or config.sasl.mechanisms)
    if not listener.over_tls:
        return
    yield KEYSTORE, listener.certificate
    yield KEYSTORE_TYPE, "PEM"
    if listener.ca:
        yield TRUSTSTORE, listener.ca
        yield TRUSTSTORE_TYPE, "PEM"
    yield CLIENT_AUTH, listener.client_auth
    yield MAPPING, ",".join(listener.principal_mapping_rules)
    yield TLS_VERSIONS, ",".join(name for name, version in VERSIONS_OF_TLS.items() if version >= listener.tls_min)


def _at(config: NodeConfig, path: tuple[str, ...]) -> object:
    value: object = config
    for name in path:
        value = getattr(value, name)
    return value


def _text(value: object) -> str:
    """As Kafka writes it."""
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(map(str, value))
        case _:
            return str(value)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
