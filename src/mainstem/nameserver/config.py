"""The nameserver's own configuration, and the checks of it."""

from __future__ import annotations

import re

import msgspec

from mainstem.address import AddressError, parsed
from mainstem.errors import ConfigError
from mainstem.model import SLOTS
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.tiering_rules import TOPIC_BY_TOPIC, check_local_limits
from mainstem.nameserver.state.topic_config import check_configs, topic_settings

NODE_ID_MAX = 0x7FFF_FFFF
BALANCES = ("off", "leaders", "replicas", "queues")

MOVES_PER_HOUR_MAX = 100
"""Nodes remember twice as many moves (`rpc.messages.loads.MOVES_TOLD_MAX`), by which the balancer counts its own."""

_CLUSTER_ID = re.compile(r"[A-Za-z0-9_-]{22}")


class NameserverConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`topic_defaults` has Kafka's topic config names as keys; a topic's own configs take precedence over
    it."""

    cluster_id: str | None = None
    """A base64url uuid of 22 characters; None: made up at the first start, then read from the directory."""
    node_id: int = 1
    write_groups: int = 4
    """How many write groups a new cluster gets; an existing one keeps its own."""
    topic_defaults: dict[str, str] = {}
    remote_dir: str = ""
    """The URL of the remote tier; empty: the cluster has none, and no topic may have one."""
    changes_waiting_max: int = 1_000
    """Metadata changes that may wait for the log; more are refused, with an error that can be retried."""
    log_bytes_max: int = 4 * 1024 * 1024
    """A snapshot replaces the log when it grows past this, or past the newest snapshot if that is larger."""
    peers: dict[str, str] = {}
    """Node id → RPC address (HOST:PORT) of every node of the cluster's first quorum, this one included if it
    is in it. Empty: this node is a cluster of its own. If the cluster exists already, only the addresses
    count."""
    replication_factor: int = 3
    """Replicas of each write group, at most one per node. For a new cluster only."""
    storage_nodes_min: int = 0
    """A new cluster waits for so many nodes with the role storage before it places write groups: what joins later gets
    replicas only as nodes are drained, lost or rebalanced."""
    tick_ms: int = 50
    heartbeat_ticks: int = 2
    election_ticks: int = 10
    """The other members elect a new leader once they have not heard from theirs for this long, up to twice as
    long."""
    feature_level: str = "operator"
    """How the cluster's feature level is raised once all nodes read a higher one: `operator` by `mainstem
    cluster feature-level --raise`, or `automatic` by the metadata leader. From then on there is no way back
    to an older version, so an operator should have seen the new one work. A new cluster begins at its newest
    level either way."""
    change_wait_ms_max: int = 15_000
    """How long a node retries a change of the metadata while the cluster has no leader, or its answer got
    lost."""
    heartbeat_ms: int = 500
    """How often a node tells the metadata leader that it lives, and hears which node leads which write
    group."""
    suspect_ms: int = 1_500
    refused_ms: int = 1_500
    """A node that sends no heartbeat for this long is dead, if its address refuses connections."""
    dead_ms: int = 5_000
    """A node that sends no heartbeat for this long is dead, for whatever reason."""
    rebuild_after_seconds: int = 900
    """Replicas of a node that has been dead for this long are rebuilt on others; 0: only when an operator says so."""
    room_percent_min: int = 15
    """A rebalance gives no replica to a node that has less of disk 1, or of a disk 2 of its own, free."""
    balance: str = "off"
    """Whether the metadata leader spreads load by itself, as a rebalance would: `off`; `leaders`: it moves preferred
    leaders, for which nothing is copied; `replicas`: these and replicas; `queues`: these and single queues, from one
    write group to another."""
    balance_seconds: int = 60
    """Between two looks of the balancer at the nodes' loads: about the time after which a load that has moved is
    measured where it is."""
    balance_moves_per_hour: int = 12
    """The balancer begins no more within an hour: one in five minutes, so that somebody can follow what it does."""
    balance_rest_seconds: int = 3_600
    """The balancer leaves a write group, or a slot of queues, alone for so long after it moved, whoever moved it."""
    token_expiry_check_ms: int = 60_000
    """delegation.token.expiry.check.interval.ms: how often the metadata leader removes delegation tokens that have
    expired. They let nobody in meanwhile."""

    @property
    def peer_addresses(self) -> dict[int, str]:
        return {int(node_id): address for node_id, address in self.peers.items()}

    def validate(self) -> None:
        """Raises ConfigError naming the key, its value and what it takes."""
        if self.cluster_id is not None and _CLUSTER_ID.fullmatch(self.cluster_id) is None:
            raise ConfigError(f"cluster_id={self.cluster_id!r}: it takes 22 characters of A-Z, a-z, 0-9, '_' and '-'")
        bounds = {
            "node_id": (self.node_id, 0, NODE_ID_MAX),
            "write_groups": (self.write_groups, 1, SLOTS),
            "changes_waiting_max": (self.changes_waiting_max, 1, 1_000_000),
            "log_bytes_max": (self.log_bytes_max, 4096, 1 << 30),
            "replication_factor": (self.replication_factor, 1, 15),
            "storage_nodes_min": (self.storage_nodes_min, 0, 1_000),
            "tick_ms": (self.tick_ms, 1, 60_000),
            "heartbeat_ticks": (self.heartbeat_ticks, 1, 1_000),
            "election_ticks": (self.election_ticks, 2 * self.heartbeat_ticks, 10_000),
            "change_wait_ms_max": (self.change_wait_ms_max, 1, 3_600_000),
            "heartbeat_ms": (self.heartbeat_ms, 10, 60_000),
            "suspect_ms": (self.suspect_ms, self.heartbeat_ms, 3_600_000),
            "refused_ms": (self.refused_ms, self.heartbeat_ms, 3_600_000),
            "token_expiry_check_ms": (self.token_expiry_check_ms, 10, 86_400_000),
            "rebuild_after_seconds": (self.rebuild_after_seconds, 0, 30 * 86_400),
            "room_percent_min": (self.room_percent_min, 0, 90),
            "balance_seconds": (self.balance_seconds, 1, 86_400),
            "balance_moves_per_hour": (self.balance_moves_per_hour, 1, MOVES_PER_HOUR_MAX),
            "balance_rest_seconds": (self.balance_rest_seconds, 0, 7 * 86_400),
            "dead_ms": (self.dead_ms, self.suspect_ms, 3_600_000),
        }
        for key, (value, least, most) in bounds.items():
            if not least <= value <= most:
                raise ConfigError(f"{key}={value}: it takes a whole number from {least} to {most}")
        if self.balance not in BALANCES:
            raise ConfigError(f"balance={self.balance!r}: it takes {', '.join(BALANCES[:-1])} or {BALANCES[-1]}")
        if self.feature_level not in ("operator", "automatic"):
            raise ConfigError(f"feature_level={self.feature_level!r}: it takes operator or automatic")
        for node_id, address in self.peers.items():
            if not node_id.isascii() or not node_id.isdigit() or not 1 <= int(node_id) <= NODE_ID_MAX:
                raise ConfigError(f"peers: {node_id!r} is no node id; it takes a whole number from 1 to {NODE_ID_MAX}")
            try:
                parsed(address)
            except AddressError as error:
                raise ConfigError(f"peers: node {node_id} = {error}") from None
        if self.peers and self.node_id == 0:
            raise ConfigError("node_id=0: nodes of a cluster are numbered from 1; give another node_id, or no peers")
        for name in TOPIC_BY_TOPIC:
            if name in self.topic_defaults:
                raise ConfigError(f"topic_defaults: {name} is set topic by topic, and has no default")
        try:
            check_configs(self.topic_defaults)
            if self.remote_dir:
                check_local_limits(topic_settings({}, self.topic_defaults))
        except InvalidConfig as error:
            raise ConfigError(f"topic_defaults: {error}") from error
