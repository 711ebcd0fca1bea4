"""OffsetForLeaderEpoch: the end of an epoch, by which a consumer sees that its position was cut off."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_failed_read
from mainstem.broker.partitions import find_partition
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

PARTITIONS_PER_TURN = 200
"""Partitions answered within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: OffsetForLeaderEpochRequest, call: RequestContext
) -> OffsetForLeaderEpochResponse:
    topics = []
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for topic in request.topics:
        await pace.step()
        ends = []
        for asked in topic.partitions:
            await pace.step()
            ends.append(await _end(broker, topic.topic, asked))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(ends)))
    return OffsetForLeaderEpochResponse(topics=tuple(topics))


async def _end(broker: Broker, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    found = await find_partition(broker, topic, asked.partition, asked.current_leader_epoch)
    if isinstance(found, ErrorCode):
        return EpochEndOffset(error_code=found, partition=asked.partition)
    try:
        end = await broker.queue_admin.epoch_end(found.queue_id, asked.leader_epoch)
    except (MainstemError, OSError) as failure:  # the storage has logged what and where
        return EpochEndOffset(error_code=error_of_failed_read(failure), partition=asked.partition)
    if end is None:  # deleted meanwhile
        return EpochEndOffset(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=asked.partition)
    return EpochEndOffset(error_code=ErrorCode.NONE, partition=asked.partition, leader_epoch=end[0], end_offset=end[1])
