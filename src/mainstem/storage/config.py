"""Configuration of the storage role, the journal's and the queue store's own parts excepted."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

MEBIBYTE = 1 << 20


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds."""

    write_cache_bytes: int = 256 * MEBIBYTE
    """Memory for the newest blocks, which tail readers are served from; 0 switches the cache off."""
    block_bytes_max: int = 4 * MEBIBYTE
    """An open block is closed when it holds this much, so that one write stays a few ms of disk time."""
    write_backlog_bytes_max: int = 64 * MEBIBYTE
    """Appended and not yet committed bytes beyond which producers' sockets are not read. One request of each connection
    may go beyond it."""
    checkpoint_bytes: int = 256 * MEBIBYTE
    """Journal bytes between two checkpoints: bounds what a start has to apply again."""
    checkpoint_seconds: float = 10.0
    """At least this long between two checkpoints made only because pruning waits for one."""
    retention_check_seconds: float = 300.0
    """How often retention is applied (Kafka's log.retention.check.interval.ms)."""
    prune_seconds: float = 1.0
    """How often split or dead journal segments are looked for."""
    disk_throttle_free_bytes: int = 2048 * MEBIBYTE
    """Free space on disk 1 below which produce is slowed down, more the nearer to `disk_refuse_free_bytes`.
    On disks smaller than 20 GiB a tenth of the disk counts instead."""
    disk_refuse_free_bytes: int = 512 * MEBIBYTE
    """Free space on disk 1 below which produce is refused with a retriable error; on small disks a fortieth
    of the disk, but two journal segments at the least. The rest stays for control blocks, checkpoints
    and the manifest."""
    journal_bytes_max: int = 0
    """Bound on the journal itself: slowed down from 85 % of it on, refused at 95 %. 0: only the disk bounds it."""
    disk_check_seconds: float = 1.0
    background_slowdown_max: float = 1.2
    """Catch-up reads and the split slow down when commits take longer than this many times what they take without
    them; 0: they never do."""
    background_bytes_per_second_min: int = 32 * MEBIBYTE
    """…but not below this, so that they end."""
    snapshot_bytes_per_second: int = 64 * MEBIBYTE
    """Runs copied to replicas that need a snapshot, in all, of a node; 0: as fast as publishing does not feel it."""
    producer_expiry_seconds: float = 86_400.0
    """A producer id unseen for this long is forgotten (Kafka's producer.id.expiration.ms)."""
    producers_in_memory: int = 131_072
    """Idempotent producers, per queue they write to, that memory holds: 22 MB. Those that were not seen lately lie in
    files on disk 1 and take 16 bytes of memory each."""
    producers_max: int = 4_194_304
    """Producers that are remembered at all: 64 MiB of memory, 700 MB of disk 1. Beyond it those go first that sent a
    single batch, of the queues that have the most, the oldest first."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in ("write_cache_bytes", "journal_bytes_max", "snapshot_bytes_per_second"):
            if getattr(self, key) < 0:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be 0 or more bytes")
        if not 1 <= self.producers_in_memory <= self.producers_max:
            raise ConfigError(
                f"storage.producers_in_memory = {self.producers_in_memory}, storage.producers_max = "
                f"{self.producers_max}: must be 1 <= in memory <= max"
            )
        for key in ("block_bytes_max", "write_backlog_bytes_max", "checkpoint_bytes"):
            if getattr(self, key) < 4096:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be at least 4096 bytes")
        for key in (
            "checkpoint_seconds",
            "retention_check_seconds",
            "prune_seconds",
            "disk_check_seconds",
            "producer_expiry_seconds",
        ):
            if getattr(self, key) <= 0:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be more than 0 seconds")
        if self.background_slowdown_max != 0 and self.background_slowdown_max <= 1:
            raise ConfigError(
                f"storage.background_slowdown_max = {self.background_slowdown_max}: must be more than 1, or 0"
            )
        if self.background_bytes_per_second_min < MEBIBYTE:
            raise ConfigError(
                f"storage.background_bytes_per_second_min = {self.background_bytes_per_second_min}: "
                f"must be at least {MEBIBYTE} bytes"
            )
        if not 0 <= self.disk_refuse_free_bytes <= self.disk_throttle_free_bytes:
            raise ConfigError(
                f"storage.disk_refuse_free_bytes = {self.disk_refuse_free_bytes}, "
                f"storage.disk_throttle_free_bytes = {self.disk_throttle_free_bytes}: "
                "must be 0 <= refuse <= throttle"
            )
