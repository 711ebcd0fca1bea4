"""The offsets that open transactions commit for one partition's consumer groups.

Such an offset waits under its producer's id. When the transaction ends, its coordinator has a marker applied: the
offset is committed like any other, or is dropped. Until then the group's offset is *unstable*: who asks for a stable
one is told to ask again (KIP-447).

A producer is asked for at its transaction's coordinator before its offsets are taken in. The transaction may end
meanwhile, and its marker be applied before its offsets arrive, which would wait forever then. So the machine counts the
markers: an offset is refused where a marker of its producer was applied since the question was asked, or where a later
coordinator than the one that answered had one applied.

Producers of older clients have the same epoch in one transaction after the other. A marker of a coordinator that was
deposed, and stood still meanwhile, could end the next transaction's offsets. So the machine knows the coordinator epoch
of each producer's last marker, since the log was loaded, and refuses markers of earlier coordinators. Since a load an
offset that waits tells it: it has the epoch of the coordinator that knew its transaction to be open, and only that one
or a later one ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState, generation_error
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.offsets import TopicId, is_stale
from mainstem.broker.consumer_groups.step import OffsetRecord, PendingRecord, Step
from mainstem.broker.consumer_groups.streams.streams_commits import txn_commit_error
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import (
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetKey,
    PendingOffsetValue,
)
from mainstem.protocol.messages.producer_transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from mainstem.protocol.schema import ZERO_UUID

ENDED_AT_ONCE = 1_000
"""Offsets of a transaction that come into force in one event: some milliseconds of work."""

ENDED_MAX = 10_000
"""Producers whose last markers are remembered: those of the last seconds."""

Waiting = dict[PendingOffsetKey, PendingOffsetValue]


class _Marker(NamedTuple):
    """`number` counts the markers since the log was loaded; the epochs are the producer's and its coordinator's."""

    number: int
    epoch: int
    coordinator_epoch: int


NO_MARKER = _Marker(0, -1, -1)


class PendingOffsets:
    """Pending offsets by consumer group and by producer; `replay` alone changes what is pending."""

    def __init__(self) -> None:
        self._groups: dict[str, Waiting] = {}
        self._producers: dict[int, Waiting] = {}
        self.count = 0
        self.markers = 0
        """Markers applied since the log was loaded."""
        self._ended: dict[int, _Marker] = {}
        """By producer id its last marker, the oldest first."""
        self._forgotten_upto = 0
        """The number of the last marker that is not remembered any more."""

    def replay(self, record: PendingRecord) -> None:
        key, value = record
        in_group = self._groups.setdefault(key.group, {})
        of_producer = self._producers.setdefault(key.producer_id, {})
        self.count -= in_group.pop(key, None) is not None
        of_producer.pop(key, None)
        if value is not None:
            in_group[key] = of_producer[key] = value
            self.count += 1
        if not in_group:
            del self._groups[key.group]
        if not of_producer:
            del self._producers[key.producer_id]

    def of_producer(self, producer_id: int) -> list[tuple[PendingOffsetKey, PendingOffsetValue]]:
        return list(self._producers.get(producer_id, {}).items())

    def of_group(self, group_id: str) -> Iterator[tuple[PendingOffsetKey, PendingOffsetValue]]:
        """As they are when their turn comes."""
        for key in list(self._groups.get(group_id, ())):
            value = self._groups.get(group_id, {}).get(key)
            if value is not None:
                yield key, value

    def of_topic(self, topic: str) -> list[tuple[PendingOffsetKey, PendingOffsetValue]]:
        return [item for waiting in self._groups.values() for item in waiting.items() if item[0].topic == topic]

    def unstable(self, group_id: str) -> set[tuple[str, int]]:
        """The topics and partitions of a group for which offsets wait."""
        return {(key.topic, key.partition) for key in self._groups.get(group_id, ())}

    def has(self, group_id: str) -> bool:
        return group_id in self._groups

    def groups(self) -> list[str]:
        return list(self._groups)

    def producers(self) -> list[tuple[int, int, int]]:
        """Id, epoch and the time of the last offset, of each producer that has some waiting."""
        return [
            (
                producer_id,
                max(value.producer_epoch for value in waiting.values()),
                max(value.commit_timestamp for value in waiting.values()),
            )
            for producer_id, waiting in self._producers.items()
        ]

    def ended(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """A marker of the producer is applied."""
        self.markers += 1
        before = self._ended.pop(producer_id, NO_MARKER)
        self._ended[producer_id] = _Marker(self.markers, epoch, max(coordinator_epoch, before.coordinator_epoch))
        if len(self._ended) > ENDED_MAX:
            oldest = next(iter(self._ended))
            self._forgotten_upto = self._ended.pop(oldest).number

    def is_deposed(self, producer_id: int, coordinator_epoch: int) -> bool:
        """Whether a later coordinator of transactions has ended one of this producer: a marker of an earlier one was on
        its way for long, and means a transaction that is over. Administrators have no epoch, -1."""
        return 0 <= coordinator_epoch < self._ended.get(producer_id, NO_MARKER).coordinator_epoch

    def refusal(self, producer_id: int, epoch: int, asked_at: int, coordinator_epoch: int) -> ErrorCode:
        """Whether offsets of a producer came too late, if its coordinator, of this epoch, was asked after so many
        markers; -1: before the log was loaded, which knows nothing of the markers before. A transaction that a deposed
        coordinator takes for open may be over: its producer is to ask again."""
        number, last_epoch, _ = self._ended.get(producer_id, NO_MARKER)
        if epoch < last_epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if asked_at < 0:  # the log has been loaded since
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        overtaken = number > asked_at or self._forgotten_upto > asked_at
        if overtaken or self.is_deposed(producer_id, coordinator_epoch):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.NONE


def commit_error(
    group: ConsumerGroup | ModernGroup | StreamsGroup | None, request: TxnOffsetCommitRequest
) -> ErrorCode:
    """Whether the consumer that a transactional producer names is a member of its group (KIP-447); older producers name
    none."""
    generation = request.generation_id
    named = generation >= 0 or bool(request.member_id) or request.group_instance_id is not None
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
    if not named:
        return ErrorCode.NONE
    if isinstance(group, StreamsGroup):
        return txn_commit_error(group, request)
    if isinstance(group, ModernGroup):
        if generation < 0 and group.empty:
            return ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if generation == member.current.epoch else ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is ConsumerGroupState.EMPTY:
        return ErrorCode.NONE
    return generation_error(group, request.member_id, request.group_instance_id, generation)


def commit(
    step: Step, code: ErrorCode, request: TxnOffsetCommitRequest, coordinator_epoch: int, topic_id_of: TopicId
) -> TxnOffsetCommitResponse:
    """Have offsets wait for the end of their transaction, unless `code` says why that cannot be. `coordinator_epoch`:
    that of the coordinator that has said that it is open; -1: it did not say."""
    topics = []
    for topic in request.topics:
        known = topic_id_of(topic.name)
        partitions = []
        for partition in topic.partitions:
            partition_code = code
            if code is ErrorCode.NONE and known is None:
                partition_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif code is ErrorCode.NONE and len(partition.committed_metadata or "") > (
                step.config.offset_metadata_bytes_max
            ):
                partition_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            elif code is ErrorCode.NONE:
                _wait(step, request, topic.name, known or ZERO_UUID, partition, coordinator_epoch)
            index = partition.partition_index
            partitions.append(TxnOffsetCommitResponsePartition(partition_index=index, error_code=partition_code))
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return TxnOffsetCommitResponse(topics=tuple(topics))


def _wait(
    step: Step,
    request: TxnOffsetCommitRequest,
    topic: str,
    topic_id: UUID,
    partition: TxnOffsetCommitRequestPartition,
    coordinator_epoch: int,
) -> None:
    key = PendingOffsetKey(
        group=request.group_id,
        topic=topic,
        partition=partition.partition_index,
        producer_id=request.producer_id,
    )
    value = PendingOffsetValue(
        producer_epoch=request.producer_epoch,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=step.now.wall_ms,
        topic_id=topic_id,
        coordinator_epoch=coordinator_epoch,
    )
    step.write(PendingRecord(key, value))


def end(
    step: Step,
    pending: PendingOffsets,
    producer_id: int,
    epoch: int,
    coordinator_epoch: int,
    *,
    commit: bool,
    topic_id_of: TopicId,
) -> ErrorCode:
    """Apply a transaction's marker; where there is more to do, the answer is COORDINATOR_LOAD_IN_PROGRESS, and it is to
    be applied again, which never does harm."""
    if pending.is_deposed(producer_id, coordinator_epoch):
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    waiting = pending.of_producer(producer_id)
    if any(value.producer_epoch > epoch for _, value in waiting):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if any(0 <= coordinator_epoch < value.coordinator_epoch for _, value in waiting):
        return ErrorCode.TRANSACTION_COORDINATOR_FENCED
    for key, value in waiting[:ENDED_AT_ONCE]:
        if commit:
            offset = OffsetCommitValue(
                offset=value.offset,
                leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                commit_timestamp=value.commit_timestamp,
                topic_id=value.topic_id,
            )
            if not is_stale(offset, topic_id_of(key.topic)):
                target = OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition)
                step.write(OffsetRecord(target, offset))
                step.counts.offset_commits += 1
        step.write(PendingRecord(key, None))
    if len(waiting) > ENDED_AT_ONCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    pending.ended(producer_id, epoch, coordinator_epoch)
    return ErrorCode.NONE
