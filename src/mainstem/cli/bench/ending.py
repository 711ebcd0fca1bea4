"""The ends of a measurement: the numbers that its options set (`limits`), Ctrl-C, or a failure.

It ends before its time by Ctrl-C (the first ends it with the summary so far, the second ends the
waiting for what is still in flight), or with the line that says why not all records were acknowledged.
"""

from __future__ import annotations

import math
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import click
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from mainstem.cli.bench.tally import SILENCE_SECONDS_MAX, Tally
from mainstem.cli.clients import kafka_node

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which SIGINT and SIGTERM are counted instead of ending the process."""

    def __init__(self) -> None:
        self._count = 0
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def came(self) -> bool:
        return self._count > 0

    @property
    def came_twice(self) -> bool:
        return self._count > 1

    def __enter__(self) -> Interruption:
        self._previous = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1


_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
"""The second is what some nodes answer to a batch above the limit."""


def failure_of(tally: Tally, interruption: Interruption, admin: AdminClient, topic: str) -> str | None:
    """The failure; None if there was none. A second Ctrl-C leaves records unanswered, and that is no failure.

    The topic must still be there: it is asked for its limit where records were too large for it."""
    if tally.failed:
        error = tally.first_error
        what = f"{tally.failed} of {tally.sent} records were not acknowledged; the first: {error.str()}"
        limit = kafka_node.topic_config(admin, topic, "max.message.bytes") if error.code() in _TOO_LARGE else None
        return what if limit is None else f"{what}; max.message.bytes of {topic} is {limit}"
    if tally.in_flight and not interruption.came_twice:
        return f"{tally.in_flight} of {tally.sent} records were not answered within {SILENCE_SECONDS_MAX:.0f} s"
    return None


SECONDS_DEFAULT = 10.0
SECONDS_MAX = 7 * 24 * 3600.0
"""A week; more is a slip of the finger."""
RATE_MAX = 10_000_000.0
"""Records per second, beyond any one process."""
LINGER_MS_MAX = 10_000.0
"""Less than a record may take until it is given up."""


class RunLimits(NamedTuple):
    """The first that is reached ends the run."""

    records: int = sys.maxsize
    seconds: float = SECONDS_MAX


class Positive(click.FloatRange):
    """A number above 0 and up to `maximum`."""

    name = "number"

    def __init__(self, maximum: float) -> None:
        super().__init__(0, maximum, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, param, context)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, context)
        return number


def limits(records: int | None, total_bytes: int | None, seconds: float | None, record_bytes: int) -> RunLimits:
    """The bounds that the options set; without any of them a time. Bytes are whole records, never fewer than were
    asked."""
    if records is None and total_bytes is None and seconds is None:
        return RunLimits(seconds=SECONDS_DEFAULT)
    by_bytes = None if total_bytes is None else -(-total_bytes // record_bytes)
    counts = [count for count in (records, by_bytes) if count is not None]
    none = RunLimits()
    return RunLimits(min(counts, default=none.records), seconds or none.seconds)
