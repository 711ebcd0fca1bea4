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
from tests.simulation.whole.members import Rejoin

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

SESSIONS_MS = {CLASSIC: 4_000, CONSUMER: 2_000}
"""By protocol: each has timers of its own."""
REBALANCE_TIMEOUT_MS = 10_000
"""Longer than a session: who is slow to give something up is a member until its session ends, at least."""

SILENT_SHARE = 0.65
"""Of its session a member is silent, now and then: a classic one for longer than a session of the other protocol."""

FENCED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.GROUP_ID_NOT_FOUND,
}
"""Answers to who is no member any more, or was none in this group of today."""
REMOVED = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
"""Those of them that say so of a member of whichever epoch."""
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
        self.membership = Membership(self.group, self.protocol, SESSIONS_MS[self.protocol] / 1000)

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
            if self._rng.random() < 0.08:
                await asyncio.sleep(SILENT_SHARE * self.membership.session_seconds)
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
        if membership is self.membership and epoch == membership.epoch and place in membership.owned:
            self._hear(answered.error_code, node_id, asked_at)
        if answered.error_code == NONE:
            self._ownership.committed(membership, epoch, place, asked_at)
            self._work.commits += 1
            ledger.committed((self.group, *place), offset)
        return int(answered.error_code)

    # --- asking -------------------------------------------------------------------------------------------

    async def _ask(
        self, what: str, request: Any, version: int, *, proves: bool, joins: bool = False, patience: float = 0.0
    ) -> Any:
        """`proves`: that it is answered without an error says that the sender is a member, and if it `joins`, which
        epoch is its first."""
        asked_at, membership = self._work.cluster.loop.time(), self.membership
        node_id = await self._client.coordinator(self.group)
        answer = await self._client.ask(node_id, request, version, patience)
        if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            self._hear(answer.error_code, node_id, asked_at)
            self._check(answer.error_code, what)
        if proves:
            epoch = getattr(answer, "member_epoch", membership.epoch)
            self._ownership.heard(membership, node_id, asked_at, epoch, joins=joins)
        return answer

    def _hear(self, code: int, node_id: int, asked_at: float) -> None:
        """An answer to what the member asked at that time, as it is now."""
        if code in FENCED:
            self._ownership.refused(self.membership, node_id, asked_at, unknown=code in REMOVED)

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
