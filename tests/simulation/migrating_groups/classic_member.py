"""Members of the protocol in which a member assigns."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tests.simulation.migrating_groups.members import (
    REBALANCE_TIMEOUT_MS,
    SESSIONS_MS,
    MigratingMember,
)
from tests.simulation.migrating_groups.ownership import CLASSIC, CONSUMER, Ownership
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import Work
from tests.simulation.whole.members import JOIN_PATIENCE_SECONDS, Rejoin

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
            session_timeout_ms=SESSIONS_MS[CLASSIC],
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
        sync = self._sync_request(joined)
        synced = await self._ask("sync", sync, self._rng.choice([2, 5]), proves=True, joins=self._epoch_before == -1)
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
