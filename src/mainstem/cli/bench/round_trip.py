"""Records sent and read again by one process, which times both ends by one clock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from mainstem.cli.bench.arrivals import RUN_BYTES, Arrivals, Stamp, probe_run
from mainstem.cli.bench.bench_topic import BenchTopic
from mainstem.cli.bench.ending import Interruption, RunLimits
from mainstem.cli.bench.load import Load, random_texts
from mainstem.cli.bench.sender import BenchSender
from mainstem.cli.bench.tally import Tally
from mainstem.cli.terminal.connection_news import LOST_SECONDS_MAX

_LOOK_SECONDS = 0.01
"""Between two looks at what has arrived; nothing is timed by it."""


class RoundTrip:
    """A sender and a reader of one topic. Close it."""

    def __init__(
        self,
        topic: BenchTopic,
        producing: dict[str, Any],
        consuming: dict[str, Any],
        offsets: dict[int, int],
        interruption: Interruption,
        *,
        record_bytes: int,
        records_max: int,
        tally: Tally,
    ) -> None:
        """`offsets`: partition -> where reading begins, at the end or close before it."""
        self.tally = tally
        self._topic = topic
        self._interruption = interruption
        self._texts = random_texts(record_bytes)
        self._run = os.urandom(RUN_BYTES)
        consumer = Consumer(consuming)
        consumer.assign([TopicPartition(topic.name, *place) for place in offsets.items()])
        self.arrivals = Arrivals(consumer, self._run, records_max, clock=tally.clock)
        self._sender = BenchSender(topic.name, producing, producers=1, threads=True)

    def probe(self, tally: Tally) -> bool:
        """Send a record to every partition; whether all came back. The tally is theirs alone."""
        self._load(tally, probe_run(self._run), lambda: None).run(RunLimits(records=self._topic.partitions), rate=None)
        wanted = self._topic.partitions - tally.failed - tally.in_flight
        return self._arrived(lambda: len(self.arrivals.probes), wanted) and wanted == self._topic.partitions

    def measure(self, records: int, rate: float, on_turn: Callable[[], None]) -> float:
        """The measurement itself, until the last record has come or is given up; the seconds of the sending."""
        took = self._load(self.tally, self._run, on_turn).run(RunLimits(records=records), rate=rate)
        self._arrived(lambda: self.arrivals.received, self.tally.acknowledged)
        return took

    @property
    def missing(self) -> int:
        """Records that were acknowledged and did not arrive."""
        return max(self.tally.acknowledged - self.arrivals.received, 0)

    def close(self) -> None:
        self._sender.close()
        self.arrivals.close()

    def _load(self, tally: Tally, run: bytes, on_turn: Callable[[], None]) -> Load:
        texts = self._texts
        return Load(
            self._sender,
            tally,
            partition_of=lambda number: number % self._topic.partitions,
            value_of=lambda number, due_ns: Stamp(run, number, due_ns).on(texts[number % len(texts)]),
            interruption=self._interruption,
            on_turn=on_turn,
        )

    def _arrived(self, count: Callable[[], int], wanted: int) -> bool:
        """Wait until so many have arrived, or none has for too long, or a second Ctrl-C."""
        seen, deadline = count(), time.monotonic() + LOST_SECONDS_MAX
        while seen < wanted and self.arrivals.failure is None and not self._interruption.came_twice:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
            if count() > seen:
                seen, deadline = count(), time.monotonic() + LOST_SECONDS_MAX
        return seen >= wanted
