"""Members of share groups, as Kafka's share consumers are: a coordinator tells them which partitions to read, the
leaders of these give them records, and they accept, release, reject or renew them, one by one or many at a time, or
keep them until their locks run out. They leave, die, or fall silent, and some return under the name that they had.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation.oracle import require
from tests.simulation.share_groups.deliveries import Deliveries, Hold
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.client import Client, Partition
from tests.simulation.whole.clients import NONE, TOPIC_UNKNOWN, Work, split_batches
from tests.simulation.whole.connection import Connection, NoAnswer

from mainstem.broker.share_groups.records import WindowKey
from mainstem.broker.share_groups.share_partition import Acquired
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ACCEPT,
    BATCH_OPTIMIZED,
    GAP,
    RECORD_LIMIT,
    REJECT,
    RELEASE,
    RENEW,
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest

SESSION_OVER = {
    ErrorCode.SHARE_SESSION_NOT_FOUND,
    ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    ErrorCode.SHARE_SESSION_LIMIT_REACHED,
}
"""Answers after which a member begins a new session."""

LOST_MEMBER = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}
"""Answers after which it joins anew."""

LEAVE_EPOCH, FINAL_EPOCH = -1, -1

LEAVES, DIES, FALLS_SILENT = 0.01, 0.03, 0.08
"""How often a member closes its sessions and says that it goes; how often its connections end; how often it is not
heard of any more while they are open. The last two add up from the ones before."""

RETURNS = 0.4
"""How often the next member in a seat has the id of the one before."""

HEARTBEATS = 0.15

SLOW = 0.3
"""How many members take so long with records that they have to renew their locks, or lose them."""


class Place(NamedTuple):
    topic: Topic
    partition: Partition


@dataclass
class Session:
    """Of a member at a node."""

    connection: Connection
    epoch: int = 0
    followed: dict[Partition, None] = field(default_factory=dict)

    def next_epoch(self) -> int:
        self.epoch += 1
        return self.epoch - 1


class ShareSeat:
    """One member after the other."""

    def __init__(self, work: Work, deliveries: Deliveries, group: str, number: int, rng: random.Random) -> None:
        self._work = work
        self._deliveries = deliveries
        self._group = group
        self._number = number
        self._rng = rng

    async def run(self) -> None:
        member_id, count = "", 0
        while not self._work.ending:
            if not member_id or self._rng.random() >= RETURNS:
                count += 1
                member_id = f"{self._group}-{self._number}-{count}"
            member = ShareMember(self._work, self._deliveries, self._group, member_id, self._rng)
            await member.live()
            await asyncio.sleep(self._rng.choice([0.0, 0.3, 1.0]))


class ShareMember:
    def __init__(self, work: Work, deliveries: Deliveries, group: str, member_id: str, rng: random.Random) -> None:
        self.group = group
        self.member_id = member_id
        self.client = Client(work.cluster.clients_network, list(work.cluster.serving_clients), rng)
        self._work = work
        self._deliveries = deliveries
        self._rng = rng
        self._loop = work.cluster.loop
        self._slow = rng.random() < SLOW
        self._epoch = 0
        self._assigned: list[Place] = []
        self._sessions: dict[int, Session] = {}
        self._has: dict[Partition, dict[int, int]] = {}
        """Per partition the offsets that the member has, with the nodes that gave them."""
        self._markers: set[tuple[Partition, int]] = set()
        """Offsets that are no records, but ends of transactions: Kafka's clients acknowledge them as gaps."""

    # --- a life -------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Until it goes, or the run ends."""
        while not self._work.ending:
            chance = self._rng.random()
            if chance < LEAVES:
                await self._leave()
            if chance < DIES:
                break
            if chance < FALLS_SILENT:
                return  # its connections stay
            try:
                await self._step()
            except NoAnswer:
                self.client.doubt_coordinator(self.group)
            await asyncio.sleep(self._rng.choice([0.1, 0.3, 0.6] if self._slow else [0.0, 0.02, 0.1, 0.3]))
        self.die()

    def is_connected(self) -> bool:
        return all(session.connection.open for session in self._sessions.values())

    def die(self) -> None:
        for node_id in list(self._sessions):
            self._lose(node_id)
        self.client.close()

    async def _step(self) -> None:
        if not self._assigned or self._rng.random() < HEARTBEATS:
            await self._heartbeat()
        elif self._has and self._rng.random() < (0.8 if self._slow else 0.4):
            await self._acknowledge(self._rng.choice(list(self._has)))
        elif there := [place for place in self._assigned if self._work.wanted(place.topic)]:
            place = self._rng.choice(there)
            await self.fetch(place, there)

    # --- membership ---------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        names = readable_names(self._work)
        if not names:
            return
        joins = self._epoch == 0
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self._epoch,
            subscribed_topic_names=tuple(names) if joins or self._rng.random() < 0.3 else None,
        )  # fmt: skip
        node_id = await self.client.coordinator(self.group)
        answer = await self.client.ask(node_id, request, 1)
        if answer.error_code != NONE:
            allowed = ELSEWHERE | LOST_MEMBER
            require(answer.error_code in allowed, f"node {node_id}: heartbeat of {self.member_id}: {answer}")
            self.client.doubt_coordinator(self.group)
            if answer.error_code in LOST_MEMBER:
                self._epoch = 0
            return
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            fates = self._work.cluster.ledger.fates
            self._assigned = [
                Place(fates[topic.topic_id].topic, Partition(topic.topic_id, index))
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            ]

    async def _leave(self) -> None:
        """Close the sessions, which gives back what the member has, and say that it goes."""
        try:
            for node_id, session in list(self._sessions.items()):
                self._lose(node_id)
                request = ShareFetchRequest(
                    group_id=self.group, member_id=self.member_id, share_session_epoch=FINAL_EPOCH, max_wait_ms=0,
                    min_bytes=0, max_records=1, batch_size=1, topics=(), forgotten_topics_data=(),
                )  # fmt: skip
                await session.connection.ask(request, 1, patience=self.client.patience())
            node_id = await self.client.coordinator(self.group)
            leaving = ShareGroupHeartbeatRequest(
                group_id=self.group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
            )
            await self.client.ask(node_id, leaving, 1)
        except NoAnswer:
            return

    # --- reading ------------------------------------------------------------------------------------------

    async def fetch(self, place: Place, others: Sequence[Place]) -> None:
        """Ask the leader of a partition for records of that, and of others that it leads. Raises `NoAnswer`."""
        led = await self.client.leader(place.topic.name, place.partition)
        wanted = {
            one.partition: None
            for one in others
            if one is place or self.client.leaders.get(one.partition) == led or self._rng.random() < 0.05
        }
        session = self._session(led.node_id)
        added = [partition for partition in wanted if partition not in session.followed]
        forgotten = [partition for partition in session.followed if partition not in wanted]
        session.followed = wanted
        asked_at = self._loop.time()
        request = ShareFetchRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=session.next_epoch(),
            max_wait_ms=self._rng.choice([0, 0, 100, 500]), min_bytes=self._rng.choice([0, 1]),
            max_bytes=self._rng.choice([500, 5000, 1 << 20]), max_records=self._rng.choice([1, 2, 5, 100]),
            batch_size=10, share_acquire_mode=self._rng.choice([BATCH_OPTIMIZED, RECORD_LIMIT]),
            topics=tuple(
                ShareFetchTopic(
                    topic_id=topic_id,
                    partitions=(ShareFetchPartition(partition_index=index, acknowledgement_batches=()),),
                )
                for topic_id, index in added
            ),
            forgotten_topics_data=tuple(
                ForgottenShareTopic(topic_id=topic_id, partitions=(index,)) for topic_id, index in forgotten
            ),
        )  # fmt: skip
        response = await self._ask(led.node_id, session, request, 2)
        if response is None:
            return
        lock_seconds = response.acquisition_lock_timeout_ms / 1000
        for topic in response.responses:
            for answered in topic.partitions:
                partition = Partition(topic.topic_id, answered.partition_index)
                self._told(led.node_id, partition, answered, asked_at, lock_seconds)

    def _told(self, node_id: int, partition: Partition, answered: Any, asked_at: float, lock_seconds: float) -> None:
        topic = self._work.cluster.ledger.fates[partition.topic_id].topic
        what = f"node {node_id}: {topic.name}-{partition.index}: {self.member_id}"
        node = self._work.cluster.serving_clients.get(node_id)
        troubled = node is None or bool(node.disk1.troubles or node.disk2.troubles)
        allowed = self._served_or_not | {NONE}
        require(answered.error_code in allowed or troubled, f"{what}: {answered.error_code}", "Q")
        if answered.error_code != NONE:
            self.client.doubt(partition)
            return
        queue_id = topic.queue_id(partition.index)
        batches = list(split_batches(bytes(answered.records or b"")))
        history, ends = self._work.cluster.history, {}
        for batch in batches:
            base_offset = int.from_bytes(batch[:8], "big")
            end = history.check_batches(what, queue_id, base_offset, [batch])
            ends[base_offset] = end
            if batch[22] & 0x20:
                self._markers.update((partition, offset) for offset in range(base_offset, end))
        for run in answered.acquired_records:
            covered = all(
                any(base <= offset < end for base, end in ends.items())
                for offset in range(run.first_offset, run.last_offset + 1)
            )
            require(
                covered or not self._work.wanted(topic),
                f"{what} is given {run.first_offset} to {run.last_offset}, the records are {ends}",
                "Q",
            )
            acquired = Acquired(run.first_offset, run.last_offset, run.delivery_count)
            key = WindowKey(self.group, partition.topic_id, partition.index)
            self._deliveries.told(what, key, self.member_id, acquired, asked_at, lock_seconds, self.is_connected)
            has = self._has.setdefault(partition, {})
            has.update(dict.fromkeys(range(run.first_offset, run.last_offset + 1), node_id))

    # --- acknowledging ------------------------------------------------------------------------------------

    async def _acknowledge(self, partition: Partition) -> None:
        """Say what becomes of some of the records that the member has of a partition. Raises `NoAnswer`."""
        rng, offsets = self._rng, sorted(self._has[partition])
        chosen = offsets if rng.random() < 0.4 else sorted(rng.sample(offsets, rng.randint(1, len(offsets))))
        if rng.random() < (0.6 if self._slow else 0.1):
            kinds = dict.fromkeys(chosen, RENEW)
        elif rng.random() < 0.5:
            kinds = dict.fromkeys(chosen, rng.choice([ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT]))
        else:
            kinds = {offset: rng.choice([ACCEPT, ACCEPT, RELEASE, REJECT]) for offset in chosen}
        await self.acknowledge(partition, kinds)

    async def accept_all(self) -> None:
        """Raises `NoAnswer`."""
        for partition in list(self._has):
            await self.acknowledge(partition, dict.fromkeys(sorted(self._has[partition]), ACCEPT))

    async def acknowledge(self, partition: Partition, kinds: dict[int, int]) -> None:
        """Raises `NoAnswer`."""
        for offset in kinds:
            if (partition, offset) in self._markers and kinds[offset] != RENEW:
                kinds[offset] = GAP
        deliveries, key = self._deliveries, WindowKey(self.group, partition.topic_id, partition.index)
        has = self._has[partition]
        led = self.client.leaders.get(partition)
        node_id = led.node_id if led is not None and led.node_id in self._sessions else has[min(kinds)]
        renews = RENEW in kinds.values()
        holds: dict[int, Hold] = {}
        counts = {}
        for offset, kind in kinds.items():
            hold = deliveries.hold(key, offset)
            if hold is not None and hold.member_id == self.member_id:
                holds[offset] = hold
            deliveries.asks(key, offset, kind)
            if not renews:
                counts[offset] = deliveries.lets_go(key, self.member_id, offset)
                del has[offset]
        if not has:
            del self._has[partition]
        session = self._sessions.get(node_id)
        if session is None or session.epoch == 0:
            return
        asked_at = self._loop.time()
        request = ShareAcknowledgeRequest(
            group_id=self.group, member_id=self.member_id, share_session_epoch=session.next_epoch(),
            is_renew_ack=renews,
            topics=(
                AcknowledgeTopic(
                    topic_id=partition.topic_id,
                    partitions=(
                        AcknowledgePartition(
                            partition_index=partition.index, acknowledgement_batches=tuple(in_batches(kinds))
                        ),
                    ),
                ),
            ),
        )  # fmt: skip
        response = await self._ask(node_id, session, request, 2)
        if response is None:
            return
        ((answered,),) = [topic.partitions for topic in response.responses]
        what = f"node {node_id}"
        code = answered.error_code
        allowed = self._served_or_not | {NONE, ErrorCode.INVALID_RECORD_STATE}
        require(code in allowed, f"{what}: {self.member_id} acknowledges: {answered}", "Q")
        if code == NONE:
            for offset, kind in kinds.items():
                deliveries.answered(what, key, self.member_id, offset, kind, counts.get(offset, 0), asked_at)
                if kind == RENEW:
                    until = asked_at + response.acquisition_lock_timeout_ms / 1000
                    deliveries.renewed(key, self.member_id, offset, until)
        elif code == ErrorCode.INVALID_RECORD_STATE:
            if len(holds) == len(kinds):
                deliveries.refused(what, key, self.member_id, holds)
            self._forget(partition, kinds)
        else:
            self.client.doubt(partition)

    @property
    def _served_or_not(self) -> set[ErrorCode]:
        """Why a node does not serve a queue now. Brokers without storage lose sight of it."""
        sightless = {ErrorCode.KAFKA_STORAGE_ERROR} if self._work.cluster.stores_apart else set()
        return TOPIC_UNKNOWN | {ErrorCode.NOT_LEADER_OR_FOLLOWER} | sightless

    def _forget(self, partition: Partition, offsets: Iterable[int]) -> None:
        """The member has these no more."""
        has = self._has.get(partition, {})
        for offset in offsets:
            has.pop(offset, None)
            key = WindowKey(self.group, partition.topic_id, partition.index)
            self._deliveries.lets_go(key, self.member_id, offset)
        if not has:
            self._has.pop(partition, None)

    # --- sessions -----------------------------------------------------------------------------------------

    def _session(self, node_id: int) -> Session:
        """The one at a node, begun if need be. Raises `NoAnswer`."""
        known = self._sessions.get(node_id)
        if known is None or not known.connection.open:
            self._lose(node_id)
            known = self._sessions[node_id] = Session(self.client.connection(node_id))
        return known

    def _lose(self, node_id: int) -> None:
        """The session is over: what its node has given is anybody's."""
        if self._sessions.pop(node_id, None) is not None:
            self._deliveries.session_over(self.group, self.member_id)
        for partition, has in list(self._has.items()):
            self._forget(partition, [offset for offset, giver in has.items() if giver == node_id])

    async def _ask(self, node_id: int, session: Session, request: Any, version: int) -> Any:
        """The answer; None: the session is over. Raises `NoAnswer`."""
        try:
            response = await session.connection.ask(request, version, patience=self.client.patience())
        except NoAnswer:
            self._lose(node_id)
            for partition in session.followed:
                self.client.doubt(partition)
            raise
        if response.error_code != NONE:
            require(response.error_code in SESSION_OVER, f"node {node_id}: {self.member_id}: {response}", "Q")
            self._lose(node_id)
            return None
        return response


def readable_names(work: Work) -> list[str]:
    """Topics that share groups read: of a compacted one records may be gone."""
    return sorted({topic.name for topic, _ in work.partitions() if "compact" not in topic.settings.cleanup_policy})


def in_batches(kinds: dict[int, int]) -> Iterable[AcknowledgementBatch]:
    """Neighbours in one batch, with a type for each, or one for all where they are alike."""
    offsets = sorted(kinds)
    begin = 0
    for index in range(1, len(offsets) + 1):
        if index == len(offsets) or offsets[index] != offsets[index - 1] + 1:
            part = offsets[begin:index]
            types = tuple(kinds[offset] for offset in part)
            yield AcknowledgementBatch(
                first_offset=part[0], last_offset=part[-1],
                acknowledge_types=types[:1] if len(set(types)) == 1 else types,
            )  # fmt: skip
            begin = index
