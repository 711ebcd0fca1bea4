"""The journal's counters, and the histogram of its sync times."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from mainstem.model import HistogramSample

SYNC_SECONDS_BOUNDS = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    1.0,
    float("inf"),
)
"""Bounds in seconds, from a quiet flash disk (0.1 ms) to a disk in trouble."""


class SecondsHistogram:
    """Counts of durations by upper bound. Reading it from another thread may miss the latest."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * len(bounds)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    @property
    def total_seconds(self) -> float:
        """The sum of what was observed."""
        return self._sum

    def sample(self, name: str, text: str) -> HistogramSample:
        return HistogramSample(name, text, self._bounds, tuple(accumulate(self._counts)), self._sum)


class Measures:
    """Totals of the journal's bytes, blocks, writes and syncs since the start."""

    def __init__(self) -> None:
        self.bytes_written = 0
        self.blocks_written = 0
        self.writes = 0
        self.syncs = 0
        self.sync_seconds = SecondsHistogram(SYNC_SECONDS_BOUNDS)

    def synced(self, seconds: float) -> None:
        self.syncs += 1
        self.sync_seconds.observe(seconds)
