"""What ends a run, and the numbers that may say so."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import click

SECONDS_DEFAULT = 10.0
SECONDS_MAX = 7 * 24 * 3600.0
"""A week; more is a slip of the finger."""
RATE_MAX = 10_000_000.0
"""Records per second, beyond any one process."""
LINGER_MS_MAX = 10_000.0
"""Less than a record may take until it is given up."""


class Limits(NamedTuple):
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


def limits(records: int | None, total_bytes: int | None, seconds: float | None, record_bytes: int) -> Limits:
    """What the options say; without any of them a time. Bytes are whole records, never fewer than were asked."""
    if records is None and total_bytes is None and seconds is None:
        return Limits(seconds=SECONDS_DEFAULT)
    by_bytes = None if total_bytes is None else -(-total_bytes // record_bytes)
    counts = [count for count in (records, by_bytes) if count is not None]
    none = Limits()
    return Limits(min(counts, default=none.records), seconds or none.seconds)
