"""Kafka's configs of brokers that do not change while a node runs: those that a node goes by, with the values that all
nodes have of some, and those that nothing here goes by (`absent_configs.py`).

With the configs that do change (`BROKER_CONFIGS`) these are all that a broker of Kafka has, so that tools find each
that they know. The values of a node come from its configuration (`node/kafka_values.py`, `NodeFacts.fixed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mainstem.broker.settings.absent_configs import ABSENT_CONFIGS
from mainstem.nameserver.state.config_value import ConfigType
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS

_BOOLEAN, _STRING, _INT, _SHORT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.SHORT
_LONG, _LIST = ConfigType.LONG, ConfigType.LIST

OF_ONE_LISTENER = "listener.name."
"""A config of one listener: its name follows, then that of the config."""


class FixedConfig(NamedTuple):
    """`default` is Kafka's; None: it has none. `without_effect` says why nothing goes by it; None: something does."""

    type: ConfigType
    default: str | None
    documentation: str
    without_effect: str | None = None

    @property
    def help(self) -> str:
        if self.without_effect is None:
            return self.documentation
        return f"No effect here: {self.without_effect}"


_NODES = {
    "broker.id": FixedConfig(_INT, "-1", "The id of this node in the cluster."),
    "node.id": FixedConfig(_INT, None, "The id of this node in the cluster."),
    "process.roles": FixedConfig(_LIST, None, "Whether a node keeps the metadata (controller), and serves (broker)."),
    "broker.rack": FixedConfig(_STRING, None, "Where this node stands."),
    "log.dirs": FixedConfig(_LIST, None, "Where messages lie: the journal's directory, and the queue store."),
    "log.dir": FixedConfig(_LIST, "/tmp/kafka-logs", "The journal's directory."),
    "metadata.log.dir": FixedConfig(_STRING, None, "The directory that the metadata lies in as well: the journal's."),
    "broker.heartbeat.interval.ms": FixedConfig(
        _INT, "2000", "How often a node tells the metadata's leader that it lives."
    ),
    "broker.session.timeout.ms": FixedConfig(
        _INT, "9000", "A node that says nothing for so long is dead; one that refuses connections is so earlier."
    ),
    "security.inter.broker.protocol": FixedConfig(
        _STRING, "PLAINTEXT", "Whether nodes talk to each other over TLS (SSL)."
    ),
    "controlled.shutdown.enable": FixedConfig(_BOOLEAN, "true", "Whether a node that stops hands over what it leads."),
    "auto.leader.rebalance.enable": FixedConfig(
        _BOOLEAN, "true", "Whether the node that placement prefers takes its leaderships back."
    ),
    "delete.topic.enable": FixedConfig(_BOOLEAN, "true", "Whether topics can be deleted."),
    "log.cleaner.enable": FixedConfig(_BOOLEAN, "true", "Whether compacted topics are compacted, by a splitter."),
    "log.retention.check.interval.ms": FixedConfig(_LONG, "300000", "How often retention is looked at."),
    "producer.id.expiration.ms": FixedConfig(_INT, "86400000", "A producer id unseen for so long is forgotten."),
    "remote.log.storage.system.enable": FixedConfig(
        _BOOLEAN, "false", "Whether topics may have a remote tier: whether remote_dir is set."
    ),
}
_CLIENTS = {
    "listeners": FixedConfig(_LIST, "PLAINTEXT://:9092", "Where this node listens for clients."),
    "advertised.listeners": FixedConfig(_LIST, None, "Where clients are told to come to."),
    "listener.security.protocol.map": FixedConfig(
        _STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "What listeners speak.",
    ),
    "connections.max.idle.ms": FixedConfig(_LONG, "600000", "A connection that is idle for so long is closed."),
    "connections.max.reauth.ms": FixedConfig(
        _LONG, "0", "Clients have to authenticate again within this time; 0: never."
    ),
    "connection.failed.authentication.delay.ms": FixedConfig(
        _INT, "100", "A client hears so late that it has failed to authenticate."
    ),
    "socket.listen.backlog.size": FixedConfig(_INT, "50", "Connections that wait to be accepted."),
    "socket.request.max.bytes": FixedConfig(_INT, "104857600", "The most bytes of a request."),
    "queued.max.request.bytes": FixedConfig(_LONG, "-1", "The most bytes of all requests under way."),
    "max.request.partition.size.limit": FixedConfig(
        _INT, "2000", "The most partitions that DescribeTopicPartitions tells."
    ),
    "authorizer.class.name": FixedConfig(_STRING, "", "Whether access rules hold: empty where they do not."),
    "super.users": FixedConfig(_STRING, "", "Principals that may do everything."),
    "allow.everyone.if.no.acl.found": FixedConfig(
        _BOOLEAN, "false", "Whether everybody may do everything with what no access rule is about."
    ),
    "sasl.enabled.mechanisms": FixedConfig(_LIST, "GSSAPI", "The mechanisms of SASL that listeners offer."),
    "sasl.server.max.receive.size": FixedConfig(_INT, "524288", "The most bytes of a request before authentication."),
    "sasl.oauthbearer.jwks.endpoint.url": FixedConfig(_STRING, None, "Where the issuer of tokens publishes its keys."),
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": FixedConfig(_LONG, "3600000", "How long these keys are good for."),
    "sasl.oauthbearer.expected.issuer": FixedConfig(_STRING, None, "The issuer that tokens name; none: any."),
    "sasl.oauthbearer.expected.audience": FixedConfig(_LIST, "", "A token is for one of these; none: for any."),
    "sasl.oauthbearer.sub.claim.name": FixedConfig(_STRING, "sub", "The claim that names the user."),
    "sasl.oauthbearer.scope.claim.name": FixedConfig(_STRING, "scope", "The claim that names the scopes."),
    "sasl.oauthbearer.clock.skew.seconds": FixedConfig(_INT, "30", "How far the issuer's clock may be off."),
    "delegation.token.expiry.check.interval.ms": FixedConfig(
        _LONG, "3600000", "How often delegation tokens that have expired are removed."
    ),
    "delegation.token.expiry.time.ms": FixedConfig(_LONG, "86400000", "A token that is not renewed so long expires."),
    "delegation.token.max.lifetime.ms": FixedConfig(_LONG, "604800000", "A token ends then, whoever renews it."),
}
_COORDINATORS = {
    "group.coordinator.rebalance.protocols": FixedConfig(_LIST, "classic,consumer,streams", "The protocols of groups."),
    "group.consumer.assignors": FixedConfig(_LIST, "uniform,range", "How the coordinator assigns partitions."),
    "group.consumer.migration.policy": FixedConfig(
        _STRING, "bidirectional", "Whether a group may change its protocol while it has members."
    ),
    "group.initial.rebalance.delay.ms": FixedConfig(_INT, "3000", "How long an empty group waits for more members."),
    "group.min.session.timeout.ms": FixedConfig(_INT, "6000", "The shortest session in the classic protocol."),
    "group.max.session.timeout.ms": FixedConfig(_INT, "1800000", "The longest session in the classic protocol."),
    "group.max.size": FixedConfig(_INT, "2147483647", "The most members of a group."),
    "group.consumer.max.size": FixedConfig(_INT, "2147483647", "The same by the new protocol."),
    "group.streams.max.size": FixedConfig(_INT, "2147483647", "The same of streams groups."),
    "group.share.max.size": FixedConfig(_INT, "200", "The same of share groups."),
    "group.share.max.share.sessions": FixedConfig(_INT, "2000", "The most sessions of share groups on this node."),
    "offset.metadata.max.bytes": FixedConfig(_INT, "4096", "The most bytes of metadata of a committed offset."),
    "offsets.commit.timeout.ms": FixedConfig(_INT, "5000", "How long a record of a group may wait to be acknowledged."),
    "offsets.load.buffer.size": FixedConfig(_INT, "5242880", "Bytes of one read when groups are loaded."),
    "offsets.retention.minutes": FixedConfig(_INT, "10080", "How long offsets of a group without members are kept."),
    "offsets.retention.check.interval.ms": FixedConfig(_LONG, "600000", "How often these are looked at."),
    "offsets.topic.num.partitions": FixedConfig(_INT, "50", "Partitions of `__consumer_offsets`, when it is made."),
    "offsets.topic.replication.factor": FixedConfig(
        _SHORT, "3", "Copies of it at least; it has those of its write groups."
    ),
    "share.coordinator.load.buffer.size": FixedConfig(
        _INT, "5242880", "Bytes of one read when their states are loaded."
    ),
    "share.coordinator.write.timeout.ms": FixedConfig(
        _INT, "5000", "How long a record of a share group may wait to be acknowledged."
    ),
    "transaction.max.timeout.ms": FixedConfig(_INT, "900000", "The longest time that a transaction may ask for."),
    "transactional.id.expiration.ms": FixedConfig(
        _INT, "604800000", "A transactional id unused for so long is forgotten."
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": FixedConfig(
        _INT, "3600000", "How often these are looked at."
    ),
    "transaction.state.log.load.buffer.size": FixedConfig(_INT, "5242880", "Bytes of one read when they are loaded."),
    "transaction.state.log.num.partitions": FixedConfig(
        _INT, "50", "Partitions of `__transaction_state`, when it is made."
    ),
    "transaction.state.log.replication.factor": FixedConfig(
        _SHORT, "3", "Copies of it at least; it has those of its write groups."
    ),
    "transaction.two.phase.commit.enable": FixedConfig(_BOOLEAN, "false", "Whether transactions may have two phases."),
}
_GROUP_BOUNDS = {
    "group.consumer.min.session.timeout.ms": "45000",
    "group.consumer.max.session.timeout.ms": "60000",
    "group.consumer.min.heartbeat.interval.ms": "5000",
    "group.consumer.max.heartbeat.interval.ms": "15000",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.max.assignment.interval.ms": "15000",
    "group.streams.min.session.timeout.ms": "45000",
    "group.streams.max.session.timeout.ms": "60000",
    "group.streams.min.heartbeat.interval.ms": "5000",
    "group.streams.max.heartbeat.interval.ms": "15000",
    "group.streams.min.assignment.interval.ms": "0",
    "group.streams.max.assignment.interval.ms": "15000",
    "group.share.min.session.timeout.ms": "45000",
    "group.share.max.session.timeout.ms": "60000",
    "group.share.min.heartbeat.interval.ms": "5000",
    "group.share.max.heartbeat.interval.ms": "15000",
    "group.share.min.record.lock.duration.ms": "15000",
    "group.share.max.record.lock.duration.ms": "60000",
    "group.share.min.delivery.count.limit": "2",
    "group.share.max.delivery.count.limit": "10",
    "group.share.min.partition.max.record.locks": "100",
    "group.share.max.partition.max.record.locks": "4000",
}
"""Kafka's defaults of the bounds within which a group's own configs lie."""
_STANDBYS_MAX = "group.streams.max.standby.replicas"


def _bounded(name: str) -> tuple[str, str]:
    """The group's config that a bound is of, and which end it is."""
    _, protocol, end, config = name.split(".", 3)
    return f"{protocol}.{config}", end


def _of_bound(name: str, default: str) -> FixedConfig:
    config, end = _bounded(name)
    return FixedConfig(_INT, default, f"The {end}imum of {config} of a group.")


def _bound_here(name: str) -> str:
    config, end = _bounded(name)
    return str(int(GROUP_CONFIGS[config].minimum if end == "min" else GROUP_CONFIGS[config].maximum))


FIXED_CONFIGS: Mapping[str, FixedConfig] = {
    **_NODES,
    **_CLIENTS,
    **_COORDINATORS,
    **{name: _of_bound(name, default) for name, default in _GROUP_BOUNDS.items()},
    _STANDBYS_MAX: FixedConfig(_INT, "2", "The maximum of streams.num.standby.replicas of a group."),
    **{
        name: FixedConfig(kind, default, "", reason)
        for reason, rows in ABSENT_CONFIGS.items()
        for name, kind, default in rows
    },
}
SAME_FOR_ALL: Mapping[str, str] = {
    **dict.fromkeys(
        ("delete.topic.enable", "log.cleaner.enable", "controlled.shutdown.enable", "auto.leader.rebalance.enable"),
        "true",
    ),
    "transaction.two.phase.commit.enable": "false",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "3600000",
    "group.coordinator.rebalance.protocols": "classic,consumer,share,streams",
    "group.consumer.assignors": "uniform,range",
    **{name: _bound_here(name) for name in _GROUP_BOUNDS},
    _STANDBYS_MAX: str(int(GROUP_CONFIGS["streams.num.standby.replicas"].maximum)),
}
"""The values that every node has, whatever its configuration says."""
