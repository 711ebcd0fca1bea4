"""Members of groups that change their protocol: each is a client of the one or the other for a while, then another."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple
from uuid import UUID

from tests.simulation.migrating_groups.ownership import CLASSIC, CONSUMER, Membership, Ownership
from tests.simulation.oracle import require
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import NONE, TOPIC_UNKNOWN, Work
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.members import JOIN_PATIENCE_SECONDS, Rejoin

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    HeartbeatTopicPartitions,
)
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
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSION_MS = 2_000
REBALANCE_TIMEOUT_MS = 10_000
"""Longer than a session: who is slow to give something up is a member until its session ends, at least."""

FENCED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Answers to who is no member any more, or was none in this group of today."""
MOVED_ON = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH}
"""Answers to a member that is to ask where the group is."""


class Late(NamedTuple):
    """A commit that is sent when its sender has lost the partition."""

    membership: Membership
    member_id: str
    epoch: int
    place: Partition


class Fenced(Exception):
    """The member is none any more."""


class MigratingMember(ABC):
    """One client. `run` returns when it is done with the group."""

    protocol: str

    def __init__(self, work: Work, ownership: Ownership, group: str, rng: random.Random) -> None:
        self.group = group
        self._work = work
        self._ownership = ownership
        self._rng = rng
        self._client = work.client()
        self._late: list[Late] = []
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._epoch_before = -1
        """The one in which the member had what it was told to give up."""
        self.membership = Membership(self.group, self.protocol, SESSION_MS / 1000)

    async def run(self) -> None:
        while not self._work.ending:
            try:
                await self.step()
                if self._late and self._rng.random() < 0.5:
                    await self._commit_late(self._late.pop(0))
                elif self.membership.owned and self._rng.random() < 0.4:
                    await self._commit(self._rng.choice(sorted(self.membership.owned)))
                if self._rng.random() < 0.04:
                    await self._end()
                    return
            except Fenced:
                self.fenced()
            except (NoAnswer, Rejoin):
                self.unsure()
            await self._pause(0.01, 0.05, 0.3)
        self._ownership.over(self.membership)
        self._client.close()

    @abstractmethod
    async def step(self) -> None:
        """Join, or stay a member. Raises `Fenced`, `NoAnswer` and `Rejoin`."""

    @abstractmethod
    async def leave(self) -> None:
        """Raises what `step` does."""

    def fenced(self) -> None:
        """It is no member any more, and knows it."""
        self._lose(self.membership.owned)
        self._ownership.over(self.membership)
        self._begin_anew()

    def unsure(self) -> None:
        """The last request may have changed anything, or nothing, and somebody else may coordinate the group."""
        self._client.doubt_coordinator(self.group)

    async def _end(self) -> None:
        """With a word or without one: then its session ends, as that of a process that was killed."""
        leaves = self._rng.random() < 0.6
        self._lose(self.membership.owned)
        self._ownership.over(self.membership)
        try:
            if leaves:
                await self.leave()
        except (Fenced, NoAnswer, Rejoin):
            pass
        for late in self._late:
            await self._pause(0.05, 0.5, 2.5)
            try:
                await self._commit_late(late)
            except NoAnswer:
                self._client.doubt_coordinator(self.group)
        self._client.close()

    # --- partitions ---------------------------------------------------------------------------------------

    def _told(self, kind: str, places: Collection[Partition]) -> bool:
        """Returns whether the member lost a partition by that."""
        epoch, before = self.membership.epoch, self._epoch_before
        lost = self._ownership.told(self.membership, kind, places)
        self._remember_lost(lost, before if before >= 0 else epoch)
        return bool(lost)

    def _lose(self, places: Iterable[Partition]) -> None:
        places = sorted(places)
        self._ownership.gives_up(self.membership, places)
        self._remember_lost(places, self.membership.epoch)

    def _remember_lost(self, places: Iterable[Partition], epoch: int) -> None:
        for place in sorted(places):
            if self._rng.random() < 0.5 and len(self._late) < 4:
                self._late.append(Late(self.membership, self.membership.member_id, epoch, place))

    # --- offsets ------------------------------------------------------------------------------------------

    async def _commit(self, place: Partition) -> None:
        """The next offset of a partition that the member has, until it is acknowledged or the member has it no more."""
        membership, ledger = self.membership, self._work.cluster.ledger
        offset = max(0, ledger.offset((self.group, *place)).tried + self._rng.choice([1, 10]))
        while not self._work.ending and place in membership.owned and not ledger.fates[place.topic_id].unwanted:
            try:
                code = await self._ask_commit(membership, membership.member_id, membership.epoch, place, offset)
            except NoAnswer:
                self._client.doubt_coordinator(self.group)
                await self._pause(0.0, 0.1)
                continue
            if code not in TOPIC_UNKNOWN:
                self._check(code, "commit")
            return

    async def _commit_late(self, late: Late) -> None:
        """By a member that has lost the partition, once. Raises `NoAnswer`."""
        ledger = self._work.cluster.ledger
        if ledger.fates[late.place.topic_id].unwanted:
            return
        self._ownership.seen["late"] += 1
        offset = ledger.offset((self.group, *late.place)).tried + 1
        code = await self._ask_commit(late.membership, late.member_id, late.epoch, late.place, offset)
        allowed = ELSEWHERE | FENCED | MOVED_ON | TOPIC_UNKNOWN | {NONE}
        require(code in allowed, f"{self.group}: a late commit of {late.member_id}: {code}")
        self._ownership.seen["late, refused"] += code in FENCED | MOVED_ON

    async def _ask_commit(
        self, membership: Membership, member_id: str, epoch: int, place: Partition, offset: int
    ) -> int:
        """Returns the error code. Raises `NoAnswer`."""
        ledger, asked_at = self._work.cluster.ledger, self._work.cluster.loop.time()
        ledger.committing((self.group, *place), offset)
        item = OffsetCommitRequestPartition(
            partition_index=place.index, committed_offset=offset, committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name=ledger.fates[place.topic_id].topic.name, partitions=(item,))
        request = OffsetCommitRequest(
            group_id=self.group, generation_id_or_member_epoch=epoch, member_id=member_id, topics=(topic,)
        )
        node_id = await self._client.coordinator(self.group)
        answer = await self._client.ask(node_id, request, 9)
        ((answered,),) = [topic.partitions for topic in answer.topics]
        if answered.error_code == NONE:
            self._ownership.committed(membership, epoch, place, asked_at)
            self._work.commits += 1
            ledger.committed((self.group, *place), offset)
        return int(answered.error_code)

    # --- asking -------------------------------------------------------------------------------------------

    async def _ask(self, what: str, request: Any, version: int, *, proves: bool, patience: float = 0.0) -> Any:
        """`proves`: that it is answered without an error says that the sender is a member."""
        asked_at = self._work.cluster.loop.time()
        node_id = await self._client.coordinator(self.group)
        answer = await self._client.ask(node_id, request, version, patience)
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            self._check(answer.error_code, what)
        if proves:
            self._ownership.heard(self.membership, node_id, asked_at)
        return answer

    def _check(self, code: int, what: str) -> None:
        """Raises `Fenced` and `Rejoin`, and `Violation` for an answer that no member understands."""
        if code == NONE:
            return
        if code in FENCED:
            raise Fenced
        who = f"{self.protocol} member {self.membership.member_id} of {self.group}"
        require(code in ELSEWHERE | MOVED_ON, f"{who}: {what}: {code}")
        if code in ELSEWHERE:
            self._client.doubt_coordinator(self.group)
        raise Rejoin

    async def _pause(self, *seconds: float) -> None:
        await asyncio.sleep(self._rng.choice(seconds))

    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({topic.name for topic, _ in self._work.partitions()}))

    def _ids(self) -> dict[str, UUID]:
        return {topic.name: topic.topic_id for topic, _ in self._work.partitions()}


class ConsumerMember(MigratingMember):
    """Of the protocol in which the coordinator assigns (KIP-848)."""

    protocol = CONSUMER

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self.membership.member_id = f"{self.group}-{self._rng.getrandbits(64):x}"
        self.membership.epoch = JOIN_EPOCH
        self._says: object = None
        """The last that it said, and that was heard."""
        self._subscribed: tuple[str, ...] = ()

    def unsure(self) -> None:
        super().unsure()
        self._says = None

    async def step(self) -> None:
        membership, names = self.membership, self._names()
        joins = membership.epoch == JOIN_EPOCH
        by_topic: dict[UUID, list[int]] = {}
        for place in sorted(membership.owned):
            by_topic.setdefault(place.topic_id, []).append(place.index)
        owned = tuple(
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(indexes))
            for topic_id, indexes in by_topic.items()
        )
        says = names, owned
        says_all = joins or says != self._says
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=membership.member_id,
            member_epoch=membership.epoch,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if says_all else -1,
            subscribed_topic_names=names if says_all else None,
            topic_partitions=owned if says_all else None,
        )
        answer = await self._ask("heartbeat", request, 1, proves=True)
        self._says = says
        self._epoch_before, membership.epoch = membership.epoch, answer.member_epoch
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self._told(CONSUMER, [Partition(row.topic_id, index) for row in rows for index in row.partitions])

    async def leave(self) -> None:
        if self.membership.epoch > 0:
            request = ConsumerGroupHeartbeatRequest(
                group_id=self.group, member_id=self.membership.member_id, member_epoch=LEAVE_EPOCH
            )
            await self._ask("leave", request, 1, proves=False)


class ClassicMember(MigratingMember):
    """Of the protocol in which a member assigns."""

    protocol = CLASSIC

    def __init__(self, work: Work, ownership: Ownership, group: str, rng: random.Random, *, cooperative: bool) -> None:
        """`cooperative`: it keeps what it has while it joins again."""
        self._cooperative = cooperative
        super().__init__(work, ownership, group, rng)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._joined = False

    def unsure(self) -> None:
        super().unsure()
        self._joined = False

    async def step(self) -> None:
        if not self._joined:
            await self._join()
            return
        membership = self.membership
        request = HeartbeatRequest(group_id=self.group, generation_id=membership.epoch, member_id=membership.member_id)
        await self._ask("heartbeat", request, 4, proves=True)

    async def _join(self) -> None:
        membership = self.membership
        if not self._cooperative:
            self._lose(membership.owned)
        subscription = ConsumerProtocolSubscription(
            topics=self._names(), owned_partitions=self._rows(membership.owned), generation_id=membership.epoch
        )
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=membership.member_id,
            protocol_type="consumer",
            protocols=(
                JoinGroupRequestProtocol(
                    name="sticky" if self._cooperative else "eager", metadata=write_subscription(subscription)
                ),
            ),
        )
        patience = JOIN_PATIENCE_SECONDS + REBALANCE_TIMEOUT_MS / 1000
        joined = await self._ask("join", request, self._rng.choice([3, 5, 9]), proves=False, patience=patience)
        membership.member_id = joined.member_id
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            raise Rejoin
        self._epoch_before, membership.epoch = membership.epoch, joined.generation_id
        synced = await self._ask("sync", self._sync_request(joined), self._rng.choice([2, 5]), proves=True)
        ids = self._ids()
        assignment = read_assignment(synced.assignment) if synced.assignment else None
        rows = () if assignment is None else assignment.assigned_partitions
        places = [Partition(ids[row.topic], index) for row in rows for index in row.partitions if row.topic in ids]
        lost = self._told(CLASSIC if joined.leader else CONSUMER, places)
        self._joined = not lost  # who has lost something joins again, so that another one gets it

    def _rows(self, places: Iterable[Partition]) -> tuple[TopicPartition, ...]:
        fates, by_name = self._work.cluster.ledger.fates, dict[str, list[int]]()
        for place in sorted(places):
            by_name.setdefault(fates[place.topic_id].topic.name, []).append(place.index)
        return tuple(TopicPartition(topic=name, partitions=tuple(indexes)) for name, indexes in by_name.items())

    def _sync_request(self, joined: JoinGroupResponse) -> SyncGroupRequest:
        """The leader hands in who gets what. Of cooperative members nobody gets what another one still has."""
        assignments: tuple[SyncGroupRequestAssignment, ...] = ()
        if joined.leader == joined.member_id:
            has: dict[tuple[str, int], tuple[int, str]] = {}
            for member in joined.members:
                told = read_subscription(member.metadata)
                for row in told.owned_partitions:
                    for index in row.partitions:
                        has[row.topic, index] = max(
                            has.get((row.topic, index), (-1, "")), (told.generation_id, member.member_id)
                        )
            shares: dict[str, list[TopicPartition]] = {member.member_id: [] for member in joined.members}
            members = sorted(shares)
            for number, (topic, index) in enumerate(self._work.partitions()):
                member_id = members[number % len(members)]
                _, holder = has.get((topic.name, index), (-1, member_id))
                if holder == member_id:
                    shares[member_id].append(TopicPartition(topic=topic.name, partitions=(index,)))
            assignments = tuple(
                SyncGroupRequestAssignment(
                    member_id=member_id,
                    assignment=write_assignment(ConsumerProtocolAssignment(assigned_partitions=tuple(share))),
                )
                for member_id, share in shares.items()
            )
        return SyncGroupRequest(
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=assignments,
        )

    async def leave(self) -> None:
        if self.membership.member_id:
            request = LeaveGroupRequest(
                group_id=self.group, members=(MemberIdentity(member_id=self.membership.member_id),)
            )
            await self._ask("leave", request, 4, proves=False)


class Seat:
    """One client after the other in a group, of either protocol."""

    def __init__(self, work: Work, new_member: Callable[[], MigratingMember], rng: random.Random) -> None:
        self._work = work
        self._new_member = new_member
        self._rng = rng

    async def run(self) -> None:
        while not self._work.ending:
            await self._new_member().run()
            await asyncio.sleep(self._rng.choice([0.0, 0.1, 0.5]))
