"""Configuration of the storage role, except for the journal and the queue store, which have their own."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

MEBIBYTE = 1 << 20


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds."""

    write_cache_bytes: int = 256 * MEBIBYTE
    """Memory for the newest blocks, from which readers at the ends of queues are served; 0 switches the cache off."""
    block_bytes_max: int = 4 * MEBIBYTE
    """An open block is closed when it holds this much, so that one write stays a few ms of disk time."""
    write_backlog_bytes_max: int = 64 * MEBIBYTE
    """While more bytes than this are appended and not yet committed, producers' sockets are not read. One request of
    each connection may exceed it."""
    checkpoint_bytes: int = 256 * MEBIBYTE
    """Journal bytes between two checkpoints: bounds what a start has to apply again."""
    checkpoint_seconds: float = 10.0
    """The least time between two checkpoints that are made only because pruning waits for one."""
    retention_check_seconds: float = 300.0
    """How often retention is applied (Kafka's log.retention.check.interval.ms)."""
    prune_seconds: float = 1.0
    """How often pruning looks for split or dead journal segments."""
    disk_throttle_free_bytes: int = 2048 * MEBIBYTE
    """Below this free space on disk 1 produce is slowed down, more the nearer it is to `disk_refuse_free_bytes`. On
    disks smaller than 20 GiB a tenth of the disk counts instead."""
    disk_refuse_free_bytes: int = 512 * MEBIBYTE
    """Below this free space on disk 1 produce is refused with a retriable error; on small disks a fortieth of the disk
    counts instead, but at least two journal segments. The rest stays for control blocks, checkpoints and the
    manifest."""
    journal_bytes_max: int = 0
    """Bound on the journal itself: produce is slowed down from 85 % of it on, and refused at 95 %. 0: only the disk
    bounds it."""
    disk_check_seconds: float = 1.0
    background_slowdown_max: float = 1.2
    """Catch-up reads and the split slow down when commits take more than this many times as long as without them; 0:
    they never slow down."""
    background_bytes_per_second_min: int = 32 * MEBIBYTE
    """…but not below this, so that they end; merges, compactions and uploads not below a quarter of it, copies between
    nodes not below half of it."""
    snapshot_bytes_per_second: int = 64 * MEBIBYTE
    """Bound on copying runs to replicas that need a snapshot, for the whole node, and on the log that learners catch up
    with, for each write group; 0: bounded only by publish latency."""
    scrub_interval_seconds: float = 604_800.0
    """Every sealed journal segment and every run is read once in this time, a week, to find damage before a reader
    does; 0: none is read."""
    scrub_bytes_per_second: int = 16 * MEBIBYTE
    """Bound on scrubbing, for the whole node; 0: bounded only by publish latency. A disk that holds more than fits into
    the interval at this pace takes longer (`mainstem_scrub_overdue_seconds`)."""
    producer_expiry_seconds: float = 86_400.0
    """A producer id unseen for this long is forgotten (Kafka's producer.id.expiration.ms)."""
    producers_in_memory: int = 131_072
    """Idempotent producers, per queue they write to, that memory holds: 22 MB. Producers not seen lately lie in files
    on disk 1 and take 16 bytes of memory each."""
    producers_max: int = 4_194_304
    """Producers that are remembered at all: 64 MiB of memory, 700 MB of disk 1. Beyond it the node forgets producers
    that sent a single batch first, from the queues that have the most, the oldest first."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in (
            "write_cache_bytes", "journal_bytes_max", "snapshot_bytes_per_second", "scrub_bytes_per_second",
        ):  # fmt: skip
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
        if self.scrub_interval_seconds < 0:
            raise ConfigError(
                f"storage.scrub_interval_seconds = {self.scrub_interval_seconds}: must be more than 0 seconds, or 0 to "
                "read nothing"
            )
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
