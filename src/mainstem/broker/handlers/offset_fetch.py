"""OffsetFetch, brought into the form of version 8 and later: several consumer groups, topics by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from mainstem.broker.broker import Broker
from mainstem.broker.partitions import PARTITIONS_PER_STEP, TopicsOfStep, in_steps
from mainstem.broker.request_context import RequestContext
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
from mainstem.security.acls.acl import Operation, ResourceKind

GROUP_ERROR_FROM = 2
"""Before this version an error of the whole consumer group stands at each partition."""

SEVERAL_GROUPS_FROM = 8
TOPIC_IDS_FROM = 10

GROUPS_AT_ONCE = 16
"""Each takes a tenth of a millisecond of the event loop, more with a long name, and all wait together for the
confirmation that their coordinator still leads."""

NO_OFFSET = -1


async def handle(broker: Broker, request: OffsetFetchRequest, call: RequestContext) -> OffsetFetchResponse:
    if call.version < SEVERAL_GROUPS_FROM:
        return await _fetch_one(broker, request, call)
    fetch = _fetch_by_id if call.version >= TOPIC_IDS_FROM else _fetch_by_name
    stable = request.require_stable
    fetched: list[OffsetFetchResponseGroup] = []
    for first in range(0, len(request.groups), GROUPS_AT_ONCE):
        if first:
            await broker.turns.take()
        some = request.groups[first : first + GROUPS_AT_ONCE]
        fetched += await asyncio.gather(*(fetch(broker, group, call, stable) for group in some))
    return OffsetFetchResponse(groups=tuple(fetched))


async def _fetch_by_name(
    broker: Broker, group: OffsetFetchRequestGroup, call: RequestContext, stable: bool
) -> OffsetFetchResponseGroup:
    """Fetch what the client may see."""
    if not broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.GROUP, group.group_id):
        return OffsetFetchResponseGroup(
            group_id=group.group_id, topics=(), error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
        )
    if broker.authorizer is None:
        return await _fetch(broker, group, stable)
    pace = broker.turns.pace(PARTITIONS_PER_STEP)
    if group.topics is None:
        everything = await _fetch(broker, group, stable)
        shown = []
        for topic in everything.topics:
            await pace.step()
            if _may_describe(broker, call, topic.name):
                shown.append(topic)
        return replace(everything, topics=tuple(shown))
    asked, refused = [], []
    for wanted in group.topics:
        await pace.step(1 + len(wanted.partition_indexes))
        if _may_describe(broker, call, wanted.name):
            asked.append(wanted)
        else:
            refused.append(_answered(wanted, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    fetched = await _fetch(broker, replace(group, topics=tuple(asked)), stable)
    return fetched if fetched.error_code else replace(fetched, topics=(*fetched.topics, *refused))


def _may_describe(broker: Broker, call: RequestContext, topic: str) -> bool:
    return broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, topic)


async def _fetch(broker: Broker, group: OffsetFetchRequestGroup, stable: bool) -> OffsetFetchResponseGroup:
    """Fetch in several steps where there are many partitions. An error in one of them is the whole consumer
    group's."""
    everything = group.topics is None
    if everything:
        group = await broker.groups.offsets.name_committed(group)
    if group.topics is None:
        return await broker.groups.offsets.fetch_offsets(group, require_stable=stable)
    found: list[OffsetFetchResponseTopics] = []
    fetched = OffsetFetchResponseGroup(group_id=group.group_id, topics=())
    steps = list(in_steps(group.topics, "partition_indexes")) or [TopicsOfStep([], continued=False)]
    for number, step in enumerate(steps):
        if number:
            await broker.turns.take()
        fetched = await broker.groups.offsets.fetch_offsets(
            replace(group, topics=tuple(step.topics)), require_stable=stable
        )
        if fetched.error_code:
            return fetched
        answers = list(fetched.topics)
        if everything:
            answers = [topic for topic in map(_those_there, answers) if topic.partitions]
        if step.continued and found and answers and found[-1].name == answers[0].name:
            rest = answers.pop(0)
            found[-1] = replace(found[-1], partitions=(*found[-1].partitions, *rest.partitions))
        found += answers
    return replace(fetched, topics=tuple(found))


def _those_there(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopics:
    """The answer without the offsets that were forgotten since the request was expanded."""
    there = [it for it in topic.partitions if it.error_code or it.committed_offset != NO_OFFSET]
    return topic if len(there) == len(topic.partitions) else replace(topic, partitions=tuple(there))


async def _fetch_by_id(
    broker: Broker, group: OffsetFetchRequestGroup, call: RequestContext, stable: bool
) -> OffsetFetchResponseGroup:
    """Topics that no longer exist have no id: they are refused if asked for, and else left out."""
    named = group
    refused: list[OffsetFetchResponseTopics] = []
    if group.topics is not None:
        topics = []
        for asked in group.topics:
            topic = broker.metadata.topic_by_id(asked.topic_id)
            if topic is None:
                refused.append(_answered(asked, ErrorCode.UNKNOWN_TOPIC_ID))
            else:
                topics.append(replace(asked, name=topic.name))
        named = replace(group, topics=tuple(topics))
    fetched = await _fetch_by_name(broker, named, call, stable)
    if fetched.error_code:
        return fetched
    found = []
    for answer in fetched.topics:
        topic_id = _topic_id(broker, answer.name)
        if topic_id is not None:
            found.append(replace(answer, topic_id=topic_id))
    return replace(fetched, topics=(*found, *refused))


def _topic_id(broker: Broker, name: str) -> UUID | None:
    topic = broker.metadata.topic(name)
    return None if topic is None else topic.topic_id


def _answered(asked: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    partitions = tuple(
        OffsetFetchResponsePartitions(
            partition_index=index,
            committed_offset=NO_OFFSET,
            metadata="",
            error_code=error,
        )
        for index in asked.partition_indexes
    )
    return OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id, partitions=partitions)


async def _fetch_one(broker: Broker, request: OffsetFetchRequest, call: RequestContext) -> OffsetFetchResponse:
    topics = None
    if request.topics is not None:
        topics = tuple(
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        )
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    fetched = await _fetch_by_name(broker, group, call, request.require_stable)
    if fetched.error_code and call.version < GROUP_ERROR_FROM:
        return OffsetFetchResponse(topics=_refused(request, fetched.error_code))
    answers = []
    pace = broker.turns.pace(PARTITIONS_PER_STEP)
    for topic in fetched.topics:
        await pace.step()
        partitions = []
        for item in topic.partitions:
            await pace.step()
            partitions.append(
                OffsetFetchResponsePartition(
                    partition_index=item.partition_index,
                    committed_offset=item.committed_offset,
                    committed_leader_epoch=item.committed_leader_epoch,
                    metadata=item.metadata,
                    error_code=item.error_code,
                )
            )
        answers.append(OffsetFetchResponseTopic(name=topic.name, partitions=tuple(partitions)))
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
