"""Records of what clients did, waiting to be written. Clients decide how often something happens, so all of it is
bounded: what repeats itself within a minute is one record with a count, and what comes too fast is counted alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from mainstem.model import Sample
from mainstem.ports import Clock, Session
from mainstem.security.audit.config import AuditConfig
from mainstem.security.quotas.token_bucket import TokenBucket

AUDIT_TOPIC = "__audit"
FORMAT_VERSION = 1

ALLOWED, REFUSED = "allowed", "denied"
"""Outcomes; others are the names of Kafka's errors."""

WAITING_MAX = 10_000
"""Records that wait to be written: 20 MB at the most."""

REPEATED_SECONDS = 60.0
REPEATED_MAX = 10_000
"""Different events of which is remembered that they happened lately."""

TEXT_LENGTH_MAX = 255
BURST_SECONDS = 10.0


class AuditEvent(NamedTuple):
    """What somebody did. Nothing in it is secret."""

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
        rate = float(config.records_per_second)
        self._bucket = TokenBucket(rate, rate * BURST_SECONDS, clock.monotonic())
        self._waiting: deque[bytes] = deque()
        self._lately: dict[AuditEvent, _Repeated] = {}
        """Oldest first."""
        self._dropped_untold = 0
        self.recorded = 0
        self.dropped = 0

    def wants(self, event: str) -> bool:
        return event in self._wanted

    def add(self, event: AuditEvent) -> None:
        """Record an event, unless it is of a kind that is not wanted, repeats one, or comes too fast."""
        if event.event not in self._wanted:
            return
        now = self._clock.monotonic()
        repeated = self._lately.get(event)
        if repeated is not None and now - repeated.since < REPEATED_SECONDS:
            repeated.count += 1
            return
        if repeated is not None:
            self._tell_repeated(event, self._lately.pop(event))
        if len(self._lately) >= REPEATED_MAX:
            oldest = next(iter(self._lately))
            self._tell_repeated(oldest, self._lately.pop(oldest))
        self._lately[event] = _Repeated(now)
        self._record(event, {})

    def take(self) -> list[bytes]:
        """The records that were made since the last call, a JSON object each."""
        now = self._clock.monotonic()
        for event, repeated in list(self._lately.items()):
            if now - repeated.since < REPEATED_SECONDS:
                break
            self._tell_repeated(event, self._lately.pop(event))
        if self._dropped_untold:
            self._put({"event": "dropped", "count": self._dropped_untold})
            self._dropped_untold = 0
        records = list(self._waiting)
        self._waiting.clear()
        return records

    def drop(self, count: int) -> None:
        """Records that were taken could not be written."""
        self.dropped += count
        self._dropped_untold += count

    def samples(self) -> Iterable[Sample]:
        yield Sample("mainstem_audit_records_total", "counter", "Audit records made.", self.recorded)
        yield Sample("mainstem_audit_dropped_total", "counter", "Events without an audit record.", self.dropped)

    def _tell_repeated(self, event: AuditEvent, repeated: _Repeated) -> None:
        if repeated.count:
            self._record(event, {"repeated": repeated.count})

    def _record(self, event: AuditEvent, more: dict[str, Any]) -> None:
        now = self._clock.monotonic()
        if self._bucket.room(now) < 1 or len(self._waiting) >= WAITING_MAX:
            self.drop(1)
            return
        self._bucket.take(1, now)
        fields = {name: text[:TEXT_LENGTH_MAX] for name, text in event._asdict().items() if text}
        self._put({**fields, **more})

    def _put(self, fields: dict[str, Any]) -> None:
        self.recorded += 1
        record = {"version": FORMAT_VERSION, "time_ms": self._clock.now_ms(), **fields}
        self._waiting.append(msgspec.json.encode(record))


def of_session(event: str, session: Session, client_id: str | None, operation: str, resource: str, outcome: str,
               detail: str = "") -> AuditEvent:  # fmt: skip
    """An event that a session brought about."""
    return AuditEvent(
        event, session.principal, session.host, operation, resource, outcome, client_id or "", session.listener, detail
    )
