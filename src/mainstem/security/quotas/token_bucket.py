"""A token bucket: it fills at a steady rate up to a bound, and what is taken may leave it in debt."""

from __future__ import annotations

DEBT_SECONDS_MAX = 60.0
"""A debt that would take longer to settle is let off: one huge request does not lock its client out for hours."""

PIECES_MAX = 8
"""Into so many pieces the content of a bucket is taken apart at the most: eight sharers that wait for each other, with
as many requests a second as four buckets have pieces."""


class TokenBucket:
    """`rate` per second, `burst` at most. Times are seconds of one clock that never goes back."""

    __slots__ = ("_at", "_left", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._left = burst
        self._at = now

    def resize(self, rate: float, burst: float, now: float) -> None:
        """Fill at another rate from now on."""
        self._fill(now)
        self.rate, self.burst = rate, burst
        self._left = max(min(self._left, burst), -rate * DEBT_SECONDS_MAX)

    def take(self, amount: float, now: float) -> float:
        """Take an amount, whatever is there. Returns the seconds until the bucket is out of debt; 0: it is not in
        debt."""
        self._fill(now)
        self._left = max(self._left - amount, -self.rate * DEBT_SECONDS_MAX)
        return -self._left / self.rate if self._left < 0 else 0.0

    def room(self, now: float) -> float:
        """The tokens that can be taken without a debt; below 0: the debt."""
        self._fill(now)
        return self._left

    def piece(self, now: float) -> float:
        """The amount that one sharer of the bucket should take at once: all that it holds when it is full, less what
        others that wait have taken ahead. So the debt of all together stays within one bucket, however many they
        are."""
        return max(self.burst / PIECES_MAX, self.burst + min(self.room(now), 0.0))

    def debt_seconds(self, now: float) -> float:
        return self.take(0, now)

    def _fill(self, now: float) -> None:
        self._left = min(self.burst, self._left + (now - self._at) * self.rate)
        self._at = now
