"""The settings that hold for a group: the node's, with those in their place that the group has as configs of its own.

The protocols of groups ask here at every event, so that a config holds from the next one on. A value that this program
does not take (a later version does) is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec import structs

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.resource_configs.group_configs import GROUP_CONFIGS
from mainstem.ports import ResourceConfigs

CONSUMER_FIELDS = {
    "consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "consumer.assignment.interval.ms": "consumer_assignment_interval_ms",
    "share.session.timeout.ms": "share_session_timeout_ms",
    "share.heartbeat.interval.ms": "share_heartbeat_interval_ms",
    "streams.session.timeout.ms": "streams_session_timeout_ms",
    "streams.heartbeat.interval.ms": "streams_heartbeat_interval_ms",
    "streams.num.standby.replicas": "streams_num_standby_replicas",
    "streams.initial.rebalance.delay.ms": "streams_initial_rebalance_delay_ms",
    "streams.assignment.interval.ms": "streams_assignment_interval_ms",
}
SHARE_FIELDS = {
    "share.record.lock.duration.ms": "lock_duration_ms",
    "share.delivery.count.limit": "delivery_count_limit",
    "share.partition.max.record.locks": "record_locks_max",
    "share.auto.offset.reset": "auto_offset_reset",
    "share.isolation.level": "isolation_level",
    "share.renew.acknowledge.enable": "renewals",
}
C = TypeVar("C", ConsumerGroupsConfig, ShareGroupsConfig)


class GroupSettings:
    def __init__(self, configs: ResourceConfigs, consumers: ConsumerGroupsConfig, shares: ShareGroupsConfig) -> None:
        self._configs = configs
        self._consumers = self._file_consumers = consumers
        self._shares = self._file_shares = shares
        self._version: object = None
        self._made: dict[tuple[type, str], Any] = {}
        """Of groups that have configs: as many as the metadata keeps."""

    def use(self, consumers: Mapping[str, Any], shares: Mapping[str, Any]) -> None:
        """Have these take the place of settings of the node, by field."""
        self._consumers = _in_time(structs.replace(self._file_consumers, **consumers))
        self._shares = structs.replace(self._file_shares, **shares)
        self._made = {}

    def of_consumers(self, group_id: str) -> ConsumerGroupsConfig:
        settings = self._of(self._consumers, CONSUMER_FIELDS, group_id)
        return settings if settings is self._consumers else _in_time(settings)

    def of_shares(self, group_id: str) -> ShareGroupsConfig:
        return self._of(self._shares, SHARE_FIELDS, group_id)

    def _of(self, node: C, fields: Mapping[str, str], group_id: str) -> C:
        if self._version is not (version := self._configs.version()):
            self._made, self._version = {}, version
        if not (own := self._configs.of(ResourceType.GROUP, group_id)):
            return node
        key = type(node), group_id
        made: C | None = self._made.get(key)
        if made is None:
            made = self._made[key] = structs.replace(node, **_values(own, fields))
        return made


def _values(own: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in own:
            try:
                values[field] = GROUP_CONFIGS[name].parse(own[name])
            except InvalidConfig:
                continue
    return values


def _in_time(settings: ConsumerGroupsConfig) -> ConsumerGroupsConfig:
    """With heartbeats within the session timeout, where one comes from the group and the other from the node."""
    heartbeats = {
        f"{kind}_heartbeat_interval_ms": _within(
            getattr(settings, f"{kind}_heartbeat_interval_ms"), getattr(settings, f"{kind}_session_timeout_ms")
        )
        for kind in ("consumer", "share", "streams")
    }
    return structs.replace(settings, **heartbeats)


def _within(heartbeat_ms: int, session_ms: int) -> int:
    return heartbeat_ms if heartbeat_ms < session_ms else max(1, session_ms // 3)


def group_defaults(consumers: ConsumerGroupsConfig, shares: ShareGroupsConfig) -> dict[str, str]:
    """The node's values of group configs, where they differ from Kafka's."""
    values = {name: _text(getattr(consumers, field)) for name, field in CONSUMER_FIELDS.items()}
    values |= {name: _text(getattr(shares, field)) for name, field in SHARE_FIELDS.items()}
    return {name: value for name, value in values.items() if value != GROUP_CONFIGS[name].default}


def _text(value: object) -> str:
    """As Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
