"""OffsetCommit. Partitions that do not exist are refused here; the rest goes to the coordinator by name."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_FROM = 10


async def handle(broker: Broker, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    by_id = call.version >= TOPIC_IDS_FROM
    known: list[OffsetCommitRequestTopic] = []
    codes: dict[tuple[str, int], int] = {}
    names: list[str | None] = []
    for asked in request.topics:
        topic = broker.metadata.topic_by_id(asked.topic_id) if by_id else broker.metadata.topic(asked.name)
        names.append(None if topic is None else topic.name)
        if topic is None:
            continue
        there = tuple(item for item in asked.partitions if 0 <= item.partition_index < topic.partitions)
        if there:
            known.append(replace(asked, name=topic.name, topic_id=topic.topic_id, partitions=there))
    if known:
        response = await broker.groups.commit_offsets(replace(request, topics=tuple(known)), call)
        codes = {
            (topic.name, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        }
    topics = []
    for asked, name in zip(request.topics, names, strict=True):
        by_unknown_id = by_id and name is None
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partitions = tuple(
            OffsetCommitResponsePartition(
                partition_index=item.partition_index,
                error_code=codes.get((name or "", item.partition_index), unknown),
            )
            for item in asked.partitions
        )
        topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=partitions)
        )
    return OffsetCommitResponse(topics=tuple(topics))
