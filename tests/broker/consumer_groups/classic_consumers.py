"""A client of the classic protocol at the table of `heartbeats`: it joins, assigns when it leads, fetches what it got,
and gives up partitions the eager or the cooperative way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.broker.consumer_groups.heartbeats import GROUP, Owned, Table

from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.machines.result import Result
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

PATIENCE_MS = 120_000
"""Session and rebalance timeout."""


class ClassicConsumer:
    """One client, through all its lives."""

    def __init__(
        self,
        table: Table,
        name: str,
        topics: tuple[str, ...],
        *,
        cooperative: bool = False,
        instance_id: str | None = None,
    ) -> None:
        self.table, self.name, self.topics = table, name, topics
        self.cooperative = cooperative
        self.instance_id = instance_id
        self.protocol = "cooperative-sticky" if cooperative else "range"
        self.member_id = ""
        self.generation: int | None = None
        self.owned: Owned = frozenset()
        self._seen: dict[str, int] | None = None
        """Of a leader: how many partitions the topics had that it assigned."""
        self._joining: tuple[int, int] | None = None
        """The ticket of a join, and the life of the machine that has it."""
        self._syncing: tuple[int, int] | None = None

    def beat(self) -> ErrorCode:
        """Do what is next. Returns the error code of the last answer."""
        if self._syncing is not None:
            return self._sync_answered(self._syncing)
        if self._joining is not None:
            return self._join_answered(self._joining)
        if self.generation is None:
            return self._join()
        if self._seen is not None and self._seen != self._sizes():
            return self._rejoin()
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        machine, table = self.table.machine, self.table
        code = ErrorCode(table.ask(lambda ticket: machine.membership.heartbeat(ticket, request, table.now)).error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return self._rejoin()
        if code is not ErrorCode.NONE:
            self._lose(code)
        return code

    def leave(self) -> ErrorCode:
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=GROUP, members=(identity,))
        machine, table = self.table.machine, self.table
        response = table.ask(lambda ticket: machine.membership.leave(ticket, request, table.now))
        self._lose(ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode(response.members[0].error_code)

    # --- joins ---------------------------------------------------------------------------------------

    def _rejoin(self) -> ErrorCode:
        if not self.cooperative:
            self.owned = frozenset()
        return self._join()

    def _join(self) -> ErrorCode:
        self.generation = None
        subscription = ConsumerProtocolSubscription(
            topics=self.topics, owned_partitions=self._named(self.owned) if self.cooperative else ()
        )
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=PATIENCE_MS,
            rebalance_timeout_ms=PATIENCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name=self.protocol, metadata=write_subscription(subscription)),),
        )
        caller = Caller(9, self.name, "/10.0.0.2")
        machine, table = self.table.machine, self.table
        self._joining = self._send(lambda ticket: machine.membership.join(ticket, request, caller, table.now))
        return self._join_answered(self._joining)

    def _join_answered(self, sent: tuple[int, int]) -> ErrorCode:
        response = self._answer(sent)
        if response is None:
            if sent[1] != self.table.lives:  # the machine that was asked is gone
                self._joining = None
            return ErrorCode.NONE
        self._joining = None
        code = ErrorCode(response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return self._join()
        if code is ErrorCode.NONE:
            self.member_id, self.generation = response.member_id, response.generation_id
            return self._sync(response)
        if code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._lose(code)
        return code

    def _sync(self, joined: JoinGroupResponse) -> ErrorCode:
        leads = joined.leader == self.member_id
        self._seen = self._sizes() if leads else None
        assert self.generation is not None
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=self._assigned(joined) if leads else (),
        )
        machine, table = self.table.machine, self.table
        self._syncing = self._send(lambda ticket: machine.membership.sync(ticket, request, table.now))
        return self._sync_answered(self._syncing)

    def _sync_answered(self, sent: tuple[int, int]) -> ErrorCode:
        response = self._answer(sent)
        if response is None:
            if sent[1] != self.table.lives:
                self._syncing = None
                return self._rejoin()
            return ErrorCode.NONE
        self._syncing = None
        code = ErrorCode(response.error_code)
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            return self._rejoin()
        if code is not ErrorCode.NONE:
            self._lose(code)
            return code
        rows = read_assignment(response.assignment).assigned_partitions if response.assignment else ()
        given = self._partitions(rows)
        gives_up, self.owned = self.owned - given, given
        return self._join() if gives_up and self.cooperative else ErrorCode.NONE

    def _lose(self, code: ErrorCode) -> None:
        self._seen = None
        self.owned, self.generation, self._joining, self._syncing = frozenset(), None, None, None
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _sizes(self) -> dict[str, int]:
        return {name: topic.partitions for name, topic in self.table.topics.items()}

    # --- the leader ----------------------------------------------------------------------------------

    def _assigned(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        """In turn to all members; the cooperative way, none that another member still has."""
        said = {member.member_id: read_subscription(member.metadata) for member in joined.members}
        owners = {at: name for name, it in said.items() for at in self._partitions(it.owned_partitions)}
        wanted: dict[str, set[Any]] = {name: set() for name in said}
        for topic in sorted({topic for it in said.values() for topic in it.topics} & self.table.topics.keys()):
            subscribers = sorted(name for name in said if topic in said[name].topics)
            of_topic = self.table.topics[topic]
            for index in range(of_topic.partitions):
                at, member = (of_topic.topic_id, index), subscribers[index % len(subscribers)]
                if owners.get(at, member) == member:
                    wanted[member].add(at)
        return tuple(
            SyncGroupRequestAssignment(
                member_id=name,
                assignment=write_assignment(
                    ConsumerProtocolAssignment(assigned_partitions=self._named(frozenset(has)))
                ),
            )
            for name, has in wanted.items()
        )

    # --- the table -----------------------------------------------------------------------------------

    def _send(self, event: Callable[[int], Result]) -> tuple[int, int]:
        return self.table.send(event), self.table.lives

    def _answer(self, sent: tuple[int, int]) -> Any:
        return self.table.answer(sent[0])

    def _named(self, owned: Owned) -> tuple[TopicPartition, ...]:
        names = {topic.topic_id: name for name, topic in self.table.topics.items()}
        rows: dict[str, list[int]] = {}
        for topic_id, index in sorted(owned):
            rows.setdefault(names[topic_id], []).append(index)
        return tuple(TopicPartition(topic=name, partitions=tuple(indexes)) for name, indexes in rows.items())

    def _partitions(self, rows: tuple[TopicPartition, ...]) -> Owned:
        return frozenset((self.table.topics[row.topic].topic_id, index) for row in rows for index in row.partitions)
