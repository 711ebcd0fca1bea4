"""Kafka's configs of groups, as far as the protocols of groups read them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.config_value import ConfigType, DeclaredConfig

PROTOCOLS = {
    "consumer": "consumers with group.protocol=consumer",
    "share": "share groups",
    "streams": "streams groups",
}
"""By the first word of their configs."""


def _number(name: str, default: int, minimum: int, maximum: int, documentation: str) -> DeclaredConfig:
    """A config whose default for all groups is a node's, under Kafka's name for that."""
    return DeclaredConfig(
        name=name,
        type=ConfigType.INT,
        minimum=minimum,
        maximum=maximum,
        default=str(default),
        broker_names=(f"group.{name}",),
        documentation=documentation,
    )


def _timeouts(protocol: str, members: str) -> tuple[DeclaredConfig, DeclaredConfig]:
    session = "A member that sends no heartbeat for so long is gone. It holds from the member's next heartbeat on."
    heartbeat = "How often members are told to send a heartbeat; less than the session timeout."
    return (
        _number(f"{protocol}.session.timeout.ms", 45_000, 1_000, 1_800_000, f"{session} Of {members}."),
        _number(f"{protocol}.heartbeat.interval.ms", 5_000, 100, 600_000, f"{heartbeat} Of {members}."),
    )


GROUP_CONFIGS: Mapping[str, DeclaredConfig] = {
    config.name: config
    for config in (
        *(config for protocol, members in PROTOCOLS.items() for config in _timeouts(protocol, members)),
        _number(
            "consumer.assignment.interval.ms", 1_000, 0, 15_000,
            "Partitions of a consumer group of a hundred members or more are assigned anew no more often.",
        ),
        _number(
            "streams.num.standby.replicas", 0, 0, 2,
            "How many members of a streams group follow each task with state, ready to take it over.",
        ),
        _number(
            "streams.initial.rebalance.delay.ms", 3_000, 0, 600_000,
            "How long a streams group without members waits for more of them after the first.",
        ),
        _number(
            "streams.assignment.interval.ms", 1_000, 0, 15_000,
            "Tasks of a streams group are assigned anew no more often.",
        ),
        replace(
            _number(
                "share.assignment.interval.ms", 1_000, 0, 15_000, "A share group is assigned partitions no more often."
            ),
            without_effect="members of a share group have all partitions that they subscribe to, as soon as they do.",
        ),
        _number(
            "share.record.lock.duration.ms", 30_000, 1_000, 3_600_000,
            "How long a record belongs to the member of a share group that acquired it. Locks that are held already "
            "keep the duration that they began with.",
        ),
        _number(
            "share.delivery.count.limit", 5, 1, 100, "A record that was given out so often goes to nobody any more."
        ),
        _number(
            "share.partition.max.record.locks", 2_000, 100, 10_000,
            "Offsets of a partition that a share group has under way at a time.",
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
        DeclaredConfig(
            name="share.renew.acknowledge.enable",
            type=ConfigType.BOOLEAN,
            default="true",
            documentation="Whether members of a share group may renew the lock of a record.",
        ),
    )
}  # fmt: skip
"""Their defaults are Kafka's; a node may have others in its own configuration."""


def group_name_fault(name: str) -> str | None:
    return None if name else "a group has an id"


def check_group(configs: Mapping[str, str]) -> None:
    """Raise `InvalidConfig` for values that do not go together."""
    for kind in PROTOCOLS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        session_ms, heartbeat_ms = (
            cast(int, GROUP_CONFIGS[name].parse(configs.get(name, GROUP_CONFIGS[name].default)))
            for name in (session, heartbeat)
        )
        if session_ms <= heartbeat_ms:
            raise InvalidConfig(f"{session}={session_ms} is not more than {heartbeat}={heartbeat_ms}")
