"""DeleteRecords: move log starts up; the records before them are gone for readers at once."""

from __future__ import annotations

from mainstem.broker.asked_twice import asked_twice
from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.partitions import find_partition
from mainstem.broker.reserved_topics import is_internal
from mainstem.errors import LeaderMissing, MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

UNKNOWN_LOW_WATERMARK = -1

PARTITIONS_PER_TURN = 500
"""Looked at between two turns of the event loop: about a millisecond."""


async def handle(broker: Broker, request: DeleteRecordsRequest, call: Call) -> DeleteRecordsResponse:
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    twice = await asked_twice(request.topics, pace)
    topics = []
    for topic in request.topics:
        before: dict[int, int] = {}
        queues: list[tuple[DeleteRecordsPartition, int | ErrorCode]] = []
        await pace.step()
        for asked in topic.partitions:
            await pace.step()
            if (topic.name, asked.partition_index) in twice:
                queues.append((asked, ErrorCode.INVALID_REQUEST))
                continue
            queue_id = _find(broker, topic.name, asked.partition_index)
            queues.append((asked, queue_id))
            if not isinstance(queue_id, ErrorCode):
                before[queue_id] = asked.offset
        starts = await _truncate(broker, before)
        results = tuple(_result(asked, queue_id, starts) for asked, queue_id in queues)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=tuple(topics))


def _find(broker: Broker, name: str, partition: int) -> int | ErrorCode:
    """The queue id; else why its records cannot be deleted."""
    found = find_partition(broker, name, partition)
    if isinstance(found, ErrorCode):
        return found
    if is_internal(broker, name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    policy = found.topic.settings.cleanup_policy
    if policy and "delete" not in policy:
        return ErrorCode.POLICY_VIOLATION  # compacted topics promise the newest record of each key
    return found.queue_id


async def _truncate(broker: Broker, before: dict[int, int]) -> dict[int, int | None] | ErrorCode:
    if not before:
        return {}
    try:
        return await broker.queue_admin.truncate(before)
    except LeaderMissing:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    except MainstemError as refusal:
        return error_of_refusal(refusal)


def _result(
    asked: DeleteRecordsPartition, queue_id: int | ErrorCode, starts: dict[int, int | None] | ErrorCode
) -> DeleteRecordsPartitionResult:
    low_watermark: int | None = None
    if isinstance(queue_id, ErrorCode):
        error = queue_id
    elif isinstance(starts, ErrorCode):
        error = starts
    else:
        low_watermark = starts[queue_id]
        error = ErrorCode.OFFSET_OUT_OF_RANGE if low_watermark is None else ErrorCode.NONE
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index,
        low_watermark=UNKNOWN_LOW_WATERMARK if low_watermark is None else low_watermark,
        error_code=error,
    )
