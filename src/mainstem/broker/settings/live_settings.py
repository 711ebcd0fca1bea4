"""The settings of a node that change while it runs: those of its configuration file, with those in their place that are
set for all nodes, and in the place of these those that are set for this one.

`apply` puts them into force, at the start and whenever the metadata tells that configs of brokers have changed. A value
that this program does not take (a later version does) is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from mainstem.broker.broker import Broker
from mainstem.broker.config import BrokerConfig
from mainstem.broker.settings.group_settings import CONSUMER_FIELDS, SHARE_FIELDS, GroupSettings
from mainstem.host_bounds import HostBoundsError, host_bounds
from mainstem.model import ResourceType
from mainstem.nameserver.errors import InvalidConfig
from mainstem.nameserver.state.resource_configs.broker_configs import (
    ALL_BROKERS,
    BROKER_CONFIGS,
    CONNECTIONS,
    CONNECTIONS_OF_IP,
    CONNECTIONS_OF_IPS,
    GROUP_CONFIG_OF,
    RACK_AWARE_SELECTOR,
)

RACK_AWARENESS = "replica.selector.class"
HoldConnections = Callable[[int, int, Mapping[str, int]], None]
"""Has a server hold the most connections, the most of an address, and those of addresses of which there may be other
numbers."""
BROKER_FIELDS = {
    "auto.create.topics.enable": "auto_create_topics",
    "num.partitions": "num_partitions",
    "default.replication.factor": "default_replication_factor",
    "fetch.max.bytes": "fetch_bytes_max",
    "max.incremental.fetch.session.cache.slots": "fetch_sessions_max",
    RACK_AWARENESS: "rack_aware_reads",
    "telemetry.max.bytes": "telemetry_bytes_max",
}


def text_of(config: BrokerConfig, name: str) -> str:
    """The value of one of `BROKER_FIELDS` as Kafka has it."""
    value = getattr(config, BROKER_FIELDS[name])
    if name == RACK_AWARENESS:
        return RACK_AWARE_SELECTOR if value else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


class LiveSettings:
    """Of one broker. `read_only`: the node makes no topics, whatever is set. Without `hold_connections` there is no
    server that has any."""

    def __init__(
        self,
        broker: Broker,
        groups: GroupSettings,
        *,
        read_only: bool = False,
        hold_connections: HoldConnections | None = None,
    ) -> None:
        self._hold_connections = hold_connections
        self._broker = broker
        self._groups = groups
        self._read_only = read_only

    def apply(self) -> None:
        broker, own = self._broker, self._set()
        changes = {field: own[name] for name, field in BROKER_FIELDS.items() if name in own}
        if RACK_AWARENESS in own:
            changes[BROKER_FIELDS[RACK_AWARENESS]] = own[RACK_AWARENESS] == RACK_AWARE_SELECTOR
        if self._read_only:
            changes["auto_create_topics"] = False
        broker.use(structs.replace(broker.static_config, **changes))
        of_groups = {GROUP_CONFIG_OF[name]: value for name, value in own.items() if name in GROUP_CONFIG_OF}
        self._groups.use(
            {field: of_groups[name] for name, field in CONSUMER_FIELDS.items() if name in of_groups},
            {field: of_groups[name] for name, field in SHARE_FIELDS.items() if name in of_groups},
        )
        self._bound_connections(own)

    def _bound_connections(self, own: Mapping[str, Any]) -> None:
        if self._hold_connections is None:
            return
        in_file = self._broker.facts.fixed
        in_all, of_one = (int(own.get(name, in_file[name])) for name in (CONNECTIONS, CONNECTIONS_OF_IP))
        try:
            of_hosts = host_bounds(str(own.get(CONNECTIONS_OF_IPS, in_file[CONNECTIONS_OF_IPS])))
        except HostBoundsError:
            of_hosts = host_bounds(in_file[CONNECTIONS_OF_IPS])
        if not of_one and not any(of_hosts.values()):  # each resource is checked by itself; nobody could take it back
            of_one = int(in_file[CONNECTIONS_OF_IP])
        self._hold_connections(in_all, of_one, of_hosts)

    def _set(self) -> dict[str, Any]:
        """The values that are set for this node, or for all, by name."""
        configs = self._broker.configs
        texts: Mapping[str, str] = {
            **configs.of(ResourceType.BROKER, ALL_BROKERS),
            **configs.of(ResourceType.BROKER, str(self._broker.node_id)),
        }
        values: dict[str, Any] = {}
        for name, text in texts.items():
            try:
                values[name] = BROKER_CONFIGS[name].parse(text)
            except (KeyError, InvalidConfig):
                continue
        return values
