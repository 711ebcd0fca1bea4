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
    """Appended but not yet written bytes beyond which produce is answered with a retriable error."""
    checkpoint_bytes: int = 256 * MEBIBYTE
    """Journal bytes between two checkpoints: bounds what a start has to apply again."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is made this long after the last one if pruning waits for it."""
    retention_check_seconds: float = 300.0
    """How often retention is applied (Kafka's log.retention.check.interval.ms)."""
    prune_seconds: float = 1.0
    """How often split or dead journal segments are looked for."""
    disk_throttle_ratio: float = 0.85
    """Share of disk 1 in use from which produce is slowed down, more the nearer to `disk_refuse_ratio`."""
    disk_refuse_ratio: float = 0.95
    """Share of disk 1 in use from which produce is refused with a retriable error."""
    journal_bytes_max: int = 0
    """Bound on the journal itself, with the same two ratios; 0: only the disk bounds it."""
    disk_check_seconds: float = 1.0
    producer_expiry_seconds: float = 86_400.0
    """A producer id unseen for this long is forgotten (Kafka's producer.id.expiration.ms)."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in ("write_cache_bytes", "journal_bytes_max"):
            if getattr(self, key) < 0:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be 0 or more bytes")
        for key in ("block_bytes_max", "write_backlog_bytes_max", "checkpoint_bytes"):
            if getattr(self, key) < 4096:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be at least 4096 bytes")
        for key in ("checkpoint_seconds", "retention_check_seconds", "prune_seconds", "disk_check_seconds",
                    "producer_expiry_seconds"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"storage.{key} = {getattr(self, key)}: must be more than 0 seconds")
        if not 0 < self.disk_throttle_ratio < self.disk_refuse_ratio <= 1:
            raise ConfigError(
                f"storage.disk_throttle_ratio = {self.disk_throttle_ratio}, storage.disk_refuse_ratio = "
                f"{self.disk_refuse_ratio}: must be 0 < throttle < refuse <= 1"
            )
