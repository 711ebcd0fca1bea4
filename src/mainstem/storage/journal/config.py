"""Configuration of the journal on disk 1."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError
from mainstem.model import Durability
from mainstem.storage.journal.encoding.format import FIRST_BLOCK, PAGE_BYTES, POSITION_BITS

MEBIBYTE = 1 << 20


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes in bytes, times in seconds."""

    segment_bytes: int = 64 * MEBIBYTE
    """Size of a new segment; those that exist keep theirs."""
    segment_age_seconds: float = 600.0
    """A segment with blocks is sealed at this age, so that little data does not wait for much to be split."""
    pool_segments: int = 2
    """Files filled with zeros in advance, under `async` twice as many while none is taken: enough to start on, and for
    a burst while no segment is recycled yet."""
    pool_segments_max: int = 16
    """Recycled files kept for reuse, the filled ones included. 1 GiB at the default size: what the splitter
    frees in a few seconds of heavy produce, and little enough to stay in the page cache."""
    pool_fill_bytes_per_second: int = 128 * MEBIBYTE
    """Pace of the filling under `sync`; the disk time it takes is missing from writes."""
    durability: Durability = Durability.SYNC
    """`sync`: a write returns once it is on the disk; `async`: once the page cache has it."""
    flush_interval_seconds: float = 1.0
    """Seconds between syncs under `async`."""
    index_cache_bytes: int = 64 * MEBIBYTE
    """Memory for the indexes of sealed segments; about 1 MiB per segment of 4 KiB batches."""

    @property
    def block_bytes_max(self) -> int:
        """The longest block (header, directory, payload and padding) that fits into a new segment."""
        return self.segment_bytes - FIRST_BLOCK

    def validate(self) -> None:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        if self.segment_bytes % PAGE_BYTES or not 4 * PAGE_BYTES <= self.segment_bytes < 1 << POSITION_BITS:
            raise ConfigError(
                f"journal.segment_bytes = {self.segment_bytes}: must be a multiple of {PAGE_BYTES} from "
                f"{4 * PAGE_BYTES} to {(1 << POSITION_BITS) - PAGE_BYTES} bytes"
            )
        for key in ("segment_age_seconds", "flush_interval_seconds"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"journal.{key} = {getattr(self, key)}: must be more than 0 seconds")
        if not 0 <= self.pool_segments <= self.pool_segments_max:
            raise ConfigError(
                f"journal.pool_segments = {self.pool_segments}, journal.pool_segments_max = "
                f"{self.pool_segments_max}: must be 0 <= pool_segments <= pool_segments_max"
            )
        if self.pool_fill_bytes_per_second < MEBIBYTE:
            raise ConfigError(
                f"journal.pool_fill_bytes_per_second = {self.pool_fill_bytes_per_second}: must be at least {MEBIBYTE}"
            )
        if self.index_cache_bytes < 0:
            raise ConfigError(f"journal.index_cache_bytes = {self.index_cache_bytes}: must be 0 or more bytes")
