"""The committed offsets of one partition's consumer groups: the position of each in each topic-partition.

`Offsets` holds what the log says, and changes in `replay` alone. The functions below read it and produce the records
that change it. An offset belongs to the topic for which it was committed, not to another topic that has the same name
now: the offset of a topic that is gone is *stale*, is never given in an answer, and is removed. A consumer group may
commit any offset, also a lower one; but a commit that was answered is never undone (the log is the order).

Unused offsets, and consumer groups that have nothing left, are forgotten when they are too old. An offset expires
`offsets.retention.minutes` after its consumer group became empty. While consumers of the group are at work, and for
consumers without a group, it expires so long after its commit, but never while the topic is subscribed to. Clients of
old versions may give an offset a time to live of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import UUID

from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState, generation_error
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.broker.consumer_groups.offset_scan import offset_in, topic_id_in
from mainstem.broker.consumer_groups.step import (
    Caller,
    ConsumerGroupRecord,
    ModernRecord,
    OffsetRecord,
    Step,
    StreamsRecord,
    WrittenOffset,
)
from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.kernel import untrack
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    read_offset_commit_value,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from mainstem.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from mainstem.protocol.messages.producer_transactions import TxnOffsetCommitRequest
from mainstem.protocol.schema import ZERO_UUID

NO_OFFSET = -1
COUNTED_FROM = 1_000
"""Offsets of a group whose number is remembered: that of a smaller one is counted in microseconds."""
LOST = ErrorCode.KAFKA_STORAGE_ERROR
"""Clients report this code to their application, whatever they are set to do where no offset is committed."""
GROUP_ID_NOT_FOUND_FROM = 9
"""OffsetCommit version from which the error for a generation of a missing consumer group says just that."""


TopicId = Callable[[str], UUID | None]
"""Gives the id of the topic that has a name now; None: there is none. Zero: not known, it may be any
topic."""


def is_stale(value: OffsetCommitValue, current: UUID | None) -> bool:
    """Whether an offset was committed for another topic than the one that has its name now."""
    return current is None or (value.topic_id != current and ZERO_UUID not in (value.topic_id, current))


_Kept = OffsetCommitValue | bytes
"""A value, or one as the log has it in the form that `offset_scan` takes; read when somebody asks for it."""


def _read(kept: _Kept) -> OffsetCommitValue:
    return read_offset_commit_value(kept) if isinstance(kept, bytes) else kept


class Offsets:
    """Committed offsets by consumer group, topic and partition. If a stretch of the log is lost, an offset
    from before it may have been replaced in it, and a missing offset may have been committed in it: both are
    *doubtful* until they are committed again."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, _Kept]]] = {}
        self.count = 0
        self.incomplete = False
        """Whether a stretch of the log is lost."""
        self._counted: dict[str, int] = {}
        """How many offsets the groups have that have very many."""
        self._sure: set[tuple[str, str, int]] = set()
        """The offsets committed since the lost stretch."""

    def lose(self) -> None:
        """The next stretch of the log is lost."""
        self.incomplete = True
        self._sure.clear()

    def accept(self) -> None:
        """Take the known offsets for all there are."""
        self.incomplete = False
        self._sure.clear()

    def doubtful(self, group_id: str, topic: str, partition: int) -> bool:
        return self.incomplete and (group_id, topic, partition) not in self._sure

    @property
    def doubtful_count(self) -> int:
        """How many of the offsets held here are doubtful."""
        return self.count - len(self._sure) if self.incomplete else 0

    def replay(self, record: OffsetRecord) -> None:
        group_id, topic, partition = record.key.group, record.key.topic, record.key.partition
        if record.value is not None:
            self.keep(group_id, topic, partition, record.value)
            return
        if self.incomplete:
            self._sure.discard((group_id, topic, partition))
        topics = self._groups.get(group_id, {})
        if topics.get(topic, {}).pop(partition, None) is None:
            return
        self.count -= 1
        if group_id in self._counted:
            self._counted[group_id] -= 1
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._groups[group_id]
            self._counted.pop(group_id, None)

    def keep(self, group_id: str, topic: str, partition: int, value: _Kept) -> None:
        """Have an offset: as the log says it, in `replay` and for `WrittenOffset`."""
        if self.incomplete:
            self._sure.add((group_id, topic, partition))
        topics = self._groups.get(group_id)
        if topics is None:
            topics = self._groups[group_id] = {}
            untrack(self._groups)  # else each full collection visits every group: 40 ms with a hundred thousand
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
            untrack(topics)  # of such dictionaries as this; to add one tracks it again
        if partition not in partitions:
            self.count += 1
            if group_id in self._counted:
                self._counted[group_id] += 1
        partitions[partition] = value
        untrack(partitions)  # of numbers and messages; to add something tracks it again

    def adopt(self, key: OffsetCommitKey, topic_id: UUID) -> None:
        """Take an offset without a topic id for one of this topic. That changes no commit, and the next
        snapshot writes it to the log."""
        partitions = self._groups[key.group][key.topic]
        partitions[key.partition] = replace(_read(partitions[key.partition]), topic_id=topic_id)
        untrack(partitions)

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        kept = self._groups.get(group_id, {}).get(topic, {}).get(partition)
        return None if kept is None else _read(kept)

    @property
    def by_group(self) -> dict[str, dict[str, dict[int, Any]]]:
        """All of them, to be freed when nobody commits any more."""
        return self._groups

    def count_of(self, group_id: str) -> int:
        """How many offsets a group has."""
        count = self._counted.get(group_id)
        if count is None:
            count = sum(map(len, self._groups.get(group_id, {}).values()))
            if count >= COUNTED_FROM:
                self._counted[group_id] = count
        return count

    def new_in(self, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> int:
        """How many partitions of a commit the group has no offset of."""
        of_group = self._groups.get(request.group_id, {})
        return sum(
            partition.partition_index not in of_group.get(topic.name, ())
            for topic in request.topics
            for partition in topic.partitions
        )

    def group_ids(self) -> list[str]:
        """The groups that have offsets."""
        return list(self._groups)

    def topics(self, group_id: str) -> list[str]:
        return list(self._groups.get(group_id, ()))

    def partitions(self, group_id: str, topic: str) -> list[tuple[int, OffsetCommitValue]]:
        return [(index, _read(kept)) for index, kept in self._groups.get(group_id, {}).get(topic, {}).items()]

    def numbers(self, group_id: str, topic: str) -> list[tuple[int, int]]:
        """The partitions of a topic with the offsets that are committed."""
        return [
            (index, offset_in(kept) if isinstance(kept, bytes) else kept.offset)
            for index, kept in self._groups.get(group_id, {}).get(topic, {}).items()
        ]

    def indexes(self, group_id: str, topic: str) -> list[int]:
        return list(self._groups.get(group_id, {}).get(topic, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The consumer groups that have offsets of a topic."""
        return [group_id for group_id, topics in self._groups.items() if topic in topics]

    def has(self, group_id: str) -> bool:
        return group_id in self._groups

    def of_other_topics(self, topic_id_of: TopicId) -> Iterator[tuple[OffsetCommitKey, OffsetCommitValue] | None]:
        """Every offset whose topic id is not that of the topic that has the name now; None for each other. Nothing may
        change meanwhile."""
        for group_id, topics in self._groups.items():
            for topic, partitions in topics.items():
                current = topic_id_of(topic)
                id_bytes = b"" if current is None else current.bytes
                for partition, kept in partitions.items():
                    if isinstance(kept, bytes) and topic_id_in(kept) == id_bytes:
                        yield None
                    elif (value := _read(kept)).topic_id != current:
                        yield OffsetCommitKey(group=group_id, topic=topic, partition=partition), value
                    else:
                        yield None

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetCommitKey, OffsetCommitValue]]:
        """Each offset as it is when its turn comes; offsets added meanwhile are left out."""
        for topic in self.topics(group_id):
            for partition in self.indexes(group_id, topic):
                value = self.get(group_id, topic, partition)
                if value is not None:
                    yield OffsetCommitKey(group=group_id, topic=topic, partition=partition), value

    def as_kept(self, group_id: str) -> Iterator[OffsetRecord | WrittenOffset]:
        """The same as records: values that nobody has read are handed on as the log has them."""
        for topic in self.topics(group_id):
            for partition in self.indexes(group_id, topic):
                kept = self._groups.get(group_id, {}).get(topic, {}).get(partition)
                if isinstance(kept, bytes):
                    yield WrittenOffset(group_id, topic, partition, kept)
                elif kept is not None:
                    yield OffsetRecord(OffsetCommitKey(group=group_id, topic=topic, partition=partition), kept)


class NewOffsets(NamedTuple):
    """Whether a group may have offsets of partitions of which it has none yet."""

    offsets: Offsets
    refusal: ErrorCode
    """NONE: it may."""

    def refused(self, group_id: str, topic: str, partition: int) -> bool:
        return self.refusal is not ErrorCode.NONE and self.offsets.get(group_id, topic, partition) is None


def commit_classic(
    step: Step,
    group: ConsumerGroup | None,
    request: OffsetCommitRequest,
    caller: Caller,
    topic_id_of: TopicId,
    *,
    room: bool,
    more: NewOffsets,
) -> OffsetCommitResponse:
    """Commit offsets, for the topics that the request gives by name and id. `group` is None when there is
    none yet; it is made if there is `room` for it."""
    code = _commit_error(group, request, caller)
    if group is None and code is ErrorCode.NONE and not room:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group is not None and code is ErrorCode.NONE and request.member_id in group.members:
        step.restart_session(group, request.member_id)
    return commit(step, code, request, topic_id_of, more)


def commit(
    step: Step, code: ErrorCode, request: OffsetCommitRequest, topic_id_of: TopicId, more: NewOffsets
) -> OffsetCommitResponse:
    """Commit offsets, unless `code` says why the sender may not."""
    topics = []
    for topic in request.topics:
        partitions = []
        known = topic_id_of(topic.name)
        gone = known is None or (topic.topic_id != known and ZERO_UUID not in (topic.topic_id, known))
        for partition in topic.partitions:
            partition_code = code
            if code is ErrorCode.NONE and gone:
                partition_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif code is ErrorCode.NONE and more.refused(request.group_id, topic.name, partition.partition_index):
                partition_code = more.refusal
            elif code is ErrorCode.NONE:
                partition_code = _commit_partition(step, request, topic.name, known or ZERO_UUID, partition)
            partitions.append(
                OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=partition_code)
            )
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return OffsetCommitResponse(topics=tuple(topics))


def _commit_error(group: ConsumerGroup | None, request: OffsetCommitRequest, caller: Caller) -> ErrorCode:
    generation = request.generation_id_or_member_epoch
    if group is None:
        if generation < 0:
            return ErrorCode.NONE
        if caller.version >= GROUP_ID_NOT_FOUND_FROM:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.ILLEGAL_GENERATION
    if generation < 0 and group.state is ConsumerGroupState.EMPTY:
        return ErrorCode.NONE  # a consumer that assigns itself, or an administrator
    if generation < 0 and not request.member_id and request.group_instance_id is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    code = generation_error(group, request.member_id, request.group_instance_id, generation)
    if code is ErrorCode.NONE and group.state is ConsumerGroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return code


def _commit_partition(
    step: Step, request: OffsetCommitRequest, topic: str, topic_id: UUID, partition: OffsetCommitRequestPartition
) -> ErrorCode:
    metadata = partition.committed_metadata or ""
    if len(metadata) > step.config.offset_metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    now_ms = step.now.wall_ms
    expires = request.retention_time_ms >= 0
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=metadata,
        commit_timestamp=now_ms,
        expire_timestamp=now_ms + request.retention_time_ms if expires else -1,
        topic_id=topic_id,
    )
    key = OffsetCommitKey(group=request.group_id, topic=topic, partition=partition.partition_index)
    record = OffsetRecord(key, value)
    untrack(record)  # of messages; some hundred thousand may wait for the log
    step.write(record)
    step.counts.offset_commits += 1
    return ErrorCode.NONE


def fetch(
    offsets: Offsets,
    request: OffsetFetchRequestGroup,
    topic_id_of: TopicId,
    unstable: Set[tuple[str, int]] = frozenset(),
) -> OffsetFetchResponseGroup:
    """The offsets asked for, or all that the consumer group has when no topics are given; unknown and stale
    ones are -1. A doubtful one is an error: on -1 clients would begin anew wherever they are set to, and an
    older offset would silently repeat records. A request for all offsets of a group without known ones is an
    error for the same reason. `unstable`: topics and partitions whose offset an open transaction may replace: for
    these the sender is to ask again."""
    group_id = request.group_id
    if offsets.incomplete and not request.topics and not offsets.has(group_id):
        return OffsetFetchResponseGroup(group_id=group_id, topics=(), error_code=LOST)
    if request.topics is None:
        wanted = [(topic, offsets.indexes(group_id, topic)) for topic in offsets.topics(group_id)]
    else:
        wanted = [(topic.name, list(topic.partition_indexes)) for topic in request.topics]
    topics = []
    for topic, indexes in wanted:
        current = topic_id_of(topic)
        values = ((index, offsets.get(group_id, topic, index)) for index in indexes)
        fetched = tuple(
            _lost(index)
            if offsets.doubtful(group_id, topic, index)
            else _unstable(index)
            if (topic, index) in unstable
            else _fetched(index, None if value is None or is_stale(value, current) else value)
            for index, value in values
        )
        if request.topics is None:
            fetched = tuple(item for item in fetched if item.error_code or item.committed_offset != NO_OFFSET)
            if not fetched:
                continue
        topics.append(OffsetFetchResponseTopics(name=topic, partitions=fetched))
    return OffsetFetchResponseGroup(group_id=group_id, topics=tuple(topics))


def _fetched(partition: int, value: OffsetCommitValue | None) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET if value is None else value.offset,
        committed_leader_epoch=-1 if value is None else value.leader_epoch,
        metadata="" if value is None else value.metadata,
        error_code=ErrorCode.NONE,
    )


def _unstable(partition: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        metadata="",
        error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
    )


def _lost(partition: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition, committed_offset=NO_OFFSET, metadata="", error_code=LOST
    )


def delete(
    step: Step, group: ConsumerGroup | ModernGroup | StreamsGroup, offsets: Offsets, request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Forget offsets of topics that no member consumes."""
    if isinstance(group, ConsumerGroup) and not group.empty and not group.consumers:
        return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP, topics=())
    topics = []
    for topic in request.topics:
        subscribed = group.subscribes_to(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE
        indexes = [partition.partition_index for partition in topic.partitions]
        if not subscribed:
            for index in indexes:
                if offsets.get(group.group_id, topic.name, index) is not None:
                    forget(step, OffsetCommitKey(group=group.group_id, topic=topic.name, partition=index))
        answers = (OffsetDeleteResponsePartition(partition_index=i, error_code=code) for i in indexes)
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=tuple(answers)))
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=tuple(topics))


def forget(step: Step, key: OffsetCommitKey) -> None:
    step.write(OffsetRecord(key, None))


_MS_PER_MINUTE = 60_000


def expire(step: Step, group: ConsumerGroup | ModernGroup | StreamsGroup, offsets: Offsets) -> None:
    """Forget a consumer group's expired offsets, and the group itself when it is empty and has none left. If a part of
    the log is lost nothing expires: the lost part may hold a later commit, which would be undone if that part were
    found again."""
    if offsets.incomplete:
        return
    for key, value in list(offsets.of_group(group.group_id)):
        if not group.subscribes_to(key.topic) and _expired(step, group, value):
            forget(step, key)
            step.counts.offset_expirations += 1
    awaited = isinstance(group, ConsumerGroup) and group.pending_members
    if group.empty and not awaited and not offsets.has(group.group_id):
        delete_group(step, group, offsets)


def delete_group(step: Step, group: ConsumerGroup | ModernGroup | StreamsGroup, offsets: Offsets) -> None:
    """Forget an empty consumer group with all its offsets."""
    assert group.empty
    for key, _ in list(offsets.of_group(group.group_id)):
        forget(step, key)
    if isinstance(group, ModernGroup):
        for part in group.tombstones():
            step.write(ModernRecord(part, None))
        return
    if isinstance(group, StreamsGroup):
        for streams_part in group.tombstones():
            step.write(StreamsRecord(streams_part, None))
        return
    for member_id in group.pending_members:
        step.stop_timer(TimerKind.SESSION, group, member_id)
    step.write(ConsumerGroupRecord(GroupMetadataKey(group=group.group_id), None))


def _expired(step: Step, group: ConsumerGroup | ModernGroup | StreamsGroup, value: OffsetCommitValue) -> bool:
    now_ms = step.now.wall_ms
    since_ms = value.commit_timestamp
    if isinstance(group, ConsumerGroup) and group.protocol_type is not None:
        if group.state is ConsumerGroupState.EMPTY:
            if group.persisted is not None and group.persisted.current_state_timestamp >= 0:
                since_ms = group.persisted.current_state_timestamp
        elif group.state is not ConsumerGroupState.STABLE or not group.subscriptions_known:
            return False
    if value.expire_timestamp >= 0:
        return now_ms >= value.expire_timestamp
    return now_ms - since_ms >= step.config.offsets_retention_minutes * _MS_PER_MINUTE
