"""Clocks: one that only moves when a test moves it, one that follows the event loop."""

from __future__ import annotations

import asyncio


class FakeClock:
    """`ports.Clock` under the test's control: starts at a fixed instant, moves by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._started_ms = now_ms
        self._elapsed_seconds = 0.0

    def now_ms(self) -> int:
        return self._started_ms + round(self._elapsed_seconds * 1000)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "time never goes back"
        self._elapsed_seconds += seconds


class LoopClock:
    """`ports.Clock` that follows the running event loop, for tests over sockets."""

    def now_ms(self) -> int:
        return int(1_700_000_000_000 + self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class HastyClock(LoopClock):
    """A millisecond passes with each look at it, and no time otherwise."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return self._looks / 1000
