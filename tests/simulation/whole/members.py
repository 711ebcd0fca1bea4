"""Members of a consumer group, as consumers are: they join, one of them assigns, they commit what they own, and they
leave, or vanish without a word.

The offsets of a partition grow over all its owners. So one that goes back (H) was committed by a member that owned the
partition no more, or by a coordinator that did not know what was committed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.simulation.oracle import require
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import NONE, TOPIC_UNKNOWN, Work
from tests.simulation.whole.connection import NoAnswer

from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_protocol import (
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
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSION_TIMEOUTS_MS = (1_000, 3_000)
REBALANCE_TIMEOUTS_MS = (1_000, 5_000)
JOIN_PATIENCE_SECONDS = 10.0
"""Longer than the longest rebalance waits for members that are gone."""

FENCED = {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
"""Answers to a member of a generation that is over, or soon will be."""


class Rejoin(Exception):
    """The membership is over, or the coordinator is another one."""


class Owned(NamedTuple):
    topic: Topic
    index: int  # type: ignore[assignment]


class GroupMember:
    """One consumer after the other in the same place."""

    def __init__(self, work: Work, group: str) -> None:
        self._work = work
        self._rng = work.rng
        self._group = group
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._client = self._work.client()
        self._member_id = ""
        self._generation = -1

    async def run(self) -> None:
        while not self._work.ending:
            try:
                await self._join()
            except (NoAnswer, Rejoin):
                self._client.doubt_coordinator(self._group)
            await self._work.pause(0.0, 0.05, 0.3)

    # --- joining ------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        names = sorted({topic.name for topic, _partition in self._work.partitions()})
        subscription = write_subscription(ConsumerProtocolSubscription(topics=tuple(names)))
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=self._rng.choice(SESSION_TIMEOUTS_MS),
            rebalance_timeout_ms=self._rng.choice(REBALANCE_TIMEOUTS_MS),
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="round", metadata=subscription),),
        )
        joined = await self._ask(request, self._rng.choice([3, 5, 9]), JOIN_PATIENCE_SECONDS)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            return
        self._go_on_or_rejoin(joined.error_code, "join")
        self._member_id, self._generation = joined.member_id, joined.generation_id
        synced = await self._ask(self._sync_request(joined), self._rng.choice([2, 5]))
        self._go_on_or_rejoin(synced.error_code, "sync")
        if synced.assignment:
            await self._consume(self._told(synced.assignment))

    def _sync_request(self, joined: JoinGroupResponse) -> SyncGroupRequest:
        """The leader hands in who gets what; each share carries the same mark."""
        assignments: tuple[SyncGroupRequestAssignment, ...] = ()
        if joined.leader == joined.member_id:
            mark = self._rng.randbytes(8)
            shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in joined.members}
            members = sorted(shares)
            for number, (topic, partition) in enumerate(self._work.partitions()):
                share = shares[members[number % len(members)]]
                share.append(TopicPartition(topic=topic.name, partitions=(partition,)))
            assignments = tuple(
                SyncGroupRequestAssignment(
                    member_id=member_id,
                    assignment=write_assignment(
                        ConsumerProtocolAssignment(assigned_partitions=tuple(share), user_data=mark)),
                ) for member_id, share in shares.items()
            )  # fmt: skip
        return SyncGroupRequest(
            group_id=self._group, generation_id=self._generation, member_id=self._member_id, assignments=assignments
        )

    def _told(self, content: bytes) -> list[Owned]:
        assignment = read_assignment(content)
        by_name = {topic.name: topic for topic, _partition in self._work.partitions()}
        places = [(item.topic, index) for item in assignment.assigned_partitions for index in item.partitions]
        self._work.cluster.ledger.assigned(
            self._group, self._generation, self._member_id, bytes(assignment.user_data or b""), places
        )
        self._work.assignments += 1
        return [Owned(by_name[name], index) for name, index in places if name in by_name]

    # --- being a member -----------------------------------------------------------------------------------

    async def _consume(self, owned: list[Owned]) -> None:
        deaf = bool(owned) and self._rng.random() < 0.2  # commits, and does not ask whether it still should
        while not self._work.ending:
            await self._work.pause(*((0.3, 1.0) if deaf else (0.01, 0.1, 0.3)))
            chance = self._rng.random()
            if chance < 0.02:
                self._client.close()
                self._begin_anew()  # without a word: its session ends
                return
            if chance < 0.05:
                await self._leave()
                return
            if (chance < 0.5 or deaf) and owned:
                await self._commit(self._rng.choice(owned))
            else:
                request = HeartbeatRequest(
                    group_id=self._group, generation_id=self._generation, member_id=self._member_id
                )
                self._go_on_or_rejoin((await self._ask(request, self._rng.choice([2, 4]))).error_code, "heartbeat")

    async def _leave(self) -> None:
        request = LeaveGroupRequest(group_id=self._group, members=(MemberIdentity(member_id=self._member_id),))
        answer = await self._ask(request, 4)
        self._go_on_or_rejoin(answer.error_code, "leave")
        self._begin_anew()

    async def _commit(self, owned: Owned) -> None:
        """Commit the next offset, again and again until it is acknowledged, or this member is not to any more."""
        ledger, place = self._work.cluster.ledger, Partition(owned.topic.topic_id, owned.index)
        offset = max(0, ledger.offset((self._group, *place)).tried + self._rng.choice([1, 10]))
        while self._work.wanted(owned.topic):
            ledger.committing((self._group, *place), offset)
            item = OffsetCommitRequestPartition(
                partition_index=owned.index, committed_offset=offset, committed_metadata=None
            )
            request = OffsetCommitRequest(
                group_id=self._group, generation_id_or_member_epoch=self._generation, member_id=self._member_id,
                topics=(OffsetCommitRequestTopic(name=owned.topic.name, partitions=(item,)),),
            )  # fmt: skip
            newest = ledger.newest_generation(self._group)
            try:
                answer = await self._ask(request, self._rng.choice([7, 9]))
            except NoAnswer:
                self._client.doubt_coordinator(self._group)
                if self._work.ending:
                    return
                await self._work.pause(0.0, 0.1)
                continue
            ((answered,),) = [topic.partitions for topic in answer.topics]
            if answered.error_code in TOPIC_UNKNOWN:
                return
            self._go_on_or_rejoin(answered.error_code, "commit")
            require(
                self._generation >= newest,
                f"group {self._group}: {self._member_id} of generation {self._generation} commits, when members of "
                f"{newest} were told what they own",
                "H",
            )
            self._work.commits += 1
            ledger.committed((self._group, *place), offset)
            return

    # --- asking -------------------------------------------------------------------------------------------

    async def _ask(self, request: Any, version: int, patience: float = 0.0) -> Any:
        node_id = await self._client.coordinator(self._group)
        return await self._client.ask(node_id, request, version, patience)

    def _go_on_or_rejoin(self, error_code: int, what: str) -> None:
        """Raises `Rejoin`, and `Violation` for an answer that no member understands."""
        if error_code == NONE:
            return
        require(error_code in ELSEWHERE | FENCED, f"member {self._member_id} of {self._group}: {what}: {error_code}")
        if error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._begin_anew()
        raise Rejoin
