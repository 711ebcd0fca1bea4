"""ListOffsets: the offset for a timestamp, or for one of the special timestamps.

A client that reads committed transactions alone is told the last stable offset where others are told the high
watermark, and no record from there on; while no transaction is open the two are the same. The earliest local offset is
the log start where the remote tier has nothing of a partition; "latest tiered" and "earliest pending upload" have no
answer then (offset -1 without an error, as in Kafka).

An answer about the end of a log claims to be current, and a node that stood still or was cut off does not know that
another one leads by now. So a majority first confirms that this node leads, once per write group and request; a node
without confirmation answers NOT_LEADER_OR_FOLLOWER, upon which clients look for the leader. The start of a log only
grows, and the read that follows puts an old one right: it is answered at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_failed_read
from mainstem.broker.partitions import asked_twice, find_partition, find_topic
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.fetch import READ_COMMITTED
from mainstem.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

PARTITIONS_PER_TURN = 500
"""Partitions answered within one turn of the event loop: about a millisecond."""

NOT_CURRENT = frozenset({
    EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP,
})  # fmt: skip
"""Special timestamps whose answers say nothing about the end of a log."""

_SPECIAL_FROM_VERSION = {
    LATEST_TIMESTAMP: 0,
    EARLIEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}


async def handle(broker: Broker, request: ListOffsetsRequest, call: RequestContext) -> ListOffsetsResponse:
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    twice = await asked_twice(request.topics, pace)
    unconfirmed = await _unconfirmed(broker, request)
    committed = request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        await pace.step()
        answers = []
        for asked in topic.partitions:
            await pace.step()
            if (topic.name, asked.partition_index) in twice:
                answers.append(_refused(asked, ErrorCode.INVALID_REQUEST))
            else:
                answers.append(await _offset(broker, topic.name, asked, call.version, unconfirmed, committed=committed))
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answers)))
    return ListOffsetsResponse(topics=tuple(topics))


async def _unconfirmed(broker: Broker, request: ListOffsetsRequest) -> set[int]:
    """Have a majority confirm this node's leadership of the write groups whose log ends the request asks for;
    returns the write groups without confirmation."""
    groups = sorted({group async for group in _groups_to_confirm(broker, request)})
    confirmed = await asyncio.gather(*(_is_confirmed(broker, group) for group in groups))
    return {group for group, is_so in zip(groups, confirmed, strict=True) if not is_so}


async def _groups_to_confirm(broker: Broker, request: ListOffsetsRequest) -> AsyncIterator[int]:
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for topic in request.topics:
        await pace.step()
        found = find_topic(broker, topic.name)
        if isinstance(found, ErrorCode):
            continue
        for asked in topic.partitions:
            await pace.step()
            if asked.timestamp not in NOT_CURRENT and broker.serves(found, asked.partition_index):
                yield broker.leadership.group_of(found.queue_id(asked.partition_index))


async def _is_confirmed(broker: Broker, group: int) -> bool:
    try:
        await broker.leadership.confirm(group)
    except MainstemError:
        return False
    return True


async def _offset(
    broker: Broker, topic: str, asked: ListOffsetsPartition, version: int, unconfirmed: set[int], *, committed: bool
) -> ListOffsetsPartitionResponse:
    timestamp = asked.timestamp
    if timestamp < 0 and version < _SPECIAL_FROM_VERSION.get(timestamp, version + 1):
        return _refused(asked, ErrorCode.UNSUPPORTED_VERSION)
    found = await find_partition(broker, topic, asked.partition_index, asked.current_leader_epoch)
    if isinstance(found, ErrorCode):
        return _refused(asked, found)
    if timestamp not in NOT_CURRENT and broker.leadership.group_of(found.queue_id) in unconfirmed:
        return _refused(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if timestamp == LATEST_TIMESTAMP:
        end = found.offsets.last_stable if committed else found.offsets.high_watermark
        return _answer(asked, end, leader_epoch=found.offsets.leader_epoch)
    if timestamp == EARLIEST_TIMESTAMP:
        return _answer(asked, found.offsets.log_start)
    try:
        record = await broker.store.offset_for_timestamp(found.queue_id, timestamp)
    except (MainstemError, OSError) as failure:  # the storage has logged what and where
        return _refused(asked, error_of_failed_read(failure))
    if record is None:
        return _answer(asked, -1)
    if committed and timestamp not in NOT_CURRENT and record.offset >= found.offsets.last_stable:
        return _answer(asked, -1)
    return _answer(asked, record.offset, record.timestamp, record.leader_epoch)


def _answer(
    asked: ListOffsetsPartition, offset: int, timestamp: int = -1, leader_epoch: int = -1
) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=ErrorCode.NONE,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=leader_epoch,
    )


def _refused(asked: ListOffsetsPartition, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=error)
