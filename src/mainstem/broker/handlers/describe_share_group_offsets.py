"""DescribeShareGroupOffsets: how far share groups are with partitions, and how much is left. The group need not have
members, nor be there: what it has not begun to read has no offset (-1)."""

from __future__ import annotations

from collections.abc import Iterable

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.share_states import COME_AGAIN, ShareStanding
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribedShareOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeShareOffsetsGroup,
)
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import Operation, ResourceKind

PARTITIONS_PER_TURN = 500
"""Rows made within one turn of the event loop: a millisecond or two."""


async def handle(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, call: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=tuple([await _described(broker, asked, call) for asked in request.groups])
    )


def _refused(group_id: str, code: ErrorCode) -> DescribedShareOffsetsGroup:
    return DescribedShareOffsetsGroup(group_id=group_id, topics=(), error_code=code, error_message=code.message)


async def _described(
    broker: Broker, asked: DescribeShareOffsetsGroup, call: RequestContext
) -> DescribedShareOffsetsGroup:
    if not asked.group_id:
        return _refused(asked.group_id, ErrorCode.INVALID_GROUP_ID)
    may_see = broker.verdicts(call.session).question(Operation.DESCRIBE, ResourceKind.TOPIC)
    wanted: dict[str, list[int]] = {}
    if asked.topics is None:
        begun = await broker.shares.states.begun(asked.group_id)
        if begun is None:
            return _refused(asked.group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        for topic_id, partition in begun:
            topic = broker.metadata.topic_by_id(topic_id)
            if topic is not None and may_see(topic.name):
                wanted.setdefault(topic.name, []).append(partition)
    else:
        for each in asked.topics:
            wanted.setdefault(each.topic_name, []).extend(each.partitions)
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    topics = []
    for name, partitions in wanted.items():
        await pace.step(1 + len(partitions))
        if not may_see(name):
            topics.append(_unknown(name, partitions, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            continue
        topic = broker.metadata.topic(name)
        if topic is None:
            topics.append(_unknown(name, partitions, ErrorCode.NONE))
            continue
        rows = await _standings(broker, asked.group_id, topic, partitions)
        if any(row.error in COME_AGAIN for row in rows):
            return _refused(asked.group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        topics.append(
            DescribedShareOffsetsTopic(
                topic_name=name, topic_id=topic.topic_id, partitions=tuple(_row(standing) for standing in rows)
            )
        )
    return DescribedShareOffsetsGroup(group_id=asked.group_id, topics=tuple(topics), error_code=ErrorCode.NONE)


async def _standings(broker: Broker, group_id: str, topic: Topic, partitions: Iterable[int]) -> list[ShareStanding]:
    asked = [SharedPartition(topic.topic_id, index) for index in dict.fromkeys(partitions)]
    found = await broker.shares.states.standings(group_id, asked)
    return [found[partition] for partition in asked]


def _row(standing: ShareStanding) -> DescribedShareOffset:
    code = standing.error
    return DescribedShareOffset(
        partition_index=standing.partition.partition,
        start_offset=standing.start,
        leader_epoch=standing.leader_epoch,
        lag=standing.lag,
        error_code=code,
        error_message=None if code is ErrorCode.NONE else code.message,
    )


def _unknown(name: str, partitions: Iterable[int], code: ErrorCode) -> DescribedShareOffsetsTopic:
    """A topic of which there is nothing to tell; as in Kafka, that it does not exist is no error."""
    rows = tuple(
        DescribedShareOffset(
            partition_index=index,
            start_offset=-1,
            leader_epoch=0,
            error_code=code,
            error_message=None if code is ErrorCode.NONE else code.message,
        )
        for index in partitions
    )
    return DescribedShareOffsetsTopic(topic_name=name, topic_id=ZERO_UUID, partitions=rows)
