"""OffsetCommit. Partitions that do not exist are refused here; the rest goes to the coordinator by name."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.partitions import in_steps
from mainstem.broker.request_context import RequestContext
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

TOPIC_IDS_FROM = 10

PARTITIONS_PER_TURN = 500
"""Partitions checked within one turn of the event loop: less than a millisecond."""


async def handle(broker: Broker, request: OffsetCommitRequest, call: RequestContext) -> OffsetCommitResponse:
    by_id = call.version >= TOPIC_IDS_FROM
    known: list[OffsetCommitRequestTopic] = []
    found: list[Topic | None] = []
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for asked in request.topics:
        await pace.step()
        topic = broker.metadata.topic_by_id(asked.topic_id) if by_id else broker.metadata.topic(asked.name)
        found.append(topic)
        if topic is None:
            continue
        for first in range(0, len(asked.partitions), PARTITIONS_PER_TURN):
            some = asked.partitions[first : first + PARTITIONS_PER_TURN]
            there = tuple(item for item in some if 0 <= item.partition_index < topic.partitions)
            if there:
                known.append(replace(asked, name=topic.name, topic_id=topic.topic_id, partitions=there))
            await pace.step(len(some))
    codes = _codes(await _commit(broker, replace(request, topics=()), known, call))
    topics = []
    for asked, topic in zip(request.topics, found, strict=True):
        await pace.step()
        by_unknown_id = by_id and topic is None
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = []
        for item in asked.partitions:
            await pace.step()
            index, code = item.partition_index, int(unknown)
            if topic is not None and 0 <= index < topic.partitions:
                answered, code = next(codes)
                assert answered == index, f"the answer for partition {answered} where {index} was committed"
            answers.append(OffsetCommitResponsePartition(partition_index=index, error_code=code))
        partitions = tuple(answers)
        topics.append(OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=partitions))
    return OffsetCommitResponse(topics=tuple(topics))


async def _commit(
    broker: Broker, request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic], call: RequestContext
) -> deque[OffsetCommitResponse]:
    """The answers to the steps of a request, in their order. The steps of a long one wait for the log together."""
    steps = [replace(request, topics=tuple(step.topics)) for step in in_steps(topics, "partitions")]
    if len(steps) == 1:
        return deque([await broker.groups.offsets.commit_offsets(steps[0], call)])
    committing = []
    async with asyncio.TaskGroup() as tasks:
        for step in steps:
            committing.append(tasks.create_task(broker.groups.offsets.commit_offsets(step, call)))
            await broker.turns.take()
    return deque(committed.result() for committed in committing)


def _codes(responses: deque[OffsetCommitResponse]) -> Iterator[tuple[int, int]]:
    """Partitions and error codes in the order in which they were committed. Each answer is let go of as soon as it is
    read: one place for all codes would hold the loop when it is filled, visited for garbage, or freed."""
    while responses:
        response = responses.popleft()
        for topic in response.topics:
            for partition in topic.partitions:
                yield partition.partition_index, partition.error_code
