"""The pace at which one file is written, however fast the disk or the store is."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_SECONDS_MIN = 0.002
"""Shorter debts are left to grow: a sleep takes about 0.1 ms longer than asked for."""


class WritePace:
    """`bytes_per_second` paces the writes, 0 is unpaced; `clock` (seconds) and `sleep` are what it paces by."""

    def __init__(
        self,
        bytes_per_second: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._paid_until = clock()

    def take(self, size: int) -> None:
        """Return when so many bytes more may be written."""
        if not self._bytes_per_second:
            return
        now = self._clock()
        self._paid_until = max(self._paid_until, now) + size / self._bytes_per_second
        if self._paid_until - now >= PAUSE_SECONDS_MIN:
            self._sleep(self._paid_until - now)
