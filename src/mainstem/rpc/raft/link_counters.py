"""Counters of the link to one node, for `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from mainstem.model import HistogramSample, Sample

ROUND_TRIP_BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, float("inf"))
"""Seconds: from a quiet loopback to the deadline."""

_COUNTERS = (
    ("deliveries", "deliveries_total", "Deliveries of Raft messages sent."),
    ("messages", "messages_total", "Raft messages sent."),
    ("entry_bytes", "entry_bytes_total", "Bytes of log entries sent."),
    ("dropped", "dropped_total", "Raft messages dropped: no connection, or too much waits."),
    ("refused", "refused_total", "Deliveries the other end refused."),
    ("connects", "connects_total", "Connections made."),
    ("connect_failures", "connect_failures_total", "Attempts to connect that failed."),
)


@dataclass(slots=True)
class LinkCounters:
    """Written on the event loop only."""

    deliveries: int = 0
    messages: int = 0
    entry_bytes: int = 0
    dropped: int = 0
    refused: int = 0
    connects: int = 0
    connect_failures: int = 0
    round_trip_counts: list[int] = field(default_factory=lambda: [0] * len(ROUND_TRIP_BOUNDS))
    round_trip_seconds: float = 0.0

    def round_trip(self, seconds: float) -> None:
        self.round_trip_counts[bisect_left(ROUND_TRIP_BOUNDS, seconds)] += 1
        self.round_trip_seconds += seconds

    def samples(self, labels: tuple[tuple[str, str], ...]) -> Iterator[Sample | HistogramSample]:
        for name, metric, text in _COUNTERS:
            yield Sample(f"mainstem_raft_link_{metric}", "counter", text, getattr(self, name), labels)
        total, cumulative = 0, []
        for count in tuple(self.round_trip_counts):
            total += count
            cumulative.append(total)
        yield HistogramSample(
            "mainstem_raft_link_round_trip_seconds", "From sending a delivery to its having been taken in.",
            ROUND_TRIP_BOUNDS, tuple(cumulative), self.round_trip_seconds, labels,
        )  # fmt: skip
