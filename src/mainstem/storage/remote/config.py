"""Configuration of reads from the remote tier: what of it this node keeps near."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

MEBIBYTE = 1 << 20


class ReadCacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes."""

    memory_bytes: int = 128 * MEBIBYTE
    """Memory for pieces of remote files, from which their readers are served; three quarters of it at most are what
    was read ahead of them."""
    disk_bytes: int = 0
    """Room on disk 2, or with a shared store on disk 1, for pieces of remote files that are read again and again; 0:
    all of them come from the object store."""
    chunk_bytes: int = MEBIBYTE
    """The bytes that memory holds and evicts at once, and the least that a reader has the object store asked for,
    unless more of them wait than half of `memory_bytes` has room for at `request_bytes` each: then each is brought what
    it takes, with as much of what follows as that half has room for, and no other's bytes (not with `disk_bytes`)."""
    request_bytes: int = 4 * MEBIBYTE
    """Neighbouring chunks are asked for in one request, up to this: a request costs the same whatever it brings, but
    one connection brings no more than some 50 MB/s, so that a reader has several on their way in any case."""
    read_ahead_chunks_max: int = 96
    """How far ahead of a reader that comes back is read: 16 requests of 4 MiB, with which obstore alone is fastest, and
    half as much that has come while what is before it is on its way."""
    index_bytes: int = 64 * MEBIBYTE
    """Memory for the indexes of remote files: 80 bytes per extent."""

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        for key in ("memory_bytes", "index_bytes"):
            if getattr(self, key) < MEBIBYTE:
                raise ConfigError(f"read_cache.{key} = {getattr(self, key)}: must be at least {MEBIBYTE} bytes")
        for key in ("disk_bytes", "read_ahead_chunks_max"):
            if getattr(self, key) < 0:
                raise ConfigError(f"read_cache.{key} = {getattr(self, key)}: must be 0 or more")
        if not 65_536 <= self.chunk_bytes <= 64 * MEBIBYTE:
            raise ConfigError(f"read_cache.chunk_bytes = {self.chunk_bytes}: must be 65536 to {64 * MEBIBYTE} bytes")
        if not 65_536 <= self.request_bytes <= 64 * MEBIBYTE:
            raise ConfigError(
                f"read_cache.request_bytes = {self.request_bytes}: must be 65536 to {64 * MEBIBYTE} bytes"
            )
