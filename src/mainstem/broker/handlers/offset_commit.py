"""OffsetCommit. Partitions that do not exist are refused here; the rest goes to the coordinator by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from mainstem.broker.broker import Broker, Call
from mainstem.broker.steps import in_steps
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
"""Looked at between two turns of the event loop: about a millisecond, but for a topic that has more of them."""


async def handle(broker: Broker, request: OffsetCommitRequest, call: Call) -> OffsetCommitResponse:
    by_id = call.version >= TOPIC_IDS_FROM
    known: list[OffsetCommitRequestTopic] = []
    names: list[str | None] = []
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for asked in request.topics:
        await pace.step(1 + len(asked.partitions))
        topic = broker.metadata.topic_by_id(asked.topic_id) if by_id else broker.metadata.topic(asked.name)
        names.append(None if topic is None else topic.name)
        if topic is None:
            continue
        there = tuple(item for item in asked.partitions if 0 <= item.partition_index < topic.partitions)
        if there:
            known.append(replace(asked, name=topic.name, topic_id=topic.topic_id, partitions=there))
    codes = await _commit(broker, replace(request, topics=()), known, call)
    topics = []
    for asked, name in zip(request.topics, names, strict=True):
        await pace.step()
        by_unknown_id = by_id and name is None
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        answers = []
        for item in asked.partitions:
            await pace.step()
            code = codes.get((name or "", item.partition_index), unknown)
            answers.append(
                OffsetCommitResponsePartition(partition_index=item.partition_index, error_code=code)
            )
        partitions = tuple(answers)
        topics.append(
            OffsetCommitResponseTopic(name=asked.name, topic_id=asked.topic_id, partitions=partitions)
        )
    return OffsetCommitResponse(topics=tuple(topics))


async def _commit(
    broker: Broker, request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic], call: Call
) -> dict[tuple[str, int], int]:
    """The error code of each partition. The steps of a long request wait for the log together."""
    steps = [replace(request, topics=tuple(step.topics)) for step in in_steps(topics, "partitions")]
    if len(steps) == 1:
        responses = [await broker.groups.commit_offsets(steps[0], call)]
    else:
        committing = []
        async with asyncio.TaskGroup() as tasks:
            for step in steps:
                committing.append(tasks.create_task(broker.groups.commit_offsets(step, call)))
                await broker.turns.take()
        responses = [committed.result() for committed in committing]
    codes: dict[tuple[str, int], int] = {}
    for number, response in enumerate(responses):
        if number:
            await broker.turns.take()
        for topic in response.topics:
            for partition in topic.partitions:
                codes[topic.name, partition.partition_index] = partition.error_code
    return codes
