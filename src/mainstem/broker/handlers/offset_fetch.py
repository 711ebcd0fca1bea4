"""OffsetFetch, brought into the form of version 8 and later: several groups, topics by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

GROUP_ERROR_FROM = 2
"""Before this version an error of the whole group stands at each partition."""

SEVERAL_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10
NO_OFFSET = -1


async def handle(broker: Broker, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    if call.version < SEVERAL_GROUPS_FROM:
        return await _fetch_one(broker, request, call)
    fetch = _fetch_by_id if call.version >= TOPIC_IDS_FROM else _fetch_by_name
    fetched = await asyncio.gather(*(fetch(broker, group) for group in request.groups))  # confirmed together
    return OffsetFetchResponse(groups=tuple(fetched))


async def _fetch_by_name(broker: Broker, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    return await broker.groups.fetch_offsets(group)


async def _fetch_by_id(broker: Broker, group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    """Topics that no longer exist have no id to be named by: asked for, they are refused; else left out."""
    named = group
    refused: list[OffsetFetchResponseTopics] = []
    if group.topics is not None:
        topics = []
        for asked in group.topics:
            topic = broker.metadata.topic_by_id(asked.topic_id)
            if topic is None:
                refused.append(_unknown(asked))
            else:
                topics.append(replace(asked, name=topic.name))
        named = replace(group, topics=tuple(topics))
    fetched = await broker.groups.fetch_offsets(named)
    found = []
    for answer in fetched.topics:
        topic_id = _topic_id(broker, answer.name)
        if topic_id is not None:
            found.append(replace(answer, topic_id=topic_id))
    return replace(fetched, topics=(*found, *refused))


def _topic_id(broker: Broker, name: str) -> UUID | None:
    topic = broker.metadata.topic(name)
    return None if topic is None else topic.topic_id


def _unknown(asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    partitions = tuple(
        OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
        )
        for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopics(topic_id=asked.topic_id, partitions=partitions)


async def _fetch_one(broker: Broker, request: OffsetFetchRequest, call: Call) -> OffsetFetchResponse:
    topics = None
    if request.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        )
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    fetched = await broker.groups.fetch_offsets(group)
    if fetched.error_code and call.version < GROUP_ERROR_FROM:
        return OffsetFetchResponse(topics=_refused(request, fetched.error_code))
    answers = []
    for topic in fetched.topics:
        partitions = tuple(
            OffsetFetchResponsePartition(
                partition_index=item.partition_index,
                committed_offset=item.committed_offset,
                committed_leader_epoch=item.committed_leader_epoch,
                metadata=item.metadata,
                error_code=item.error_code,
            )
            for item in topic.partitions
        )
        answers.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return OffsetFetchResponse(topics=tuple(answers), error_code=fetched.error_code)


def _refused(request: OffsetFetchRequest, code: int) -> tuple[OffsetFetchResponseTopic, ...]:
    topics = []
    for topic in request.topics or ():
        partitions = tuple(
            OffsetFetchResponsePartition(
                partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=code
            )
            for index in topic.partition_indexes
        )
        topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
    return tuple(topics)
