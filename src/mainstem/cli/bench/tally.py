"""The fate of the records that were sent: acknowledged or failed, by which error, and how long it took.

Latency counts from when a record was due. In an open loop that is the time the rate gives it, sent or not: a node
that stands still makes the records after it late, too, which is what its users would see.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from mainstem.cli.bench.latency_histogram import LatencyHistogram
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX, ConnectionNews

Clock = Callable[[], int]
"""Nanoseconds since any moment."""

SILENCE_SECONDS_MAX = LOST_SECONDS_MAX + 5
"""Without any acknowledgement. The client's own timeout, which gives each record an error with a name, is a little
less."""


class Tally:
    """One per run. `sent` belongs to the thread that sends, the rest to the one that delivers; both may read."""

    def __init__(self, news: ConnectionNews, *, clock: Clock = time.perf_counter_ns) -> None:
        self.clock = clock
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.errors: Counter[str] = Counter()
        """Name of Kafka's or the client's error -> records it came to."""
        self.first_error: Any = None
        self.latency = LatencyHistogram()
        self.last_outcome_ns: int | None = None
        self._last_progress_ns = clock()
        self._news = news

    @property
    def in_flight(self) -> int:
        return self.sent - self.acknowledged - self.failed

    def outcome(self, due_ns: int, error: Any, message: Any) -> None:
        """A client's `on_delivery` of one record, the first argument bound."""
        now = self.last_outcome_ns = self.clock()
        if error is not None:
            self.fail(error)
            return
        self._news.is_back()
        self._last_progress_ns = now
        self.latency.record(now - due_ns)
        self.acknowledged += 1

    def fail(self, error: Any) -> None:
        self.failed += 1
        self.errors[error.name()] += 1
        self.first_error = self.first_error or error

    def is_hopeless(self) -> bool:
        """Whether to send no more: nothing but errors from the start, or no acknowledgement for too long."""
        if self.failed and not self.acknowledged:
            return True
        if not self.in_flight:
            return False
        return self.clock() - self._last_progress_ns > SILENCE_SECONDS_MAX * 1e9

    def sending(self) -> None:
        """One more record is about to be sent."""
        if self.sent == self.acknowledged + self.failed:
            # Nothing was waited for so far: the silence that counts begins here.
            self._last_progress_ns = self.clock()
        self.sent += 1
