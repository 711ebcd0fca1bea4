"""Clients that commit offsets, and those that change topics."""

from __future__ import annotations

from tests.simulation.oracle import require
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import NONE, TOPIC_UNKNOWN, Work
from tests.simulation.whole.connection import NoAnswer

from mainstem.model import FACTOR_OF_CLUSTER, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
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
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Answers of a node that does not keep the group now."""


class Committer:
    """Commits growing offsets of one group, each until it is acknowledged, and nobody else does."""

    def __init__(self, work: Work, group: str) -> None:
        self._work = work
        self._rng = work.rng
        self._group = group
        self._client = work.client()

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.01, 0.1, 0.5)
            if there := self._work.partitions():
                await self.commit(self._rng.sample(there, min(len(there), self._rng.choice([1, 1, 3]))))

    async def commit(self, chosen: list[tuple[Topic, int]]) -> None:
        ledger = self._work.cluster.ledger
        wanted: dict[Partition, tuple[Topic, int]] = {}
        for topic, partition in chosen:
            tried = ledger.offset((self._group, topic.topic_id, partition)).tried
            wanted[Partition(topic.topic_id, partition)] = topic, max(0, tried + self._rng.choice([1, 1, 10]))
        while wanted and not self._work.ending:
            await self._try(wanted)
            for place in [place for place, (topic, _) in wanted.items() if not self._work.wanted(topic)]:
                del wanted[place]
            if wanted:
                await self._work.pause(0.0, 0.05, 0.2)

    async def _try(self, wanted: dict[Partition, tuple[Topic, int]]) -> None:
        """Those that are acknowledged leave `wanted`."""
        ledger, version = self._work.cluster.ledger, self._rng.choice([8, 9, 10])
        topics = []
        for place, (topic, offset) in wanted.items():
            ledger.committing((self._group, *place), offset)
            item = OffsetCommitRequestPartition(
                partition_index=place.index, committed_offset=offset, committed_metadata=None
            )
            if version >= 10:
                topics.append(OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=(item,)))
            else:
                topics.append(OffsetCommitRequestTopic(name=topic.name, partitions=(item,)))
        request = OffsetCommitRequest(group_id=self._group, topics=tuple(topics))
        try:
            node_id = await self._client.coordinator(self._group)
            response = await self._client.ask(node_id, request, version)
        except NoAnswer:
            self._client.doubt_coordinator(self._group)
            return
        for (place, (topic, offset)), answered in zip(list(wanted.items()), response.topics, strict=True):
            (item,) = answered.partitions
            allowed = ELSEWHERE | TOPIC_UNKNOWN | {NONE}
            require(item.error_code in allowed, f"node {node_id}: commit of {self._group} in {topic.name}: {item}")
            if item.error_code == NONE:
                self._work.commits += 1
                ledger.committed((self._group, *place), offset)
                del wanted[place]
            elif item.error_code in ELSEWHERE:
                self._client.doubt_coordinator(self._group)


class Asker:
    """Asks for committed offsets."""

    def __init__(self, work: Work, groups: list[str]) -> None:
        self._work = work
        self._rng = work.rng
        self._groups = groups
        self._client = work.client()

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.02, 0.2, 0.5)
            await self.ask(self._rng.choice(self._groups), everything=self._rng.random() < 0.5)

    async def ask(self, group: str, *, everything: bool) -> bool:
        """Whether there was an answer. `everything`: not of some partitions only."""
        ledger = self._work.cluster.ledger
        floors = {place: kept.floor for place, kept in ledger.offsets.items() if place[0] == group}
        asked = list(floors)
        if not everything:
            asked = self._rng.sample(asked, min(len(asked), 2))
        names = {place[1]: ledger.fates[place[1]].topic.name for place in asked}
        ids = {name: topic_id for topic_id, name in names.items()}
        topics = None
        if not everything:
            topics = tuple(
                OffsetFetchRequestTopics(
                    name=names[topic_id], topic_id=topic_id,
                    partition_indexes=tuple(place[2] for place in asked if place[1] == topic_id),
                ) for topic_id in names
            )  # fmt: skip
        version = self._rng.choice([8, 9])
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=topics),))
        try:
            node_id = await self._client.coordinator(group)
            response = await self._client.ask(node_id, request, version)
        except NoAnswer:
            self._client.doubt_coordinator(group)
            return False
        (answer,) = response.groups
        if answer.error_code != NONE:
            require(answer.error_code in ELSEWHERE, f"node {node_id}: offsets of {group}: {answer}")
            self._client.doubt_coordinator(group)
            return False
        self._work.offsets_asked += 1
        told = {
            (group, ids[topic.name], item.partition_index): item
            for topic in answer.topics
            for item in topic.partitions
            if topic.name in ids
        }
        for place in asked:
            item = told.get(place)
            if item is not None and item.error_code:
                require(item.error_code in TOPIC_UNKNOWN, f"node {node_id}: offset of {group}: {item}")
                continue
            offset = -1 if item is None else item.committed_offset
            ledger.check_offset(f"node {node_id}", place, floors[place], offset)
        return True


CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"retention.ms": "-1", "segment.bytes": "500"},
    {"retention.ms": "3000"},
    {"retention.ms": "600000"},
    {"retention.ms": "-1", "retention.bytes": "2000"},
    {"retention.ms": "-1", "retention.bytes": "20000", "retention.records": "40", "segment.bytes": "3000"},
    {"min.insync.replicas": "2", "retention.ms": "-1"},
    {"min.insync.replicas": "3", "retention.ms": "-1"},
)
TOPICS_MAX = 6


class Admin:
    """Creates and deletes topics, and deletes records."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._rng = work.rng
        self._client = work.client()

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.1, 0.5, 2.0)
            there = self._work.partitions()
            doing = self._rng.random()
            if not there or (doing < 0.2 and self._work.topics_ever() < TOPICS_MAX):
                await self.create()
            elif doing < 0.3 and len(self._work.kept()) > 1:
                await self.delete(self._rng.choice(there)[0])
            else:
                await self.delete_records(*self._rng.choice(there))

    async def create(self, partitions: int = 0, configs: dict[str, str] | None = None) -> None:
        """A topic, perhaps; some node's metadata will tell."""
        chosen = self._rng.choice(CONFIGS) if configs is None else configs
        compaction = self._work.compaction
        if configs is None and compaction is not None and compaction.random() < 0.5:
            chosen = {**self._work.how_to_compact(), "retention.ms": "-1"}
        demanded, factor = int(chosen.get("min.insync.replicas", "1")), self._work.replication_factor()
        topic = CreatableTopic(
            name=self._work.new_name(),
            num_partitions=partitions or self._rng.randint(1, 3),
            replication_factor=factor if factor >= demanded else FACTOR_OF_CLUSTER,
            assignments=(),
            configs=tuple(CreatableTopicConfig(name=name, value=chosen[name]) for name in chosen),
        )
        try:
            response = await self._client.ask(
                self._client.any_node(), CreateTopicsRequest(topics=(topic,)), 7, patience=30
            )
        except NoAnswer:
            return
        (answer,) = response.topics
        allowed = {NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR}
        require(answer.error_code in allowed, f"creating {topic.name}: {answer}")
        known = {fate.topic.topic_id for fate in self._work.cluster.ledger.fates.values()}
        require(answer.error_code != NONE or answer.topic_id in known, f"{topic.name} was created, and no node has it")

    async def delete(self, topic: Topic) -> bool:
        """Whether it is certain."""
        ledger, version = self._work.cluster.ledger, self._rng.choice([5, 6])
        ledger.unwanted(topic.topic_id)
        if version >= 6:
            request = DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=topic.topic_id),), timeout_ms=30_000)
        else:
            request = DeleteTopicsRequest(topic_names=(topic.name,), timeout_ms=30_000)
        node_id = self._client.any_node()
        try:
            response = await self._client.ask(node_id, request, version, patience=30)
        except NoAnswer:
            return False
        (answer,) = response.responses
        allowed = TOPIC_UNKNOWN | {
            NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR,
        }  # fmt: skip
        require(answer.error_code in allowed, f"node {node_id}: deleting {topic.name}: {answer}")
        if answer.error_code == NONE:
            ledger.fates[topic.topic_id].gone = True
        return bool(answer.error_code == NONE)

    async def delete_records(self, topic: Topic, partition: int) -> None:
        if "delete" not in topic.settings.cleanup_policy:
            return
        ledger, place = self._work.cluster.ledger, Partition(topic.topic_id, partition)
        queue = self._work.cluster.history.queue(topic.queue_id(partition))
        offset = self._rng.choice([-1, queue.log_start, queue.end, self._rng.randint(queue.log_start, queue.end)])
        asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
        topics = (DeleteRecordsTopic(name=topic.name, partitions=(asked,)),)
        try:
            led = await self._client.leader(topic.name, place)
            ledger.wants_start(topic.topic_id, partition, 1 << 60 if offset == -1 else offset)
            request = DeleteRecordsRequest(topics=topics, timeout_ms=30_000)
            response = await self._client.ask(led.node_id, request, 2)
        except NoAnswer:
            self._client.doubt(place)
            return
        ((answer,),) = [answered.partitions for answered in response.topics]
        what = f"node {led.node_id}: deleting records of {topic.name}-{partition} before {offset}: {answer}"
        if answer.error_code == NONE:
            require(answer.low_watermark >= offset, what)
            if self._work.wanted(topic):
                ledger.told_start(topic.topic_id, partition, answer.low_watermark)
            return
        allowed = TOPIC_UNKNOWN | {
            ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR,
        }  # fmt: skip
        require(answer.error_code in allowed, what)
        self._client.doubt(place)
