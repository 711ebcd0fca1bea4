"""Bounds what tenants bring that have filled disk 1, while there is little room left, so that it is they who wait for
the splitter, and not everybody.

The journal is split in its own order, whosever the batches are; so a tenant that brings more than the splitter takes
fills disk 1 for all, and in the end all are slowed, and refused. Before it comes to that, as early as there is twice as
much room as producers are slowed at, those with much more than others still to be split get a rate each: what they
bring then, half as much with each look at which the room has become less, a quarter more with each other one. Clients
that wait for it are told so, as for a quota. If nobody has much more than others, nobody is held here.

No I/O; the clock is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mainstem.model import Sample
from mainstem.security.quotas.token_bucket import TokenBucket

BEGINS_AT = -1.0
"""The pressure on disk 1 from which on tenants are held. At 0 everybody is slowed, at 1 refused: so this is as far
ahead of the slowing as the refusal is behind it."""

MUCH_MORE = 1.5
"""A tenant that has so many times the mean still to be split has much: of two, three quarters of it all."""

SLOWER, FASTER = 0.5, 1.25
"""Factors of a rate with each look: a flood of 500 MB/s is at 30 after four, having brought less than 1 GB more."""

RATE_MIN = float(1 << 20)
"""Bytes a second that a tenant may bring in any case: a request of a usual size, so that its clients go on."""

IDLE_FACTOR = 4.0
"""A tenant that could bring so many times what it brings is held no more, once there is room."""


class DiskShares:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._looked_at = monotonic()
        self._pressure = BEGINS_AT
        self._held: dict[str, TokenBucket] = {}
        """By tenant; "" are those who are nobody's."""
        self._brought: Counter[str] = Counter()
        """Bytes since the last look, by tenant."""

    @property
    def held(self) -> Mapping[str, float]:
        """Bytes a second, by tenant that is held."""
        return {tenant: bucket.rate for tenant, bucket in self._held.items()}

    def samples(self) -> Iterable[Sample]:
        yield Sample(
            "mainstem_disk_shares_held",
            "gauge",
            "Tenants that bring less for now, since they have filled disk 1.",
            len(self._held),
        )

    def brought(self, tenant: str, size_bytes: int) -> float:
        """Note that a tenant brought batches. Returns the seconds for which it is to wait before it brings more."""
        self._brought[tenant] += size_bytes
        bucket = self._held.get(tenant)
        return 0.0 if bucket is None else bucket.take(size_bytes, self._monotonic())

    def look(self, pressure: float, found: frozenset[str] | None = None) -> None:
        """Steer by the pressure on disk 1 now. `found`: the tenants that have filled it, where these were looked up."""
        now = self._monotonic()
        seconds = max(now - self._looked_at, 0.001)
        rates = {tenant: size / seconds for tenant, size in self._brought.items()}
        fuller = pressure >= 0 or pressure > self._pressure
        crowded = pressure > BEGINS_AT
        self._looked_at, self._pressure = now, pressure
        self._brought.clear()
        for tenant, bucket in tuple(self._held.items()):
            rate = max(RATE_MIN, bucket.rate * (SLOWER if crowded and fuller else FASTER))
            if not crowded and rate > IDLE_FACTOR * rates.get(tenant, 0.0):
                del self._held[tenant]
            else:
                bucket.resize(rate, rate, now)
        if crowded and found is not None:
            self._hold(found, rates, now)

    def _hold(self, tenants: frozenset[str], rates: Mapping[str, float], now: float) -> None:
        for tenant in self._held.keys() - tenants:
            del self._held[tenant]
        for tenant in tenants - self._held.keys():
            rate = max(RATE_MIN, rates.get(tenant, 0.0))
            self._held[tenant] = TokenBucket(rate, rate, now)


def fillers(unsplit: Mapping[str, int]) -> frozenset[str]:
    """The tenants that have much more than others still to be split; none where there is one alone."""
    much = MUCH_MORE * sum(unsplit.values()) / max(1, len(unsplit))
    return frozenset(tenant for tenant, size in unsplit.items() if size > much)
