"""The few figures of a node's /metrics that `mainstem top` shows."""

from __future__ import annotations

import re
from typing import NamedTuple

_SAMPLE = re.compile(r"^(mainstem_\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


class Figures(NamedTuple):
    """Counters since the node started, and gauges. None where the node does not tell."""

    received_bytes: float | None = None
    sent_bytes: float | None = None
    requests: float | None = None
    connections: float | None = None
    unsplit_bytes: float | None = None
    journal_bytes: float | None = None
    store_bytes: float | None = None


_NAMES = (
    "mainstem_server_received_bytes_total",
    "mainstem_server_sent_bytes_total",
    "mainstem_server_request_frames_total",
    "mainstem_server_connections",
    "mainstem_split_lag_bytes",
    "mainstem_journal_bytes",
    "mainstem_queue_store_bytes",
)
"""Where the fields of `Figures` come from, in their order."""


def figures_of(text: str) -> Figures:
    """The figures in a text of the Prometheus format; samples of one name that differ in labels are summed."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    return Figures(*(sums.get(name) for name in _NAMES))
