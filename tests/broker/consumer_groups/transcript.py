"""A machine on a table: requests and time in, answers out, and a log to start over from.

Clients are named by a short word; the member id they are given is remembered under it.
"""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.step import Caller, LogRecord
from mainstem.broker.machines.result import Moment, Result
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from mainstem.protocol.schema import ZERO_UUID

STARTED_MS = 1_700_000_000_000
GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
AT_ONCE = ConsumerGroupsConfig(rebalance_delay_ms=0)


def metadata_of(*topics: str) -> bytes:
    return write_subscription(ConsumerProtocolSubscription(topics=topics))


def protocols(*names: str, topics: tuple[str, ...] = ("flights",)) -> tuple[JoinGroupRequestProtocol, ...]:
    return tuple(JoinGroupRequestProtocol(name=name, metadata=metadata_of(*topics)) for name in names)


class Pending:
    """A request's answer, once there is one."""

    def __init__(self) -> None:
        self.response: Any = None

    @property
    def answered(self) -> bool:
        return self.response is not None

    def __getattr__(self, name: str) -> Any:
        assert self.response is not None, "not answered yet"
        return getattr(self.response, name)

    @property
    def error(self) -> ErrorCode:
        assert self.response is not None, "not answered yet"
        return ErrorCode(self.response.error_code)


class Transcript:
    """One machine, its log, and the clock."""

    def __init__(self, config: ConsumerGroupsConfig = AT_ONCE) -> None:
        self.config = config
        self.log: list[LogRecord] = []
        self.now_ms = 0
        self.topics: dict[str, UUID | None] = {}
        """The ids of topics, None of those that are gone; any others exist, and have no id."""
        self.ids: dict[str, str] = {}
        self.pending: dict[int, Pending] = {}
        self.wake_at_ms: int | None = None
        self._tickets = itertools.count(1)
        self._uniques = itertools.count(1)
        self.machine = self._new_machine()

    # --- time and restarts ---------------------------------------------------------------------------

    @property
    def now(self) -> Moment:
        return Moment(STARTED_MS + self.now_ms, self.now_ms)

    def wait(self, ms: int) -> None:
        """Let time pass, timer by timer, as the driver does."""
        until_ms = self.now_ms + ms
        while self.wake_at_ms is not None and self.wake_at_ms <= until_ms:
            self.now_ms = max(self.now_ms, self.wake_at_ms)
            self._take(self.machine.advance(self.now))
        self.now_ms = until_ms

    def advance(self) -> None:
        """One look at the timers that have run out."""
        self._take(self.machine.advance(self.now))

    def restart(self) -> None:
        """A new machine from the log; requests that waited are lost with the old one."""
        self.pending.clear()
        self.machine = self._new_machine()
        for record in self.log:
            self.machine.replay(record)
        self._take(self.machine.recovered(self.now))

    def _new_machine(self) -> ConsumerGroupMachine:
        return ConsumerGroupMachine(
            self.config, lambda: f"{next(self._uniques):04}", topic_id_of=lambda name: self.topics.get(name, ZERO_UUID)
        )

    def replayed(self) -> ConsumerGroupMachine:
        """The machine that a restart would make."""
        machine = self._new_machine()
        for record in self.log:
            machine.replay(record)
        return machine

    def _ask(self, event: Any) -> Pending:
        ticket = next(self._tickets)
        pending = self.pending[ticket] = Pending()
        self._take(event(ticket))
        return pending

    def _take(self, result: Result) -> None:
        self.log += result.records
        self.wake_at_ms = result.wake_at_ms
        for answer in result.answers:
            pending = self.pending.pop(answer.ticket)  # a KeyError is an answer given twice
            pending.response = answer.response
        self.machine.answered([answer.ticket for answer in result.answers], self.now)

    @property
    def state(self) -> str:
        group = self.machine.state.classic.get(GROUP)
        return "Dead" if group is None else group.state.value

    # --- requests ------------------------------------------------------------------------------------

    def join_once(
        self,
        client: str,
        *,
        instance: str | None = None,
        offers: tuple[JoinGroupRequestProtocol, ...] | None = None,
        version: int = 9,
        group: str = GROUP,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
        member_id: str | None = None,
    ) -> Pending:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=self.ids.get(client, "") if member_id is None else member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=offers or protocols("range"),
        )
        caller = Caller(version, client, "/10.0.0.1")
        pending = self._ask(lambda ticket: self.machine.membership.join(ticket, request, caller, self.now))
        if pending.answered and pending.member_id:
            self.ids[client] = pending.member_id
        return pending

    def join(self, client: str, **how: Any) -> Pending:
        """As clients do: come back with the id that is given out."""
        pending = self.join_once(client, **how)
        if pending.answered and pending.error is ErrorCode.MEMBER_ID_REQUIRED:
            pending = self.join_once(client, **how)
        return pending

    def sync(
        self,
        client: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_name: str | None = None,
        protocol_type: str | None = None,
    ) -> Pending:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=self.ids[client],
            group_instance_id=instance,
            protocol_name=protocol_name,
            protocol_type=protocol_type,
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=self.ids[name], assignment=data)
                for name, data in (assignments or {}).items()
            ),
        )
        return self._ask(lambda ticket: self.machine.membership.sync(ticket, request, self.now))

    def heartbeat(self, client: str, generation: int, *, instance: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=generation,
            member_id=self.ids[client],
            group_instance_id=instance,
        )
        return self._ask(lambda ticket: self.machine.membership.heartbeat(ticket, request, self.now)).error

    def leave(self, *members: MemberIdentity | str) -> list[ErrorCode]:
        identities = tuple(MemberIdentity(member_id=self.ids[who]) if isinstance(who, str) else who for who in members)
        request = LeaveGroupRequest(group_id=GROUP, members=identities)
        response = self._ask(lambda ticket: self.machine.membership.leave(ticket, request, self.now)).response
        return [ErrorCode(member.error_code) for member in response.members]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        client: str | None = None,
        generation: int = -1,
        metadata: str = "",
        version: int = 8,
        retention_ms: int = -1,
        group: str = GROUP,
        instance: str | None = None,
    ) -> list[ErrorCode]:
        topics = tuple(
            OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    ),
                ),
            )
            for (topic, partition), offset in offsets.items()
        )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id="" if client is None else self.ids[client],
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=topics,
        )
        caller = Caller(version, "c", "/10.0.0.1")
        response = self._ask(lambda ticket: self.machine.offsets.commit(ticket, request, caller, self.now)).response
        return [ErrorCode(item.error_code) for topic in response.topics for item in topic.partitions]

    def fetch(self, *wanted: tuple[str, int], group: str = GROUP) -> dict[tuple[str, int], int]:
        """The offsets asked for, or all."""
        topics = tuple(OffsetFetchRequestTopics(name=name, partition_indexes=(index,)) for name, index in wanted)
        request = OffsetFetchRequestGroup(group_id=group, topics=topics or None)
        response = self._ask(lambda ticket: self.machine.offsets.fetch(ticket, request, self.now)).response
        return {
            (topic.name, item.partition_index): item.committed_offset
            for topic in response.topics
            for item in topic.partitions
        }

    def delete_offset(self, topic: str, partition: int) -> tuple[ErrorCode, ErrorCode | None]:
        partitions = (OffsetDeleteRequestPartition(partition_index=partition),)
        request = OffsetDeleteRequest(
            group_id=GROUP, topics=(OffsetDeleteRequestTopic(name=topic, partitions=partitions),)
        )
        answer = self._ask(lambda ticket: self.machine.offsets.delete_offsets(ticket, request, self.now)).response
        inner = [ErrorCode(item.error_code) for found in answer.topics for item in found.partitions]
        return ErrorCode(answer.error_code), inner[0] if inner else None

    def delete_group(self, group: str = GROUP) -> ErrorCode:
        [result] = self._ask(
            lambda ticket: self.machine.administration.delete_groups(ticket, [group], self.now)
        ).response
        return ErrorCode(result.error_code)

    def forget_topic(self, topic: str, topic_id: UUID = ZERO_UUID) -> int:
        event = lambda ticket: self.machine.offsets.forget_topic(ticket, topic, topic_id, self.now)  # noqa: E731
        count: int = self._ask(event).response
        return count

    def describe(self, group: str = GROUP) -> Any:
        pending = self._ask(lambda ticket: self.machine.administration.describe(ticket, [group], self.now))
        self.wait(0)  # a large group is described in steps
        [described] = pending.response
        return described

    # --- stories that many stories start with --------------------------------------------------------

    def stable(self, *clients: str, **how: Any) -> int:
        """A stable group of these clients, the first one leading; returns the generation."""
        joins: dict[str, Pending] = {}
        for client in clients:
            joins[client] = self.join(client, **how)
            for other, pending in list(joins.items()):
                if not pending.answered or other == client:
                    continue
                joins[other] = self.join(other, **how)  # a rebalance was started: they all join again
        for client, pending in joins.items():
            self.ids[client] = pending.member_id
        generation: int = joins[clients[0]].generation_id
        shares = {client: f"share of {client}".encode() for client in clients}
        for client, pending in joins.items():
            assert pending.generation_id == generation
            leads = pending.leader == pending.member_id
            self.sync(client, generation, shares if leads else None)
        assert self.state == "Stable"
        return generation
