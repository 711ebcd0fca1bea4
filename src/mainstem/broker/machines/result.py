"""The values that go into a machine with an event, and the one value that comes out of it.

The order of a `Result`'s effects: the records are appended to the log as they stand (the machine has replayed
them already); once they are committed, and everything appended before them, the answers are delivered; the
machine is called again at `wake_at_ms` at the latest. If the records cannot be committed, the machine has run
ahead of its log: it is thrown away, with its answers, and built anew from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.protocol.records.record import Headers

Ticket = int
"""Names a waiting request; the driver gives it out, the machine hands it back with the answer."""


class Moment(NamedTuple):
    """Now, on both clocks: wall time is what records carry, monotonic time is what timers run on."""

    wall_ms: int
    monotonic_ms: int


class UnknownRecord(NamedTuple):
    """A record of a later version, which this one cannot read: kept as it came, the newest per key, and
    written again in snapshots. Without a value: the entry under this key is gone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class Answer(NamedTuple):
    """A response message for the request that holds the ticket."""

    ticket: Ticket
    response: Any


@dataclass(slots=True)
class Result:
    """The effects of one event, in the order of the module's docstring."""

    records: list[Any] = field(default_factory=list)
    """Of the machine's own kinds: what its codec encodes and its `replay` takes."""
    answers: list[Answer] = field(default_factory=list)
    wake_at_ms: int | None = None
    """Monotonic; None: no timer runs."""
