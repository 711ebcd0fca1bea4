"""Latencies in a fixed number of buckets: any number of them in the same few kilobytes.

A bucket is one nanosecond wide below 256 ns; above, every power of two is cut into 128 equal buckets, so that a
bucket is never wider than 1/128 of the values in it. A percentile is given as its bucket's upper end, or as the
largest latency recorded where that is less: at or above the exact one, by less than 1/128 of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

NANOSECONDS_MAX = 3600 * 10**9
"""An hour, far beyond any timeout here. A longer time counts as this long; `longest_ns` stays exact."""

_HALF_BITS = 7
_HALF = 1 << _HALF_BITS
"""Buckets per power of two."""


def bucket_of(nanoseconds: int) -> int:
    """The bucket of a value of at least 0."""
    shift = nanoseconds.bit_length() - _HALF_BITS - 1
    return nanoseconds if shift <= 0 else (shift << _HALF_BITS) + (nanoseconds >> shift)


def bucket_end(bucket: int) -> int:
    """The largest value, in nanoseconds, that a bucket takes."""
    shift = max((bucket >> _HALF_BITS) - 1, 0)
    return ((bucket - (shift << _HALF_BITS) + 1) << shift) - 1


class LatencyHistogram:
    """Latencies in nanoseconds. One thread records; others may read and see a state of a moment ago."""

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * (bucket_of(NANOSECONDS_MAX) + 1)))
        self.count = 0
        self.longest_ns = 0

    def record(self, nanoseconds: int) -> None:
        """A latency; one below 0, which clocks of two machines can give, counts as 0."""
        # Comparisons instead of min and max: this is done for every record of a load.
        if nanoseconds > self.longest_ns:
            self.longest_ns = nanoseconds
        if nanoseconds < 0:
            nanoseconds = 0
        elif nanoseconds > NANOSECONDS_MAX:
            nanoseconds = NANOSECONDS_MAX
        self._counts[bucket_of(nanoseconds)] += 1
        self.count += 1

    def percentile(self, percent: float) -> int | None:
        """The smallest latency, in nanoseconds, that `percent` of all do not exceed; None of nothing."""
        assert 0 < percent <= 100, percent
        # A count of fractions below a millionth is rounding of the division, not one more record.
        rank = -int(-(self.count * percent / 100 - 1e-6) // 1)
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return min(bucket_end(bucket), self.longest_ns)
        return None

    def counts_up_to(self, bounds_ns: Sequence[int]) -> list[int]:
        """How many latencies lie above the bound before and at or below each of the rising bounds; a bucket that a
        bound cuts counts below it. A time above the last bound is not counted."""
        counts = [0] * len(bounds_ns)
        row = 0
        for bucket, count in enumerate(self._counts):
            if not count:
                continue
            while row < len(bounds_ns) and bounds_ns[row] < self._begin(bucket):
                row += 1
            if row == len(bounds_ns):
                break
            counts[row] += count
        return counts

    @staticmethod
    def _begin(bucket: int) -> int:
        return bucket_end(bucket - 1) + 1 if bucket else 0
