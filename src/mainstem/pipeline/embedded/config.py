"""The pipeline's configuration, and its checks."""

from __future__ import annotations

from typing import Literal

import msgspec

from mainstem.errors import ConfigError
from mainstem.pipeline.embedded.processes import NICE


class PipelineConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings by which `mainstem serve` runs the split. `validate` raises ConfigError."""

    mode: Literal["embedded", "off"] = "embedded"
    """`off`: a splitter started with `mainstem split run` does the work, or none does."""
    master: str = "local[1,8]"
    """Spark's master for the embedded splitter: one task at a time, tried eight times. One core splits
    several times the input of two; a second task would compete with the node for both."""
    start_bytes: int = 64 * 1024 * 1024
    """A split starts when so many bytes are unsplit: one journal segment, so that runs are worth their
    index; under load a trigger then gathers for a while (`split_plan.GATHER_SECONDS`)…"""
    start_age_seconds: float = 60.0
    """…or when the oldest unsplit message is this old, so that a quiet queue reaches disk 2 as well."""
    idle_stop_seconds: float = 120.0
    """The splitter's processes (about 650 MB) end after this long without work."""
    bytes_per_trigger: int = 256 * 1024 * 1024
    trigger_seconds: float = 1.0
    """How often the supervisor checks whether a split is worth it. A longer interval bounds the pace: one
    trigger's amount per interval."""
    bytes_per_second: int = 0
    """Bound on writing to disk 2, all tasks together; 0: no bound but publishers' latency, to which the split
    adapts (`storage.background_slowdown_max`)."""
    checkpoint_dir: str = ""
    """Spark's checkpoint; empty: `pipeline/checkpoint` in the store directory. Losing it loses nothing."""
    merge: bool = True
    """Whether the splitter merges files of the queue store in what the split leaves, and the node starts it for merges
    alone. `mainstem store merge` merges in either case."""
    driver_memory: str = "1g"
    nice: int = NICE
    """How much nicer the embedded splitter is than the node, as of Unix; 0: it takes as large a share. With 10 it gets
    what nobody else wants, and where the node wants all of it a tenth (decision 0037)."""

    def validate(self) -> None:
        """Raises ConfigError for a value that cannot be used."""
        for name, least in (("start_bytes", 0), ("bytes_per_trigger", 1 << 20), ("bytes_per_second", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"pipeline.{name} = {getattr(self, name)}: at least {least}")
        for name, low in (("start_age_seconds", 0.0), ("idle_stop_seconds", 1.0), ("trigger_seconds", 0.1)):
            if getattr(self, name) < low:
                raise ConfigError(f"pipeline.{name} = {getattr(self, name)}: at least {low}")
        if not 0 <= self.nice <= 19:
            raise ConfigError(f"pipeline.nice = {self.nice}: from 0 (as large a share as the node's) to 19")
        if not self.master:
            raise ConfigError("pipeline.master is empty; local[1,8] splits on this machine")
        if not self.driver_memory[:-1].isdigit() or self.driver_memory[-1] not in "kmgKMG":
            raise ConfigError(f"pipeline.driver_memory = {self.driver_memory!r}: a size such as 1g or 512m")
