"""Waiting for what a cluster comes to by itself."""

from __future__ import annotations

import time
from collections.abc import Callable

RECOVERY_SECONDS_MAX = 60.0


def wait_until(check: Callable[[], bool], what: str, seconds: float = RECOVERY_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come about within {seconds:.0f} s")
        time.sleep(0.05)
