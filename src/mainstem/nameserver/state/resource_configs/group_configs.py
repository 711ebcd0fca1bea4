"""Kafka's configs of groups, as far as the protocols of groups read them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig

_SESSION = "A member that sends no heartbeat for so long is gone. It holds from the member's next heartbeat on."
_HEARTBEAT = "How often members are told to send a heartbeat; less than the session timeout."

GROUP_CONFIGS: Mapping[str, DeclaredConfig] = {
    config.name: config
    for config in (
        DeclaredConfig(
            name="consumer.session.timeout.ms",
            type=ConfigType.INT,
            minimum=1_000,
            maximum=1_800_000,
            default="45000",
            broker_names=("group.consumer.session.timeout.ms",),
            documentation=f"{_SESSION} Of consumers with group.protocol=consumer.",
        ),
        DeclaredConfig(
            name="consumer.heartbeat.interval.ms",
            type=ConfigType.INT,
            minimum=100,
            maximum=600_000,
            default="5000",
            broker_names=("group.consumer.heartbeat.interval.ms",),
            documentation=f"{_HEARTBEAT} Of consumers with group.protocol=consumer.",
        ),
        DeclaredConfig(
            name="share.session.timeout.ms",
            type=ConfigType.INT,
            minimum=1_000,
            maximum=1_800_000,
            default="45000",
            broker_names=("group.share.session.timeout.ms",),
            documentation=f"{_SESSION} Of share groups.",
        ),
        DeclaredConfig(
            name="share.heartbeat.interval.ms",
            type=ConfigType.INT,
            minimum=100,
            maximum=600_000,
            default="5000",
            broker_names=("group.share.heartbeat.interval.ms",),
            documentation=f"{_HEARTBEAT} Of share groups.",
        ),
        DeclaredConfig(
            name="streams.session.timeout.ms",
            type=ConfigType.INT,
            minimum=1_000,
            maximum=1_800_000,
            default="45000",
            broker_names=("group.streams.session.timeout.ms",),
            documentation=f"{_SESSION} Of streams groups.",
        ),
        DeclaredConfig(
            name="streams.heartbeat.interval.ms",
            type=ConfigType.INT,
            minimum=100,
            maximum=600_000,
            default="5000",
            broker_names=("group.streams.heartbeat.interval.ms",),
            documentation=f"{_HEARTBEAT} Of streams groups.",
        ),
        DeclaredConfig(
            name="streams.num.standby.replicas",
            type=ConfigType.INT,
            minimum=0,
            maximum=2,
            default="0",
            broker_names=("group.streams.num.standby.replicas",),
            documentation="How many members of a streams group follow each task with state, ready to take it over.",
        ),
        DeclaredConfig(
            name="streams.initial.rebalance.delay.ms",
            type=ConfigType.INT,
            minimum=0,
            maximum=600_000,
            default="3000",
            broker_names=("group.streams.initial.rebalance.delay.ms",),
            documentation="How long a streams group without members waits for more of them after the first.",
        ),
        DeclaredConfig(
            name="streams.assignment.interval.ms",
            type=ConfigType.INT,
            minimum=0,
            maximum=15_000,
            default="1000",
            broker_names=("group.streams.assignment.interval.ms",),
            documentation="Tasks of a streams group are assigned anew no more often.",
        ),
        DeclaredConfig(
            name="share.record.lock.duration.ms",
            type=ConfigType.INT,
            minimum=1_000,
            maximum=3_600_000,
            default="30000",
            broker_names=("group.share.record.lock.duration.ms",),
            documentation="How long a record belongs to the member of a share group that acquired it. Locks that are "
            "held already keep the duration that they began with.",
        ),
        DeclaredConfig(
            name="share.delivery.count.limit",
            type=ConfigType.INT,
            minimum=1,
            maximum=100,
            default="5",
            broker_names=("group.share.delivery.count.limit",),
            documentation="A record that was given out so often goes to nobody any more.",
        ),
        DeclaredConfig(
            name="share.partition.max.record.locks",
            type=ConfigType.INT,
            minimum=100,
            maximum=10_000,
            default="2000",
            broker_names=("group.share.partition.max.record.locks",),
            documentation="Offsets of a partition that a share group has under way at a time.",
        ),
        DeclaredConfig(
            name="share.auto.offset.reset",
            type=ConfigType.STRING,
            choices=("latest", "earliest"),
            default="latest",
            documentation="Where a share group begins to read a partition that is new to it.",
        ),
        DeclaredConfig(
            name="share.isolation.level",
            type=ConfigType.STRING,
            choices=("read_uncommitted", "read_committed"),
            default="read_uncommitted",
            documentation="The records of transactions that a share group reads: all, or those of committed ones.",
        ),
    )
}
"""Their defaults are Kafka's; a node may have others in its own configuration."""


def group_name_fault(name: str) -> str | None:
    return None if name else "a group has an id"


def check_group(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for values that do not go together."""
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        session_ms, heartbeat_ms = (
            cast(int, GROUP_CONFIGS[name].parse(configs.get(name, GROUP_CONFIGS[name].default)))
            for name in (session, heartbeat)
        )
        if session_ms <= heartbeat_ms:
            raise InvalidConfig(f"{session}={session_ms} is not more than {heartbeat}={heartbeat_ms}")
