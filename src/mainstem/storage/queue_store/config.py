"""Configuration of the queue store on disk 2 and of its read cache."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

MEBIBYTE = 1 << 20


class QueueStoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds."""

    read_cache_bytes: int = 128 * MEBIBYTE
    """Memory for pieces of runs, from which catch-up readers are served; 0 switches the cache off."""
    read_chunk_bytes: int = MEBIBYTE
    """Bytes read from a disk at once for catch-up readers, of runs and of the journal: large enough that the way to the
    reading thread costs little. A reader of one queue among many gets its neighbours too."""
    read_ahead_chunks_max: int = 8
    """How far ahead of a sequential reader is read once it has shown that it is faster than the disk: half of what a
    response from a disk has at most, so that the disk works while it is sent."""
    read_bytes_per_second: int = 0
    """Bound on the bytes read from disk 2 per second; 0: none. For disks shared with the journal."""
    index_cache_bytes: int = 64 * MEBIBYTE
    """Memory for the indexes of runs: 80 bytes per extent, at least one extent per queue in a run."""
    facts_cache_bytes: int = 64 * MEBIBYTE
    """Memory for what merges and retention remember of files: about 20 bytes for each, and what is in those that may be
    merged next. If it is not enough, indexes are read again, and the dead part of further files is not looked for."""
    open_files_max: int = 256
    """Runs kept open: a quarter of the usual limit on descriptors, the rest being for connections."""
    orphan_grace_seconds: float = 3600.0
    """A file that the manifest does not name is removed when it has been seen for this long: longer than
    any splitter takes from its first byte until it is recorded."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in (
            "read_cache_bytes",
            "read_bytes_per_second",
            "index_cache_bytes",
            "facts_cache_bytes",
            "read_ahead_chunks_max",
        ):
            if getattr(self, key) < 0:
                raise ConfigError(f"queue_store.{key} = {getattr(self, key)}: must be 0 or more")
        if not 4096 <= self.read_chunk_bytes <= 64 * MEBIBYTE:
            raise ConfigError(
                f"queue_store.read_chunk_bytes = {self.read_chunk_bytes}: must be 4096 to {64 * MEBIBYTE} bytes"
            )
        if self.open_files_max < 1:
            raise ConfigError(f"queue_store.open_files_max = {self.open_files_max}: must be at least 1")
        if self.orphan_grace_seconds <= 0:
            raise ConfigError(
                f"queue_store.orphan_grace_seconds = {self.orphan_grace_seconds}: must be more than 0 seconds"
            )
