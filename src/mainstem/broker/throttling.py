"""Holds clients to their quotas: charges what they use, tells them for how long they are throttled, and takes none of
their requests meanwhile.

As in Kafka since KIP-219, a client that exceeds a quota gets its answer at once, with the time in `throttle_time_ms`;
its connection is muted for that time (`Session.muted_until`), whether the client heeds it or not. A quota is a token
bucket that may be in debt: a request is never refused for its size, and paid for by the wait behind it.

A session keeps the buckets that its client is under, for as long as no quota changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from mainstem.model import Sample
from mainstem.ports import Clock, Session
from mainstem.security.quotas.buckets import Buckets
from mainstem.security.quotas.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.quotas.token_bucket import TokenBucket

THROTTLE_SECONDS_MAX = 30.0
"""How long a client is muted at once; it may go on in debt then. Clients that are told of longer times give their
requests up meanwhile, and come back by other connections."""

_USER = "User:"


class _Charged(NamedTuple):
    """What a session's client is charged, kept with what it was found by."""

    version: object
    principal: str
    client_id: str
    buckets: Mapping[str, TokenBucket]
    """By key, of the quotas that the client is under."""


class Mutations(Protocol):
    """The creations and deletions of partitions that one request makes."""

    def take(self, partitions: int) -> bool:
        """Whether they may be made now; they are charged then."""
        ...

    def throttle_ms(self) -> int:
        """For how long the client is throttled; its connection is muted from now on."""
        ...


class Unlimited:
    """The `Mutations` of a client without such a quota."""

    def take(self, partitions: int) -> bool:
        return True

    def throttle_ms(self) -> int:
        return 0


UNLIMITED = Unlimited()


class Throttling:
    """`quotas`: the table of this moment."""

    def __init__(self, quotas: Callable[[], QuotaTable], clock: Clock) -> None:
        self._quotas = quotas
        self._monotonic = clock.monotonic
        self._buckets = Buckets()
        self._throttled: Counter[str] = Counter()

    @property
    def active(self) -> bool:
        """Whether there are any quotas."""
        return bool(self._quotas())

    def produced(self, session: Session, client_id: str | None, size_bytes: int) -> int:
        """Charge for Produce requests; for how many ms the client is throttled. 0: it is not."""
        return self._charge(session, client_id, PRODUCER_BYTE_RATE, size_bytes)

    def fetched(self, session: Session, client_id: str | None, size_bytes: int) -> int:
        """Charge for batches in a Fetch response, as `produced`."""
        return self._charge(session, client_id, CONSUMER_BYTE_RATE, size_bytes)

    def took(self, session: Session, client_id: str | None, seconds: float) -> int:
        """Charge for time that the event loop has spent on a request, as `produced`."""
        return self._charge(session, client_id, REQUEST_PERCENTAGE, 100 * seconds)

    def fetch_bytes_max(self, session: Session, client_id: str | None) -> int | None:
        """The most bytes that a Fetch response should have: a full bucket, so that waits are short. None: any."""
        bucket = self._of(session, client_id).get(CONSUMER_BYTE_RATE)
        return None if bucket is None else max(1, int(bucket.burst))

    def mutations(self, session: Session, client_id: str | None, *, strict: bool) -> Mutations:
        """`strict`: the client knows the error of a change that has to wait (KIP-599); changes of others are made, and
        their client is throttled."""
        bucket = self._of(session, client_id).get(CONTROLLER_MUTATION_RATE)
        if bucket is None:
            return UNLIMITED
        return _LimitedMutations(self, bucket, session, strict=strict)

    def may_connect(self, ip: str) -> bool:
        """Whether an address may make one more connection now, which counts then."""
        quota = self._quotas().of_address(CONNECTION_CREATION_RATE, ip)
        if quota is None:
            return True
        now = self._monotonic()
        bucket = self._buckets.bucket(CONNECTION_CREATION_RATE, quota, now)
        if bucket.room(now) < 1:
            self._throttled[CONNECTION_CREATION_RATE] += 1
            return False
        bucket.take(1, now)
        return True

    def now(self) -> float:
        return self._monotonic()

    def mute(self, session: Session, key: str, seconds: float) -> int:
        """Take no requests of a session for a while; returns the time in ms."""
        seconds = min(seconds, THROTTLE_SECONDS_MAX)
        if seconds <= 0:
            return 0
        self._throttled[key] += 1
        session.muted_until = max(session.muted_until, self._monotonic() + seconds)
        return max(1, round(seconds * 1000))

    def samples(self) -> Iterable[Sample]:
        for key in (*OF_CLIENTS, CONNECTION_CREATION_RATE):
            if self._throttled[key]:
                yield Sample(
                    "mainstem_quota_throttled_total",
                    "counter",
                    "Requests and connections held back for a quota.",
                    self._throttled[key],
                    (("quota", key),),
                )

    def _charge(self, session: Session, client_id: str | None, key: str, amount: float) -> int:
        buckets = self._of(session, client_id)
        bucket = buckets.get(key)
        return 0 if bucket is None else self.mute(session, key, bucket.take(amount, self._monotonic()))

    def _of(self, session: Session, client_id: str | None) -> Mapping[str, TokenBucket]:
        table, name = self._quotas(), client_id or ""
        kept = session.charged
        if (
            isinstance(kept, _Charged)
            and kept.version is table.version
            and kept.client_id == name
            and kept.principal == session.principal
        ):
            return kept.buckets
        user = session.principal.removeprefix(_USER)
        now = self._monotonic()
        found = ((key, table.of_client(key, user, name)) for key in OF_CLIENTS)
        buckets = {key: self._buckets.bucket(key, quota, now) for key, quota in found if quota is not None}
        session.charged = _Charged(table.version, session.principal, name, buckets)
        return buckets


class _LimitedMutations:
    def __init__(self, throttling: Throttling, bucket: TokenBucket, session: Session, *, strict: bool) -> None:
        self._throttling = throttling
        self._bucket = bucket
        self._session = session
        self._strict = strict

    def take(self, partitions: int) -> bool:
        now = self._throttling.now()
        if self._strict and self._bucket.debt_seconds(now) > 0:
            return False
        self._bucket.take(partitions, now)
        return True

    def throttle_ms(self) -> int:
        seconds = self._bucket.debt_seconds(self._throttling.now())
        return self._throttling.mute(self._session, CONTROLLER_MUTATION_RATE, seconds)
