"""Measures what clients under quotas have used: a bucket for each, of a bounded number."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from heapq import nlargest

from mainstem.lru import Lru
from mainstem.security.quotas.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    Entity,
)
from mainstem.security.quotas.quota_table import InForce
from mainstem.security.quotas.sharing import QUOTAS_TOLD_MAX, QuotaPart, QuotaUse, quota_id
from mainstem.security.quotas.token_bucket import TokenBucket

BUCKETS_MAX = 50_000
"""Some 20 MB. Beyond it those are forgotten that were used longest ago: clients make up as many names as they like."""

BURST_SECONDS = 0.25
"""How much of its rate somebody who was quiet may use at once: little, so that what passes in ten seconds is no more
than a fortieth above the quota."""

_LONGER_BURSTS = {CONTROLLER_MUTATION_RATE: 11.0, CONNECTION_CREATION_RATE: 1.0}
"""Kafka's bucket of topic changes has room for eleven seconds, so that a topic of many partitions can be made at
all."""

SHARED_KEYS = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})
"""Quotas that the nodes of a cluster share, where they do."""

PART_SECONDS = 3.0
"""For which a part counts that the leader gave: a node that hears nothing more has its share by the number of nodes."""

TOLD_SECONDS_MIN = 0.1
"""The use of a shorter time tells nothing: a heartbeat that comes so soon says what the last one said."""

IN_USE_MAX = 2 * QUOTAS_TOLD_MAX
"""Quotas whose use is measured for the leader, and as many again by which clients are held back: all are looked at in
one turn of the event loop, which takes some milliseconds."""

EAGER_SECONDS = 1.5
"""For which clients count as held back after they were: three heartbeats. One that takes a megabyte, waits for a second
and pauses a little would lose its part in each pause, and wait for several seconds after the next megabyte."""

_OLD = 0.6
"""Weight of what was used before in the use that is told: requests come in lumps."""


class Buckets:
    """`nodes`: how many nodes share the quotas of the cluster, itself included; None: each node has them whole."""

    def __init__(self, nodes: Callable[[], int] | None = None) -> None:
        self._buckets: Lru[tuple[str, Entity], TokenBucket] = Lru(BUCKETS_MAX)
        self._nodes = nodes
        self._in_use: dict[bytes, _SharedBucket] = {}
        """Whose use is told, `IN_USE_MAX` or twice as many."""
        self._told: list[QuotaUse] = []
        self._told_at = 0.0

    def __len__(self) -> int:
        return len(self._buckets)

    def bucket(self, key: str, quota: InForce, now: float) -> TokenBucket:
        """The bucket that all share who are under a quota; it fills at the quota's rate from now on, or at this node's
        part of it."""
        shared = self._nodes is not None and key in SHARED_KEYS
        bucket = self._buckets.get((key, quota.of))
        if bucket is None:
            if shared:
                bucket = _SharedBucket(quota_id(key, quota.of), quota.per_second, self._even(quota), self._in_use, now)
            else:
                bucket = TokenBucket(quota.per_second, _burst(key, quota.per_second), now)
            self._buckets.put((key, quota.of), bucket)
        elif isinstance(bucket, _SharedBucket):
            if bucket.whole != quota.per_second:
                bucket.whole = quota.per_second
                bucket.part(self._even(quota), now)
        elif bucket.rate != quota.per_second:
            bucket.resize(quota.per_second, _burst(key, quota.per_second), now)
        return bucket

    def used(self, now: float) -> list[QuotaUse]:
        """The use of shared quotas, by what was taken since the last call."""
        seconds = now - self._told_at
        if seconds < TOLD_SECONDS_MIN:
            return self._told
        self._told_at = now
        nodes = max(1, self._nodes()) if self._nodes is not None else 1
        uses = []
        for bucket in list(self._in_use.values()):
            use = bucket.use(now, seconds)
            if use.used < 1 and not use.held_back and now - bucket.used_at > PART_SECONDS:
                del self._in_use[bucket.quota]
            else:
                uses.append(use)
            if now - bucket.parted_at > PART_SECONDS:
                bucket.part(bucket.whole / nodes, bucket.parted_at, now)
        self._told = nlargest(QUOTAS_TOLD_MAX, uses, key=lambda use: use.used)
        return self._told

    def parted(self, parts: Iterable[QuotaPart], now: float) -> None:
        """This node's parts from now on, as long as it hears of them."""
        for quota, per_second in parts:
            if (bucket := self._in_use.get(quota)) is not None and per_second > 0:
                bucket.part(min(per_second, bucket.whole), now)

    def _even(self, quota: InForce) -> float:
        assert self._nodes is not None, "quotas are shared"
        return quota.per_second / max(1, self._nodes())


def _burst(key: str, rate: float) -> float:
    if key in _LONGER_BURSTS:  # of what comes in ones
        return max(rate * _LONGER_BURSTS[key], 1.0)
    return rate * BURST_SECONDS


class _SharedBucket(TokenBucket):
    """This node's part of a quota, and what was taken of it."""

    __slots__ = ("_eager_until", "_held_back", "_in_use", "_taken", "_used", "parted_at", "quota", "used_at", "whole")

    def __init__(self, quota: bytes, whole: float, rate: float, in_use: dict[bytes, _SharedBucket], now: float) -> None:
        super().__init__(rate, rate * BURST_SECONDS, now)
        self.quota = quota
        self.whole = whole
        self.parted_at = now
        self.used_at = now
        self._in_use = in_use
        self._taken = 0.0
        self._used = 0.0
        self._held_back = False
        """Since the last look."""
        self._eager_until = -math.inf

    def take(self, amount: float, now: float) -> float:
        debt_seconds = super().take(amount, now)
        if amount:
            self._taken += amount
            self.used_at = now
            if len(self._in_use) < (2 * IN_USE_MAX if debt_seconds else IN_USE_MAX):
                self._in_use[self.quota] = self
        self._held_back = self._held_back or debt_seconds > 0
        return debt_seconds

    def part(self, rate: float, at: float, now: float | None = None) -> None:
        """Fill at another rate, which was given at that time."""
        self.parted_at = at
        if rate != self.rate:
            self.resize(rate, rate * BURST_SECONDS, at if now is None else now)

    def use(self, now: float, seconds: float) -> QuotaUse:
        """The use in the last seconds, and a little of before."""
        self._used = _OLD * self._used + (1 - _OLD) * self._taken / seconds
        if self._held_back or self.room(now) < 0:
            self._eager_until = now + EAGER_SECONDS
        use = QuotaUse(self.quota, self.whole, self._used, now <= self._eager_until)
        self._taken, self._held_back = 0.0, False
        return use
