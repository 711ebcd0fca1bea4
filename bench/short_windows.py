"""The figures of all short windows of a kind, where publishing goes on in turn alone and beside others.

The latencies of all windows of a kind are one distribution, and what decides its 99th percentile may be one window in
five: a disk that stalls for 40 ms by itself, or a host that takes a processor away for 100 ms. So the median of the
windows' own percentiles is told as well, how many windows had a stall, and the percentile of those windows in which the
host took nothing (`stolen_time`). Which windows these are does not go by their latencies.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from bench.load import Result
from bench.metrics import Figures, pooled_ms

POOLED = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
STALL_MS = 20.0
"""A window with a request that took longer had a stall: four times the p99 of publishing alone."""
STOLEN_SECONDS_MOST = 0.015
"""The host took something from a window with more than this on one processor. The kernel counts in hundredths of a
second, and one of these may have come together from many short times. Two are the latency of one request in a hundred
at the least, where a window is a second."""
OTHERS_SECONDS_MOST = 0.05
"""Nor is a window whole in which other programs took more than this of the node's cores, where that is measured."""
SHOWN = (*POOLED, "window_p99_ms", "windows", "stalled_windows", "whole_windows", "whole_p99_ms")


class ShortWindow(NamedTuple):
    result: Result
    stolen_seconds: float
    """By the host, of the processor that it took the most from."""
    others_seconds: float = 0.0
    """Of the node's cores, by other programs; 0 where that was not measured."""

    @property
    def whole(self) -> bool:
        """The host left the machine its processors, and other programs left the node its own."""
        return self.stolen_seconds <= STOLEN_SECONDS_MOST and self.others_seconds <= OTHERS_SECONDS_MOST


def figures_of_windows(windows: Sequence[ShortWindow]) -> Figures:
    """No `whole_p99_ms` where the host took something from every window."""
    results = [one.result for one in windows]
    whole = [one.result for one in windows if one.whole]
    figures = {name: pooled_ms(results, fraction) for name, fraction in POOLED.items()}
    figures["window_p99_ms"] = statistics.median(one["latency_us"]["p99"] for one in results) / 1000
    stalled = sum(one["latency_us"]["max"] > STALL_MS * 1000 for one in results)
    figures["windows"] = len(windows)
    figures["stalled_windows"] = 100 * stalled / len(windows)
    figures["whole_windows"] = len(whole)
    if whole:
        figures["whole_p99_ms"] = pooled_ms(whole, POOLED["p99_ms"])
    return figures
