"""Members of groups, without the rest of a consumer: they keep to the protocol as Java's client and librdkafka do.

A classic member joins, hands in the assignment where it leads (ranges), fetches its own, and sends heartbeats until one
says that the group rebalances; then it gives up its partitions and joins again. A member of the new protocol sends
heartbeats; told of another assignment, it gives up and takes partitions at once, and says so in a heartbeat that does
not wait for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from bench.errors import BenchError
from bench.groups.board import Board
from bench.groups.client_connection import ClientConnection
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
from mainstem.protocol.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    read_assignment,
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

JOIN, SYNC, HEARTBEAT, LEAVE, CONSUMER_HEARTBEAT = 9, 5, 4, 5, 1
"""The versions of the requests."""
CLASSIC_HEARTBEAT_SECONDS = 3.0
"""`heartbeat.interval.ms` of clients."""
REBALANCE_TIMEOUT_MS = 300_000
"""`max.poll.interval.ms` of clients."""
RETRY_SECONDS = 0.1
"""`retry.backoff.ms` of clients."""
RETRIABLE = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
}  # fmt: skip
ASSIGNOR = "range"


class Part(NamedTuple):
    """The settings that all members of a group share."""

    address: str
    group_id: str
    topic: str
    topic_id: uuid.UUID
    partitions: int
    board: Board
    session_timeout_ms: int
    """Of classic members; the node has that of the others."""


class Player(ABC):
    """One member: `connect`, then `start`; at last `leave` or `die`."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.last_heard_at = 0.0
        """When it last sent what keeps its session alive."""
        self._connection: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self._connection = await ClientConnection.to(self.part.address)

    def start(self) -> None:
        """Its task ends with an error when the node refuses it, and its board tells that."""
        self._task = asyncio.create_task(self._play())
        self._task.add_done_callback(self.part.board.ended)

    async def leave(self) -> None:
        await self._end()
        self.part.board.gone(self)
        await self._leave()
        self.connection.close()

    async def die(self) -> None:
        """It says nothing any more, and its connection stays."""
        await self._end()
        self.part.board.gone(self)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    @property
    def connection(self) -> ClientConnection:
        assert self._connection is not None
        return self._connection

    async def _end(self) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    @abstractmethod
    async def _play(self) -> None: ...

    @abstractmethod
    async def _leave(self) -> None: ...


class ClassicPlayer(Player):
    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._member_id = ""
        self._generation = -1

    async def _play(self) -> None:
        while True:
            if not await self._join():
                continue
            code = await self._beat()
            while code in RETRIABLE or code is ErrorCode.NONE:
                code = await self._beat()
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            elif code not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
                raise BenchError(f"a heartbeat was refused with {code.name}")

    async def _join(self) -> bool:
        """Whether it has an assignment of a new generation."""
        self.part.board.gone(self)
        self.last_heard_at = time.monotonic()
        subscription = write_subscription(ConsumerProtocolSubscription(topics=(self.part.topic,)))
        joined = await self.connection.ask(
            JoinGroupRequest(
                group_id=self.part.group_id,
                session_timeout_ms=self.part.session_timeout_ms,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=(JoinGroupRequestProtocol(name=ASSIGNOR, metadata=subscription),),
            ),
            JOIN,
        )
        code = ErrorCode(joined.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif code in RETRIABLE or code is ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(RETRY_SECONDS)
        elif code is not ErrorCode.NONE:
            raise BenchError(f"a join was refused with {code.name}")
        if code is not ErrorCode.NONE:
            return False
        self._member_id, self._generation = joined.member_id, joined.generation_id
        return await self._sync(joined)

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        leads = joined.leader == self._member_id and not joined.skip_assignment
        self.last_heard_at = time.monotonic()
        synced = await self.connection.ask(
            SyncGroupRequest(
                group_id=self.part.group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=ASSIGNOR,
                assignments=self._ranges([member.member_id for member in joined.members]) if leads else (),
            ),
            SYNC,
        )
        code = ErrorCode(synced.error_code)
        if code is not ErrorCode.NONE:
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            elif code not in RETRIABLE | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}:
                raise BenchError(f"a sync was refused with {code.name}")
            return False
        assigned = read_assignment(synced.assignment).assigned_partitions if synced.assignment else ()
        partitions = frozenset(index for topic in assigned for index in topic.partitions)
        self.part.board.told(self, self._generation, partitions)
        return True

    def _ranges(self, members: Sequence[str]) -> tuple[SyncGroupRequestAssignment, ...]:
        """The assignment of Kafka's RangeAssignor."""
        least, extras = divmod(self.part.partitions, len(members))
        found, start = [], 0
        for position, member_id in enumerate(sorted(members)):
            end = start + least + (position < extras)
            topics = (TopicPartition(topic=self.part.topic, partitions=tuple(range(start, end))),)
            content = write_assignment(ConsumerProtocolAssignment(assigned_partitions=topics))
            found.append(SyncGroupRequestAssignment(member_id=member_id, assignment=content))
            start = end
        return tuple(found)

    async def _beat(self) -> ErrorCode:
        await asyncio.sleep(CLASSIC_HEARTBEAT_SECONDS)
        self.last_heard_at = time.monotonic()
        request = HeartbeatRequest(
            group_id=self.part.group_id, generation_id=self._generation, member_id=self._member_id
        )
        return ErrorCode((await self.connection.ask(request, HEARTBEAT)).error_code)

    async def _leave(self) -> None:
        members = (MemberIdentity(member_id=self._member_id),)
        left = await self.connection.ask(LeaveGroupRequest(group_id=self.part.group_id, members=members), LEAVE)
        if left.error_code or any(member.error_code for member in left.members):
            raise BenchError(f"a member may not leave: {left}")


class ModernPlayer(Player):
    """A member of the protocol of KIP-848."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)
        self._member_id = str(uuid.uuid4())
        self._epoch = JOIN_EPOCH
        self._owned: frozenset[int] = frozenset()

    async def _play(self) -> None:
        changed = True
        while True:
            wait_seconds, changed = await self._beat(tells_owned=changed)
            if not changed:
                await asyncio.sleep(wait_seconds)

    async def _beat(self, *, tells_owned: bool) -> tuple[float, bool]:
        """How long to wait for the next heartbeat, and whether partitions have changed, which is to be told at once."""
        joins = self._epoch == JOIN_EPOCH
        self.last_heard_at = time.monotonic()
        owned = HeartbeatTopicPartitions(topic_id=self.part.topic_id, partitions=tuple(sorted(self._owned)))
        answer = await self.connection.ask(
            ConsumerGroupHeartbeatRequest(
                group_id=self.part.group_id,
                member_id=self._member_id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joins else -1,
                subscribed_topic_names=(self.part.topic,) if joins else None,
                topic_partitions=((owned,) if self._owned else ()) if joins or tells_owned else None,
            ),
            CONSUMER_HEARTBEAT,
        )
        code = ErrorCode(answer.error_code)
        if code in RETRIABLE:
            return RETRY_SECONDS, False
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self._epoch, self._owned = JOIN_EPOCH, frozenset()
            self.part.board.gone(self)
            return 0.0, False
        if code is not ErrorCode.NONE:
            raise BenchError(f"a heartbeat was refused with {code.name}: {answer.error_message}")
        before = self._owned
        if answer.assignment is not None:
            topics = answer.assignment.topic_partitions
            self._owned = frozenset(index for topic in topics for index in topic.partitions)
        if answer.member_epoch != self._epoch or self._owned != before:
            self._epoch = answer.member_epoch
            self.part.board.told(self, self._epoch, self._owned)
        return answer.heartbeat_interval_ms / 1000, self._owned != before

    async def _leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.part.group_id, member_id=self._member_id, member_epoch=LEAVE_EPOCH
        )
        answer = await self.connection.ask(request, CONSUMER_HEARTBEAT)
        if answer.error_code:
            raise BenchError(f"a member may not leave: {answer}")


PLAYERS: dict[str, type[Player]] = {"classic": ClassicPlayer, "consumer": ModernPlayer}
"""By `group.protocol`."""
