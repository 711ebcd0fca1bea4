"""Bounds the log lines that clients can cause to as many as a person can read.

A client that sends nonsense, or has found a request that fails, decides how often: a fuzzer would fill the log's
disk. So there are some lines at once, then one from time to time, which says how many were left out.
"""

from __future__ import annotations

import logging
from typing import Protocol

LINES_AT_ONCE = 20
"""Lines at once: enough to show the kind of fault, and its source."""

SECONDS_PER_LINE = 10.0
"""Seconds between later lines, as long as faults go on: 9,000 lines a day, about a megabyte."""


class Monotonic(Protocol):
    """A clock, or the module `time`."""

    def monotonic(self) -> float:
        """Seconds, never going back."""
        ...


class BoundedLog:
    def __init__(self, logger: logging.Logger, clock: Monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._room = float(LINES_AT_ONCE)
        self._refilled_at = clock.monotonic()
        self.left_out = 0
        """Lines left out since the last one."""

    def report(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Log the text, with the traceback of `error` if given, or only count it."""
        now = self._clock.monotonic()
        self._room = min(LINES_AT_ONCE, self._room + (now - self._refilled_at) / SECONDS_PER_LINE)
        self._refilled_at = now
        if self._room < 1:
            self.left_out += 1
            return
        self._room -= 1
        if self.left_out:
            text = f"{text} ({self.left_out} more like it, or of other kinds, were left out)"
            self.left_out = 0
        self._logger.log(level, "%s", text, exc_info=error)
