"""The broker's settings. Kafka's name of a setting, where it has one, stands beside it."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError
from mainstem.model import FACTOR_OF_CLUSTER

MIB = 1024 * 1024


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults and limits of request handling. `validate` raises ConfigError."""

    auto_create_topics: bool = True
    """auto.create.topics.enable: asking for the metadata of an unknown topic creates it."""

    num_partitions: int = 1
    """num.partitions: for topics created without a count."""

    default_replication_factor: int = FACTOR_OF_CLUSTER
    """default.replication.factor: for topics created without one; -1: that of the cluster's first write groups."""

    fetch_bytes_max: int = 55 * MIB
    """fetch.max.bytes: a fetch response is cut here, whatever the client asks for."""

    fetch_disk_bytes_max: int = 16 * MIB
    """A response that needs a disk is cut here: readers of old data come back at once, and between two
    responses all other readers are served. Bytes from memory do not count."""

    fetch_wait_ms_max: int = 60_000
    """A long poll ends after this time, whatever the client asks for, so that a vanished client is
    noticed."""

    fetch_sessions_max: int = 1_000
    """max.incremental.fetch.session.cache.slots."""

    fetch_session_idle_ms_min: int = 120_000
    """A session that was used more recently than this is evicted only for a larger one."""

    fetch_session_partitions_max: int = 1_000_000
    """Partitions that all sessions together remember, about 200 bytes each; beyond it there are no new
    sessions."""

    catch_up_from_replicas: bool = False
    """A leader sends consumers that name their rack, and read what its memory has no more, to another replica."""

    rack_aware_reads: bool = False
    """replica.selector.class: a leader sends consumers that name their rack to a replica there."""

    telemetry_bytes_max: int = MIB
    """telemetry.max.bytes: a client pushes so much of its metrics at once, compressed."""

    telemetry_clients_max: int = 10_000
    """Clients whose telemetry the node follows, half a KB each; beyond it those go that were heard longest ago."""

    telemetry_series_max: int = 10_000
    """Series that all clients together push, some hundred bytes each, up to 2 KB; clients of one address push half of
    them at most. The node drops
    and counts the rest."""

    def validate(self) -> None:
        for name, (smallest, largest) in _BOUNDS.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ConfigError(f"{name} = {value} is out of range; it is {smallest} to {largest}")
        if not self.default_replication_factor:
            raise ConfigError(
                "default_replication_factor = 0 is out of range; it is 1 to 32767, or -1 for the cluster's"
            )


_BOUNDS = {
    "num_partitions": (1, 1_000_000),
    "default_replication_factor": (FACTOR_OF_CLUSTER, 32_767),
    "fetch_bytes_max": (1024, 2**31 - 1),
    "fetch_disk_bytes_max": (1024, 2**31 - 1),
    "fetch_wait_ms_max": (1, 2**31 - 1),
    "fetch_sessions_max": (0, 1_000_000),
    "fetch_session_idle_ms_min": (0, 2**31 - 1),
    "fetch_session_partitions_max": (0, 100_000_000),
    "telemetry_bytes_max": (1, 2**31 - 1),
    "telemetry_clients_max": (1, 1_000_000),
    "telemetry_series_max": (0, 1_000_000),
}
