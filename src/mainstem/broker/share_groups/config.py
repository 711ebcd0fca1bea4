"""The settings of share groups. Python names carry units; Kafka's names stand beside them."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

RESETS = ("latest", "earliest")
READ_COMMITTED = "read_committed"
ISOLATION_LEVELS = ("read_uncommitted", READ_COMMITTED)


class ShareGroupsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds and durations of the share groups that read from one node."""

    lock_duration_ms: int = 30_000
    """`group.share.record.lock.duration.ms`: how long a record belongs to the member that acquired it."""
    delivery_count_limit: int = 5
    """`group.share.delivery.count.limit`: a record that was given out so often goes to nobody any more."""
    record_locks_max: int = 2_000
    """`group.share.partition.max.record.locks`: offsets between the first that is not done and the last that was given
    out, per group and partition."""
    auto_offset_reset: str = "latest"
    """`share.auto.offset.reset`: where a group begins to read a partition, `latest` or `earliest`."""
    isolation_level: str = "read_uncommitted"
    """`share.isolation.level`: whether a group gets all records, or those of transactions once they are committed."""
    renewals: bool = True
    """`share.renew.acknowledge.enable`: whether members may renew the lock of a record."""
    sessions_max: int = 2_000
    """`group.share.max.share.sessions`: share sessions on this node."""
    session_partitions_max: int = 10_000
    """Partitions that one share session follows: requests of a session look at each of them."""
    session_idle_ms_min: int = 120_000
    """A session that was not used for so long makes room for another: as long as Kafka keeps one of a fetch."""
    windows_max: int = 20_000
    """Groups times partitions whose state one partition of the internal topic holds. Each takes 1 KB, and 200 bytes
    for each stretch of records in one state."""
    state_partitions_per_write_group: int = 4
    """Partitions of `__share_group_state` for each write group of the cluster, when the topic is made."""
    append_bytes_max: int = 128 * 1024
    """As `groups.append_bytes_max`, of `__share_group_state`."""
    snapshot_after_bytes: int = 4 * 1024 * 1024
    """As `groups.snapshot_after_bytes`."""
    load_bytes: int = 1024 * 1024
    """As `groups.load_bytes`."""
    append_timeout_ms: int = 5_000
    """`share.coordinator.write.timeout.ms`: how long an append may be refused as busy before it counts as failed."""

    def validate(self) -> None:
        """Raises `ConfigError` on a value that cannot work."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"shares.{name} is {value}; it must be at least 1")
        for name, choices in (("auto_offset_reset", RESETS), ("isolation_level", ISOLATION_LEVELS)):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"shares.{name} is {value!r}; it is one of: {', '.join(choices)}")
