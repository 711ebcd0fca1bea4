"""The wait before the next attempt: longer each time, never the same on all nodes."""

from __future__ import annotations

from random import Random


class Backoff:
    """Doubles from `first_seconds` to `seconds_max`; a random part of each wait, up to half, is left out, so
    that nodes that lost a peer together do not all come back together."""

    def __init__(self, first_seconds: float, seconds_max: float, random: Random) -> None:
        self._first_seconds, self._seconds_max = first_seconds, seconds_max
        self._random = random
        self._next_seconds = first_seconds

    def seconds(self) -> float:
        """The next wait."""
        whole = self._next_seconds
        self._next_seconds = min(2 * whole, self._seconds_max)
        return whole * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: begin with the shortest wait again."""
        self._next_seconds = self._first_seconds
