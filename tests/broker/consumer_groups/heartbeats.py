"""A machine on a table that assigns partitions itself: heartbeats and time in, answers out, and a log to start over
from.

`Consumer` is a client as the protocol wants it: it keeps what it was given until it is told to give it up, and names
what it has whenever that has changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.offsets_topic import decode, encode
from mainstem.broker.consumer_groups.step import Caller, ReadRecord
from mainstem.broker.machines.result import Moment, Result
from mainstem.model import FeatureLevel, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from mainstem.protocol.records import Record

STARTED_MS = 1_700_000_000_000
GROUP = "readers"
REBALANCE_MS = 60_000

Owned = frozenset[tuple[UUID, int]]


def id_of(number: int) -> UUID:
    return UUID(int=number)


class Table:
    """One machine, its log, the topics and the clock."""

    def __init__(self, config: ConsumerGroupsConfig | None = None, **topics: int) -> None:
        self.config = config or ConsumerGroupsConfig(rebalance_delay_ms=0)
        self.own: dict[str, ConsumerGroupsConfig] = {}
        """The settings of groups that have some of their own."""
        self.topics: dict[str, Topic] = {}
        for name, partitions in topics.items():
            self.make_topic(name, partitions)
        self.log: list[ReadRecord] = []
        self.now_ms = 0
        self.wake_at_ms: int | None = None
        self.lives = 1
        """How many machines have had this log."""
        self._answers: dict[int, Any] = {}
        self.log_is_slow = False
        """Answers do not leave yet, although the table shows them."""
        self._tickets = itertools.count(1)
        self._uniques = itertools.count(1)
        self.machine = self._new_machine()

    def make_topic(self, name: str, partitions: int) -> Topic:
        number = len(self.topics) + 1 if name not in self.topics else self.topics[name].number
        topic = self.topics[name] = Topic(name=name, number=number, topic_id=id_of(number), partitions=partitions)
        return topic

    @property
    def now(self) -> Moment:
        return Moment(STARTED_MS + self.now_ms, self.now_ms)

    @property
    def group(self) -> ModernGroup:
        return self.machine.state.modern[GROUP]

    def wait(self, ms: int) -> None:
        """Let time pass, timer by timer, as the driver does."""
        until_ms = self.now_ms + ms
        while self.wake_at_ms is not None and self.wake_at_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.wake_at_ms)
            self.take(self.machine.advance(self.now))
        self.now_ms = until_ms

    def restart(self) -> None:
        """A new machine from the log, as it is read back from its topic."""
        self.lives += 1
        self.machine = self.replayed()
        self.take(self.machine.recovered(self.now))

    def replayed(self) -> ConsumerGroupMachine:
        machine = self._new_machine()
        for record in self.log:
            written = encode(record, self.now.wall_ms, FeatureLevel.newest())
            read = decode(Record(0, written.timestamp, written.key, written.value, written.headers))
            assert read == record
            machine.replay(read)
        return machine

    def compact(self) -> None:
        """The log as a snapshot of the machine leaves it."""
        self.log = [record for section in self.machine.sections() for record in self.machine.snapshot(section)]

    def _new_machine(self) -> ConsumerGroupMachine:
        by_id: Callable[[UUID], Topic | None] = lambda topic_id: next(  # noqa: E731
            (topic for topic in self.topics.values() if topic.topic_id == topic_id), None
        )
        return ConsumerGroupMachine(
            self.config,
            lambda: f"made-{next(self._uniques):04}",
            topic_id_of=lambda name: self.topics[name].topic_id if name in self.topics else None,
            config_of=lambda group_id: self.own.get(group_id, self.config),
            topics=CurrentTopics(self.topics.get, by_id, lambda: self.topics.values()),
        )

    def ask(self, event: Callable[[int], Result]) -> Any:
        return self._answers.pop(self.send(event))

    def send(self, event: Callable[[int], Result]) -> int:
        """Ask without an answer at once. Returns the ticket."""
        ticket = next(self._tickets)
        self.take(event(ticket))
        return ticket

    def answer(self, ticket: int) -> Any:
        """The answer, once; None: there is none yet."""
        return self._answers.pop(ticket, None)

    def take(self, result: Result) -> None:
        self.log += result.records
        self.wake_at_ms = result.wake_at_ms
        for answer in result.answers:
            assert answer.ticket not in self._answers
            self._answers[answer.ticket] = answer.response
        if not self.log_is_slow:
            self.machine.answered([answer.ticket for answer in result.answers], self.now)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        version: int = 1,
        may_describe: Callable[[str], bool] = lambda name: True,
        group: str = GROUP,
        **said: Any,
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **said)
        sender = HeartbeatCaller(Caller(version, f"client of {member_id}", "/10.0.0.1"), may_describe)
        response = self.ask(
            lambda ticket: self.machine.membership.consumer_heartbeat(ticket, request, sender, self.now)
        )
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        return response

    def join(self, member_id: str, *topics: str, **said: Any) -> ConsumerGroupHeartbeatResponse:
        said = {"rebalance_timeout_ms": REBALANCE_MS, "topic_partitions": (), **said}
        return self.beat(member_id, 0, subscribed_topic_names=topics, **said)

    def error(self, response: ConsumerGroupHeartbeatResponse) -> ErrorCode:
        return ErrorCode(response.error_code)


def given(response: ConsumerGroupHeartbeatResponse) -> Owned:
    assert response.assignment is not None
    return frozenset((row.topic_id, index) for row in response.assignment.topic_partitions for index in row.partitions)


def named(owned: Owned) -> tuple[HeartbeatTopicPartitions, ...]:
    rows: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(owned):
        rows.setdefault(topic_id, []).append(index)
    return tuple(HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(rows[topic_id])) for topic_id in rows)


class Consumer:
    """A client: one member, through all its lives."""

    def __init__(self, table: Table, member_id: str, topics: tuple[str, ...], **said: Any) -> None:
        self.table = table
        self.member_id = member_id
        self.topics = topics
        self.said: Mapping[str, Any] = said
        self.epoch = 0
        self.owned: Owned = frozenset()
        self._told: Owned | None = None
        """The partitions that it last named as its own; None: it owes the coordinator everything."""

    def beat(self, *, loses_answer: bool = False) -> ErrorCode:
        everything = self.epoch == 0 or self._told is None
        said: dict[str, Any] = {}
        if everything:
            said = {
                **self.said,
                "rebalance_timeout_ms": REBALANCE_MS,
                "subscribed_topic_names": self.topics,
            }
        if everything or self._told != self.owned:
            said["topic_partitions"] = named(self.owned)
        response = self.table.beat(self.member_id, self.epoch, **said)
        if loses_answer:
            self._told = None
            return ErrorCode.NONE
        code = ErrorCode(response.error_code)
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self._told = 0, frozenset(), None
        elif code is ErrorCode.NONE:
            self._told = self.owned if "topic_partitions" in said else self._told
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = given(response)
        return code

    def resubscribe(self, *topics: str) -> None:
        self.topics, self._told = topics, None

    def leave(self) -> ErrorCode:
        response = self.table.beat(self.member_id, -1)
        self.epoch, self.owned, self._told = 0, frozenset(), None
        return ErrorCode(response.error_code)
