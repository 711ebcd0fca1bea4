"""Topics that are deleted and made again under the same name, and what groups have committed in them.

H, of these: an offset that was committed in a topic is told to nobody once somebody was told that the topic is deleted,
whoever has its name then, but by a broker that knows that it lacks news of the metadata, and has waited for them. One
actor does it all, one thing after the other, and gives a name up when it is not certain what became of something. Each
life of a name has offsets of its own.
"""

from __future__ import annotations

from uuid import UUID

from tests.simulation.oracle import require
from tests.simulation.whole.admin import ELSEWHERE
from tests.simulation.whole.clients import NONE, REBORN, TOPIC_UNKNOWN, Work
from tests.simulation.whole.connection import NoAnswer

from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState

NOTHING = -1
OFFSETS_PER_LIFE = 1_000
LIVES_MAX = 12
"""A topic that is gone is remembered for the rest of the run."""
TRIES_MAX = 40


class Uncertain(Exception):
    """Nobody can tell what became of what was asked for."""


class Reborn:
    def __init__(self, work: Work, group: str) -> None:
        self._work = work
        self._rng = work.rng
        self._group = group
        self._client = work.client()
        self._lives = 0
        self._names = 0
        self._committed = NOTHING
        """In the topic that bears the name now."""

    async def run(self) -> None:
        while not self._work.ending and self._lives < LIVES_MAX:
            self._names += 1
            name = f"{REBORN}-{self._group}-{self._names}"
            self._committed = NOTHING
            try:
                while not self._work.ending and self._lives < LIVES_MAX:
                    await self._live(name)
            except Uncertain:
                await self._work.pause(0.1, 0.5)

    async def _live(self, name: str) -> None:
        """Make the topic, commit, ask, delete it, and ask again."""
        self._lives += 1
        topic_id = await self._create(name)
        for number in range(self._rng.choice([1, 1, 3])):
            await self._ask(name)
            await self._commit(name, topic_id, self._lives * OFFSETS_PER_LIFE + number)
            await self._work.pause(0.0, 0.1, 1.0)
        await self._ask(name)
        await self._delete(name, topic_id)
        self._committed = NOTHING
        for _ in range(self._rng.choice([0, 1, 2])):
            await self._ask(name)
            await self._work.pause(0.0, 0.3)

    async def _create(self, name: str) -> UUID:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=-1, assignments=(), configs=())
        try:
            asked = CreateTopicsRequest(topics=(topic,))
            response = await self._client.ask(self._client.any_node(), asked, 7, patience=30)
        except NoAnswer:
            raise Uncertain from None
        (answer,) = response.topics
        if answer.error_code != NONE:
            raise Uncertain
        return UUID(bytes=answer.topic_id.bytes)

    async def _delete(self, name: str, topic_id: UUID) -> None:
        self._work.cluster.ledger.unwanted(topic_id)
        state = DeleteTopicState(name=name)
        request = DeleteTopicsRequest(topics=(state,), timeout_ms=30_000)
        try:
            response = await self._client.ask(self._client.any_node(), request, 6, patience=30)
        except NoAnswer:
            raise Uncertain from None
        if response.responses[0].error_code != NONE:
            raise Uncertain
        self._work.cluster.ledger.fates[topic_id].gone = True

    async def _commit(self, name: str, topic_id: UUID, offset: int) -> None:
        item = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
        version = self._rng.choice([8, 10])
        topic = (
            OffsetCommitRequestTopic(topic_id=topic_id, partitions=(item,))
            if version >= 10
            else OffsetCommitRequestTopic(name=name, partitions=(item,))
        )
        request = OffsetCommitRequest(group_id=self._group, topics=(topic,))
        for _ in range(TRIES_MAX):
            try:
                node_id = await self._client.coordinator(self._group)
                response = await self._client.ask(node_id, request, version)
            except NoAnswer:
                raise Uncertain from None  # it may arrive yet
            code = response.topics[0].partitions[0].error_code
            if code == NONE:
                self._committed = offset
                return
            allowed = ELSEWHERE | TOPIC_UNKNOWN
            require(code in allowed, f"node {node_id}: commit of {self._group} in {name}: {ErrorCode(code)}")
            self._client.doubt_coordinator(self._group)
            await self._work.pause(0.1, 0.5)
        raise Uncertain

    async def _ask(self, name: str) -> None:
        """The answer must be of the topic that bears the name now, if any does."""
        everything = self._rng.random() < 0.5
        topics = None if everything else (OffsetFetchRequestTopics(name=name, partition_indexes=(0,)),)
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=self._group, topics=topics),))
        try:
            node_id = await self._client.coordinator(self._group)
            behind = self._is_behind(node_id)
            response = await self._client.ask(node_id, request, 8)
        except NoAnswer:
            self._client.doubt_coordinator(self._group)
            return
        (answer,) = response.groups
        if answer.error_code != NONE:
            require(answer.error_code in ELSEWHERE, f"node {node_id}: offsets of {self._group}: {answer}")
            self._client.doubt_coordinator(self._group)
            return
        self._work.offsets_asked += 1
        told = [item for topic in answer.topics if topic.name == name for item in topic.partitions]
        offset = told[0].committed_offset if told else NOTHING
        self._work.reborn_asked += 1
        what = f"node {node_id}: committed offset of {self._group} in {name} is {offset}"
        if offset != self._committed and (behind or self._is_behind(node_id)):
            return  # it has waited for the metadata in vain, and says what it knows
        require(offset == self._committed, f"{what}, of life {self._lives} it is {self._committed}", "H")

    def _is_behind(self, node_id: int) -> bool:
        """Whether a node knows that it lacks news of the metadata, which no member tells it."""
        roles = self._work.cluster.serving_clients[node_id].roles
        return roles is not None and roles.nameserver.waits.is_behind
