"""Time in the demos: how fast something goes, how long something is waited for, and when a demo gives up."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType

from demo.errors import DemoFailed

LOOK_SECONDS = 0.3


class Pace:
    """Holds a loop at so many turns per second."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._started = time.monotonic()
        self._turns = 0

    def wait(self) -> None:
        self._turns += 1
        ahead = self._turns / self._per_second - (time.monotonic() - self._started)
        if ahead > 0.01:
            time.sleep(ahead)


def wait_until(reached: Callable[[], bool], otherwise: str, seconds_max: float) -> None:
    """Raises DemoFailed."""
    deadline = time.monotonic() + seconds_max
    while not reached():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{otherwise} within {seconds_max:.0f} s")
        time.sleep(LOOK_SECONDS)


def give_up_after(seconds: int) -> None:
    """From so many seconds from now on, whatever the main thread does raises DemoFailed."""

    def out_of_time(number: int, frame: FrameType | None) -> None:
        raise DemoFailed(f"not done within {seconds} s")

    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(seconds)
