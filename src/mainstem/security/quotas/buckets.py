"""Measures what clients under quotas have used: a bucket for each, of a bounded number."""

from __future__ import annotations

from mainstem.lru import Lru
from mainstem.security.quotas.quota import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    Entity,
)
from mainstem.security.quotas.quota_table import InForce
from mainstem.security.quotas.token_bucket import TokenBucket

BUCKETS_MAX = 50_000
"""Some 20 MB. Beyond it those are forgotten that were used longest ago: clients make up as many names as they like."""

BURST_SECONDS = 0.25
"""How much of its rate somebody who was quiet may use at once: little, so that what passes in ten seconds is no more
than a fortieth above the quota."""

_LONGER_BURSTS = {CONTROLLER_MUTATION_RATE: 11.0, CONNECTION_CREATION_RATE: 1.0}
"""Kafka's bucket of topic changes has room for eleven seconds, so that a topic of many partitions can be made at
all."""


class Buckets:
    def __init__(self) -> None:
        self._buckets: Lru[tuple[str, Entity], TokenBucket] = Lru(BUCKETS_MAX)

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, key: str, quota: InForce, now: float) -> TokenBucket:
        """The bucket that all share who are under a quota; it fills at the quota's rate from now on."""
        burst = quota.per_second * BURST_SECONDS
        if key in _LONGER_BURSTS:  # of what comes in ones
            burst = max(quota.per_second * _LONGER_BURSTS[key], 1.0)
        bucket = self._buckets.get((key, quota.of))
        if bucket is None:
            bucket = TokenBucket(quota.per_second, burst, now)
            self._buckets.put((key, quota.of), bucket)
        elif bucket.rate != quota.per_second:
            bucket.resize(quota.per_second, burst, now)
        return bucket
