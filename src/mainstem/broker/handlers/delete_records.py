"""DeleteRecords: moves log starts up; readers no longer see the records before them at once."""

from __future__ import annotations

from mainstem.broker.admin.topic_admin import is_internal
from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.partitions import asked_twice, find_partition
from mainstem.broker.request_context import RequestContext
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
"""Partitions checked within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: DeleteRecordsRequest, call: RequestContext) -> DeleteRecordsResponse:
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
            queue_id = await _find(broker, topic.name, asked.partition_index)
            queues.append((asked, queue_id))
            if not isinstance(queue_id, ErrorCode):
                before[queue_id] = asked.offset
        starts = await _truncate(broker, before)
        results = tuple(_result(asked, queue_id, starts) for asked, queue_id in queues)
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=tuple(topics))


async def _find(broker: Broker, name: str, partition: int) -> int | ErrorCode:
    """The queue id, or the error that says why its records cannot be deleted."""
    found = await find_partition(broker, name, partition)
    if isinstance(found, ErrorCode):
        return found
    if is_internal(broker, name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    policy = found.topic.settings.cleanup_policy
    if policy and "delete" not in policy:
        return ErrorCode.POLICY_VIOLATION  # compacted topics promise the newest record of each key
    return found.queue_id


async def _truncate(broker: Broker, before: dict[int, int]) -> dict[int, int | MainstemError | None]:
    if not before:
        return {}
    try:
        return await broker.queue_admin.truncate(before)
    except MainstemError as refusal:
        return dict.fromkeys(before, refusal)


def _result(
    asked: DeleteRecordsPartition, queue_id: int | ErrorCode, starts: dict[int, int | MainstemError | None]
) -> DeleteRecordsPartitionResult:
    low_watermark = UNKNOWN_LOW_WATERMARK
    match queue_id if isinstance(queue_id, ErrorCode) else starts[queue_id]:
        case ErrorCode() as error:
            pass
        case None:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        case LeaderMissing():
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        case MainstemError() as refusal:
            error = error_of_refusal(refusal)
        case low_watermark:
            error = ErrorCode.NONE
    return DeleteRecordsPartitionResult(
        partition_index=asked.partition_index, low_watermark=low_watermark, error_code=error
    )
