"""AlterShareGroupOffsets: a share group without members goes on from other offsets, with nothing acknowledged behind
them. A group that does not exist is founded, so that its members will begin there."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.share_states import COME_AGAIN, Codes, NewStart
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_offsets import (
    AlteredShareOffset,
    AlteredShareOffsetsTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import Operation, ResourceKind

PARTITIONS_PER_TURN = 500
"""Partitions looked up within one turn of the event loop: a millisecond or two."""


async def handle(
    broker: Broker, request: AlterShareGroupOffsetsRequest, call: RequestContext
) -> AlterShareGroupOffsetsResponse:
    if not request.group_id:
        return _refused(ErrorCode.INVALID_GROUP_ID)
    may_read = broker.verdicts(call.session).question(Operation.READ, ResourceKind.TOPIC)
    codes: dict[tuple[str, int], ErrorCode] = {}
    starts: dict[SharedPartition, NewStart] = {}
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for named in request.topics:
        topic = broker.metadata.topic(named.topic_name)
        for asked in named.partitions:
            await pace.step()
            code = ErrorCode.NONE
            if not may_read(named.topic_name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic is None or not 0 <= asked.partition_index < topic.partitions:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partition = SharedPartition(topic.topic_id, asked.partition_index)
                starts[partition] = NewStart(partition, asked.start_offset)
            codes[named.topic_name, asked.partition_index] = code
    found: Codes = {}
    founded = await broker.groups.administration.found_share_group(request.group_id, looks=not starts)
    if founded.error is not ErrorCode.NONE:
        return _refused(founded.error)
    if starts:
        found = await broker.shares.states.begin(request.group_id, founded.epoch, starts.values())
    if COME_AGAIN & set(found.values()):
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    topics = []
    for named in request.topics:
        topic = broker.metadata.topic(named.topic_name)
        rows = []
        for asked in named.partitions:
            await pace.step()
            code = codes[named.topic_name, asked.partition_index]
            if code is ErrorCode.NONE and topic is not None:
                code = found.get(
                    SharedPartition(topic.topic_id, asked.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
            message = None if code is ErrorCode.NONE else code.message
            rows.append(
                AlteredShareOffset(partition_index=asked.partition_index, error_code=code, error_message=message)
            )
        topic_id = ZERO_UUID if topic is None else topic.topic_id
        topics.append(AlteredShareOffsetsTopic(topic_name=named.topic_name, topic_id=topic_id, partitions=tuple(rows)))
    return AlterShareGroupOffsetsResponse(error_code=ErrorCode.NONE, responses=tuple(topics))


def _refused(code: ErrorCode) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=code.message, responses=())
