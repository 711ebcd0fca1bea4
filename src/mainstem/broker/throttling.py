"""Holds clients to their quotas: charges what they use, tells them for how long they are throttled, and takes none of
their requests meanwhile.

As in Kafka since KIP-219, a client that exceeds a quota gets its answer at once, with the time in `throttle_time_ms`;
its connection is muted for that time (`Session.muted_until`), whether the client heeds it or not. A quota is a token
bucket that may be in debt: a request is never refused for its size, and paid for by the wait behind it.

A client of a tenant's user is charged twice: to the quota that it is under by itself, and to the tenant's; the longer
wait counts. Its produced and fetched bytes are counted for the tenant, with a quota or without.

A tenant that has filled disk 1 waits likewise, while there is little room left (`DiskShares`), whether that is this
node's or that of a leader which says so.

A session keeps the buckets that its client is under, for as long as no quota and no tenant changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mainstem.broker.flood_watch import FloodWatch
from mainstem.lru import Lru
from mainstem.model import Sample
from mainstem.ports import Clock, Session
from mainstem.security.quotas.buckets import Buckets
from mainstem.security.quotas.disk_shares import DiskShares
from mainstem.security.quotas.quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    OF_CLIENTS,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.quotas.sharing import QuotaPart, QuotaUse
from mainstem.security.quotas.token_bucket import TokenBucket
from mainstem.security.tenants.tenant_table import TenantTable
from mainstem.security.tenants.traffic import TenantTraffic, Traffic

THROTTLE_SECONDS_MAX = 30.0
"""How long a client is muted at once; it may go on in debt then. Clients that are told of longer times give their
requests up meanwhile, and come back by other connections."""

_USER = "User:"

DISK_SHARE = "disk_share"
"""A tenant that has filled disk 1 is throttled by this: no quota that somebody set."""

_OF_CONSUMERS = frozenset({CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE})
"""Quotas that slow consumers down."""


HELD_BACK_SECONDS = 3.0
"""For which a client counts as held back once its time is over: one whose rate is too great is told to wait again with
its next response."""

HELD_BACK_MAX = 10_000
"""Clients that are remembered as held back, those told last: about 3 MB."""


class _Charged(NamedTuple):
    """The quotas that a session's client is charged by, kept with what they were found by."""

    quotas: object
    tenants: object
    """The versions of both tables."""
    principal: str
    client_id: str
    buckets: Mapping[str, Sequence[TokenBucket]]
    """By key, of the quotas that the client is under: its own, and its tenant's."""
    traffic: Traffic | None
    """Its tenant's; None: it is nobody's."""


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
    """`quotas`, `tenants`: the tables of this moment. `nodes`: how many nodes share quotas of bytes; None: each has
    them whole. Implements `QuotaUser`."""

    def __init__(
        self,
        quotas: Callable[[], QuotaTable],
        clock: Clock,
        tenants: Callable[[], TenantTable] = TenantTable,
        nodes: Callable[[], int] | None = None,
    ) -> None:
        self._quotas = quotas
        self._tenants = tenants
        self.traffic = TenantTraffic()
        self._producer: Traffic | None = None
        """Whose client produced last."""
        self.floods = FloodWatch(clock.monotonic)
        """Whether clients take turns, of different tenants or none."""
        self._monotonic = clock.monotonic
        self._buckets = Buckets(nodes)
        self._throttled: Counter[str] = Counter()
        self.disk_shares: DiskShares | None = None
        """Bounds tenants that have filled disk 1; None: this node stores nothing."""
        self._leaders_wait: dict[str, float] = {}
        """Until when other nodes want nothing of a tenant, or of those who are nobody's (""): some 10,000 at most."""
        self._held_back: Lru[tuple[str, str], float] = Lru(HELD_BACK_MAX)
        """Until when a consumer is muted, by client id and address."""

    @property
    def active(self) -> bool:
        """Whether there are any quotas, or tenants whose traffic is counted."""
        return bool(self._quotas()) or bool(self._tenants())

    @property
    def has_tenants(self) -> bool:
        """Whether there are any tenants."""
        return bool(self._tenants())

    def produced(self, session: Session, client_id: str | None, size_bytes: int) -> int:
        """Charge for Produce requests; for how many ms the client is throttled. 0: it is not."""
        charged = self._of(session, client_id)
        if charged.traffic is not None:
            charged.traffic.produced_bytes += size_bytes
        if charged.traffic is not self._producer:
            self._producer = charged.traffic
            self.floods.share()
        throttle_ms = self._charge(session, charged, PRODUCER_BYTE_RATE, size_bytes)
        if not self.has_tenants:
            return throttle_ms
        seconds = self._seconds_of_leaders(session.tenant)
        if self.disk_shares is not None:
            seconds = max(seconds, self.disk_shares.brought(session.tenant, size_bytes))
        return max(throttle_ms, self.mute(session, DISK_SHARE, seconds))

    def leader_waits(self, principal: str, seconds: float) -> None:
        """The leader of a write group, another node, says that the tenant of a client has filled its disk 1, and is to
        bring nothing for so long."""
        tenant = self._tenants().of_user(principal.removeprefix(_USER))
        name = "" if tenant is None else tenant.name
        until = self._monotonic() + min(seconds, THROTTLE_SECONDS_MAX)
        self._leaders_wait[name] = max(until, self._leaders_wait.get(name, 0.0))

    def _seconds_of_leaders(self, tenant: str) -> float:
        until = self._leaders_wait.get(tenant)
        if until is None:
            return 0.0
        seconds = until - self._monotonic()
        if seconds <= 0:
            del self._leaders_wait[tenant]
        return max(seconds, 0.0)

    def fetched(self, session: Session, client_id: str | None, size_bytes: int) -> int:
        """Charge for batches in a Fetch response, as `produced`."""
        charged = self._of(session, client_id)
        if charged.traffic is not None:
            charged.traffic.fetched_bytes += size_bytes
        return self._charge(session, charged, CONSUMER_BYTE_RATE, size_bytes)

    def took(self, session: Session, client_id: str | None, seconds: float) -> int:
        """Charge for time that the event loop has spent on a request, as `produced`."""
        return self._charge(session, self._of(session, client_id), REQUEST_PERCENTAGE, 100 * seconds)

    def fetch_bytes_max(self, session: Session, client_id: str | None) -> int | None:
        """The most bytes that a Fetch response should have: a full bucket, or less where others of the quota have some
        of it, so that waits are short. None: any."""
        buckets = self._of(session, client_id).buckets.get(CONSUMER_BYTE_RATE)
        if buckets is None:
            return None
        now = self._monotonic()
        return max(1, int(min(bucket.piece(now) for bucket in buckets)))

    def mutations(self, session: Session, client_id: str | None, *, strict: bool) -> Mutations:
        """`strict`: the client knows the error of a change that has to wait (KIP-599); changes of others are made, and
        their client is throttled."""
        buckets = self._of(session, client_id).buckets.get(CONTROLLER_MUTATION_RATE)
        if buckets is None:
            return UNLIMITED
        return _LimitedMutations(self, buckets, session, strict=strict)

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

    def quotas_used(self) -> Sequence[QuotaUse]:
        """Implements `QuotaUser`."""
        return self._buckets.used(self._monotonic())

    def quotas_parted(self, parts: Iterable[QuotaPart]) -> None:
        """Implements `QuotaUser`."""
        self._buckets.parted(parts, self._monotonic())

    def held_back(self, client_id: str, host: str) -> bool:
        """Whether a quota holds a consumer back now."""
        until = self._held_back.peek((client_id, host))
        return until is not None and self._monotonic() < until + HELD_BACK_SECONDS

    def samples(self) -> Iterable[Sample]:
        for key in (*OF_CLIENTS, CONNECTION_CREATION_RATE, DISK_SHARE):
            if self._throttled[key]:
                yield Sample(
                    "mainstem_quota_throttled_total",
                    "counter",
                    "Requests and connections held back for a quota.",
                    self._throttled[key],
                    (("quota", key),),
                )
        yield Sample(
            "mainstem_producers_take_turns",
            "gauge",
            "1 while connections take turns at bringing batches.",
            int(self.floods.takes_turns()),
        )
        yield from self.traffic.samples()

    def _charge(self, session: Session, charged: _Charged, key: str, amount: float) -> int:
        buckets = charged.buckets.get(key)
        if buckets is None:
            return 0
        now = self._monotonic()
        throttle_ms = self.mute(session, key, max(bucket.take(amount, now) for bucket in buckets))
        if throttle_ms and key in _OF_CONSUMERS:
            self._held_back.put((charged.client_id, session.host), session.muted_until)
        return throttle_ms

    def _of(self, session: Session, client_id: str | None) -> _Charged:
        quotas, tenants, name = self._quotas(), self._tenants(), client_id or ""
        kept = session.charged
        if (
            isinstance(kept, _Charged)
            and kept.quotas is quotas.version
            and kept.tenants is tenants.version
            and kept.client_id == name
            and kept.principal == session.principal
        ):
            return kept
        user = session.principal.removeprefix(_USER)
        tenant = tenants.of_user(user)
        buckets: dict[str, list[TokenBucket]] = {}
        now = self._monotonic()
        for key in OF_CLIENTS:
            own = quotas.of_client(key, user, name)
            together = None if tenant is None else quotas.of_tenant(key, tenant.name)
            found = [self._buckets.bucket(key, quota, now) for quota in (own, together) if quota is not None]
            if found:
                buckets[key] = found
        traffic = None if tenant is None else self.traffic.of(tenant.name, tenants)
        charged = _Charged(quotas.version, tenants.version, session.principal, name, buckets, traffic)
        known = isinstance(kept, _Charged) and kept.principal == session.principal
        session.charged = charged
        session.tenant = "" if tenant is None else tenant.name
        if tenant is not None and not known:
            self._connected(session, tenant.name)
        return charged

    def _connected(self, session: Session, tenant: str) -> None:
        """A connection has turned out to be a tenant's: it waits for as long as the tenant's new connections have
        to."""
        quota = self._quotas().of_tenant(CONNECTION_CREATION_RATE, tenant)
        if quota is not None:
            now = self._monotonic()
            bucket = self._buckets.bucket(CONNECTION_CREATION_RATE, quota, now)
            self.mute(session, CONNECTION_CREATION_RATE, bucket.take(1, now))


class _LimitedMutations:
    def __init__(
        self, throttling: Throttling, buckets: Sequence[TokenBucket], session: Session, *, strict: bool
    ) -> None:
        self._throttling = throttling
        self._buckets = buckets
        self._session = session
        self._strict = strict

    def take(self, partitions: int) -> bool:
        now = self._throttling.now()
        if self._strict and self._debt_seconds(now) > 0:
            return False
        for bucket in self._buckets:
            bucket.take(partitions, now)
        return True

    def throttle_ms(self) -> int:
        seconds = self._debt_seconds(self._throttling.now())
        return self._throttling.mute(self._session, CONTROLLER_MUTATION_RATE, seconds)

    def _debt_seconds(self, now: float) -> float:
        return max(bucket.debt_seconds(now) for bucket in self._buckets)
