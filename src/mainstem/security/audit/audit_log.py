"""Records of what clients did, waiting to be written. Clients decide how often something happens, so all of it is
bounded: events that repeat themselves within a minute are one record with a count, and those that come too fast are
counted alone.

Each kind of event has a rate and a room of its own, and events that were allowed have others than those that were
refused: strangers can fill the room of failures alone, and changes are recorded beside any flood of them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from mainstem.bounded_log import BoundedLog
from mainstem.model import Sample
from mainstem.ports import Clock, Session
from mainstem.security.audit.config import EVENTS, AuditConfig
from mainstem.security.quotas.token_bucket import TokenBucket

AUDIT_TOPIC = "__audit"
FORMAT_VERSION = 1

ALLOWED, REFUSED = "allowed", "denied"
"""Outcomes; others are the names of Kafka's errors."""

DROPPED = "dropped"
"""The event of records that tell how many others are missing."""

WAITING_MAX = 1_250
"""Records of one lane that wait to be written: 20 MB at the most in all eight."""

REPEATED_SECONDS = 60.0
REPEATED_MAX = 10_000
"""Different events of which is remembered that they happened lately."""

TEXT_LENGTH_MAX = 255
BURST_SECONDS = 10.0

log = logging.getLogger(__name__)


class AuditLane(NamedTuple):
    """The events that share a rate and a room."""

    event: str
    outcome: str
    """`ALLOWED`, or `REFUSED` for all other outcomes."""


class AuditEvent(NamedTuple):
    """An action of somebody. Nothing in it is secret."""

    event: str
    """One of `config.EVENTS`."""
    principal: str
    host: str
    operation: str
    """An operation of access rules, an API, or a mechanism of SASL."""
    resource: str
    """KIND:NAME."""
    outcome: str
    client_id: str = ""
    listener: str = ""
    detail: str = ""


class AuditRecord(NamedTuple):
    """An event as it is written."""

    lane: AuditLane
    content: bytes
    """A JSON object."""
    missing: int = 0
    """Events without a record that this one tells of."""


class _Repeated:
    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        """Times after the first."""


class AuditLog:
    """`add` is called by whoever sees an event, `take` by whoever writes them."""

    def __init__(self, config: AuditConfig, clock: Clock) -> None:
        self._wanted = frozenset(config.events)
        self._clock = clock
        rate, now = float(config.records_per_second), clock.monotonic()
        lanes = [AuditLane(event, outcome) for event in EVENTS for outcome in (ALLOWED, REFUSED)]
        self._buckets = {lane: TokenBucket(rate, rate * BURST_SECONDS, now) for lane in lanes}
        self._waiting: deque[AuditRecord] = deque()
        self._waiting_in: Counter[AuditLane] = Counter()
        self._lately: dict[AuditEvent, _Repeated] = {}
        """Oldest first."""
        self._missing: Counter[AuditLane] = Counter()
        """Events without a record, of which no record tells yet."""
        self._troubles = BoundedLog(log, clock)
        self.recorded = 0
        self.dropped = 0

    def wants(self, event: str) -> bool:
        return event in self._wanted

    def add(self, event: AuditEvent) -> None:
        """Record an event, unless it is of a kind that is not wanted, repeats one, or comes too fast."""
        if event.event not in self._wanted:
            return
        event = AuditEvent(*(text[:TEXT_LENGTH_MAX] for text in event))
        same = event._replace(client_id="")  # a client chooses it as it likes
        now = self._clock.monotonic()
        repeated = self._lately.get(same)
        if repeated is not None and now - repeated.since < REPEATED_SECONDS:
            repeated.count += 1
            return
        if repeated is not None:
            self._tell_repeated(same, self._lately.pop(same))
        if len(self._lately) >= REPEATED_MAX:
            oldest = next(iter(self._lately))
            self._tell_repeated(oldest, self._lately.pop(oldest))
        self._lately[same] = _Repeated(now)
        self._record(event, {})

    def take(self) -> list[AuditRecord]:
        """The records that were made since the last call."""
        now = self._clock.monotonic()
        for event, repeated in list(self._lately.items()):
            if now - repeated.since < REPEATED_SECONDS:
                break
            self._tell_repeated(event, self._lately.pop(event))
        records = list(self._waiting)
        self._waiting.clear()
        self._waiting_in.clear()
        return records

    def take_missing(self) -> list[AuditRecord]:
        """Records that tell how many events since the last call have none: one for each lane that lacks some."""
        missing = [
            self._made(lane, {"event": DROPPED, "of": lane.event, "outcome": lane.outcome, "count": count}, count)
            for lane, count in self._missing.items()
        ]
        self._missing.clear()
        return missing

    def drop(self, record: AuditRecord) -> None:
        """A record that was taken could not be written."""
        if record.missing:  # its events were counted when they were dropped; another record will tell of them
            self._missing[record.lane] += record.missing
        else:
            self._drop(record.lane)

    def failed(self, operation: str, error: Exception) -> None:
        """An event of that operation could not be put into words. Its request is answered as ever."""
        self.dropped += 1
        self._troubles.report(logging.ERROR, f"{operation} has no audit record: {type(error).__name__}: {error}")

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_audit_records_total", "counter", "Audit records made.", self.recorded)
        yield Sample("mainstem_audit_dropped_total", "counter", "Events without an audit record.", self.dropped)

    def _tell_repeated(self, event: AuditEvent, repeated: _Repeated) -> None:
        if repeated.count:
            self._record(event, {"repeated": repeated.count})

    def _record(self, event: AuditEvent, more: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        lane = AuditLane(event.event, ALLOWED if event.outcome == ALLOWED else REFUSED)
        bucket = self._buckets[lane]
        if bucket.room(now) < 1 or self._waiting_in[lane] >= WAITING_MAX:
            self._drop(lane)
            return
        bucket.take(1, now)
        self._waiting_in[lane] += 1
        told = {name: text for name, text in event._asdict().items() if text}
        self._waiting.append(self._made(lane, {**told, **more}))

    def _made(self, lane: AuditLane, fields: dict[str, Any], missing: int = 0) -> AuditRecord:
        self.recorded += 1
        record = {"version": FORMAT_VERSION, "time_ms": self._clock.now_ms(), **fields}
        return AuditRecord(lane, msgspec.json.encode(record), missing)

    def _drop(self, lane: AuditLane) -> None:
        self.dropped += 1
        self._missing[lane] += 1


def of_session(
    event: str,
    session: Session,
    client_id: str | None,
    operation: str,
    resource: str,
    outcome: str,
    detail: str = "",
) -> AuditEvent:
    """An event that a session brought about."""
    return AuditEvent(
        event, session.principal, session.host, operation, resource, outcome, client_id or "", session.listener, detail
    )
