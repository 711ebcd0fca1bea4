"""One event on its way through the machine: its sender, the services its handlers use, and the records and answers they
build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.long_work import LongWork, Work
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.recent_generations import RecentGenerations
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind, Timers
from mainstem.broker.machines.result import Answer, Moment, Result, Ticket, UnknownRecord
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.consumer_group_records import ModernKey, ModernValue
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    PendingOffsetValue,
)
from mainstem.protocol.messages.share_group_records import ShareKey, ShareValue
from mainstem.protocol.messages.streams_group_records import StreamsKey, StreamsValue


class Caller(NamedTuple):
    """The sender of a request, as far as consumer groups care."""

    version: int
    client_id: str
    client_host: str

    @classmethod
    def of(cls, call: RequestContext) -> Caller:
        return cls(call.version, call.client_id or "", f"/{call.session.host}")


class OffsetRecord(NamedTuple):
    """A committed offset; without a value: the offset is forgotten."""

    key: OffsetCommitKey
    value: OffsetCommitValue | None


class WrittenOffset(NamedTuple):
    """A committed offset with its value as the log has it, which nobody has read yet; see `offset_scan`."""

    group: str
    topic: str
    partition: int
    value: bytes


class ConsumerGroupRecord(NamedTuple):
    """A consumer group's generation with its members and assignments; without a value: the group is gone."""

    key: GroupMetadataKey
    value: GroupMetadataValue | None


class MemberRead(NamedTuple):
    """A member of a large consumer group, as it is read back: the record of the group follows when all of them have
    been replayed, each in its turn."""

    key: GroupMetadataKey
    value: GroupMetadataValue
    number: int
    """Which of the record's members it is."""


class ModernRecord(NamedTuple):
    """A part of a consumer group whose partitions the coordinator assigns; without a value: the part is gone."""

    key: ModernKey
    value: ModernValue | None


class PendingRecord(NamedTuple):
    """An offset that a transaction commits, and that waits for its end; without a value: it does not wait any more."""

    key: PendingOffsetKey
    value: PendingOffsetValue | None


class ShareRecord(NamedTuple):
    """A part of a share group; without a value: the part is gone."""

    key: ShareKey
    value: ShareValue | None


class StreamsRecord(NamedTuple):
    """A part of a streams group; without a value: the part is gone."""

    key: StreamsKey
    value: StreamsValue | None


LogRecord = (
    OffsetRecord | ConsumerGroupRecord | ModernRecord | PendingRecord | ShareRecord | StreamsRecord | UnknownRecord
)
"""Records that machines write."""

ReadRecord = LogRecord | WrittenOffset
"""Records as they are read back, and written afresh."""


@dataclass(slots=True)
class Counts:
    """Counts of events, for the metrics."""

    rebalances: int = 0
    offset_commits: int = 0
    offset_expirations: int = 0
    sessions_expired: int = 0
    log_failures: int = 0
    records_lost: int = 0
    generations: RecentGenerations | None = None
    """Of the groups of all machines; None: nobody asks for rebalance loops."""


@dataclass(slots=True)
class Step:
    """Handlers change a consumer group through its methods, and everything else through these."""

    config: ConsumerGroupsConfig
    config_of: Callable[[str], ConsumerGroupsConfig]
    """The same for a group, with the configs of its own."""
    timers: Timers
    counts: Counts
    replay: Callable[[LogRecord], None]
    replay_together: Callable[[Sequence[LogRecord], Callable[[], None]], None]
    long_work: LongWork[Step]
    new_id: Callable[[], str]
    """Gives a string that never occurs twice."""
    now: Moment
    holdings: Holdings
    result: Result = field(default_factory=Result)

    def write(self, record: LogRecord) -> None:
        """Append a record to the log, and replay it at once."""
        self.result.records.append(record)
        self.replay(record)

    def write_together(self, records: Sequence[LogRecord], apply: Callable[[], None]) -> None:
        """Append records to the log that belong together; `apply` changes the state as replaying one after the other
        would, and takes less time."""
        self.result.records += records
        self.replay_together(records, apply)

    def begin(self, work: Work[Step]) -> None:
        """Do the first step of work on all members of a group now, and the others in later events."""
        self.long_work.begin(self, work)

    def write_group(self, group: ConsumerGroup, value: GroupMetadataValue) -> None:
        self.write(ConsumerGroupRecord(GroupMetadataKey(group=group.group_id), value))

    def answer(self, ticket: Ticket, response: Any) -> None:
        self.result.answers.append(Answer(ticket, response))

    def rebalanced(self, group_id: str, members: int) -> None:
        """A group has a new generation, or new targets for all of its members."""
        self.counts.rebalances += 1
        if self.counts.generations is not None:
            self.counts.generations.note(group_id, members, self.now.monotonic_ms)

    def start_timer(self, kind: int, group: ConsumerGroup, timeout_ms: int, member_id: str = "") -> None:
        self.timers.set(TimerKey(kind, group.group_id, member_id), self.now.monotonic_ms + timeout_ms)

    def stop_timer(self, kind: int, group: ConsumerGroup, member_id: str = "") -> None:
        self.timers.cancel(TimerKey(kind, group.group_id, member_id))

    def restart_session(self, group: ConsumerGroup, member_id: str) -> None:
        """A request of the member came: its session timeout starts anew."""
        timeout_ms = group.members[member_id].session_timeout_ms
        self.start_timer(TimerKind.SESSION, group, timeout_ms, member_id)
