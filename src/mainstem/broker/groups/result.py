"""What goes into the group machine with an event, and the one value that comes out of it.

The order of a `Result`'s effects: the records are appended to the log as they stand (the machine has replayed
them already); once they are committed, and everything appended before them, the answers are delivered; the
machine is called again at `wake_at_ms` at the latest. If the records cannot be committed, the machine has run
ahead of its log: it is thrown away, with its answers, and built anew from the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from mainstem.protocol.records.record import Headers

Ticket = int
"""Names a request that waits for its answer; the driver gives it out, the machine hands it back."""


class Moment(NamedTuple):
    """Now, on both clocks: wall time is what records carry, monotonic time is what timers run on."""

    wall_ms: int
    monotonic_ms: int


class Caller(NamedTuple):
    """Who sends a request, as far as groups care."""

    version: int
    client_id: str
    client_host: str


class OffsetRecord(NamedTuple):
    """A committed offset; no value: it is forgotten."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class GroupRecord(NamedTuple):
    """A group's generation with its members and assignments; no value: the group is gone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


class UnknownRecord(NamedTuple):
    """A record that this version cannot read, of a later one: kept as it came, the newest per key, and written again in
    snapshots. No value: what there was under this key is gone."""

    key: bytes
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


LogRecord = OffsetRecord | GroupRecord | UnknownRecord


class Answer(NamedTuple):
    """A response message for the request that holds the ticket."""

    ticket: Ticket
    response: Any


@dataclass(slots=True)
class Result:
    """The effects of one event, in the order of the module's docstring."""

    records: list[LogRecord] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    wake_at_ms: int | None = None
    """Monotonic; None: no timer runs."""
