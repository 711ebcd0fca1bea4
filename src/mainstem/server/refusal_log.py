"""Lines about connections that end for a fault, as many as somebody can read.

Whoever sends nonsense decides how often: a fuzzer would fill the disk of the log. So there are some lines at once, then
one from time to time, which says how many were left out.
"""

from __future__ import annotations

import logging

from mainstem.ports import Clock

LINES_AT_ONCE = 20
"""Enough to see what kind of fault it is, and whose."""

SECONDS_PER_LINE = 10.0
"""Afterwards, for as long as they go on coming: 9,000 lines a day, about a megabyte."""


class RefusalLog:
    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._room = float(LINES_AT_ONCE)
        self._refilled_at = clock.monotonic()
        self.left_out = 0
        """Since the last line."""

    def report(self, level: int, text: str, error: BaseException | None = None) -> None:
        """Say it, or count it. With an `error`, its traceback."""
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
