"""DeleteShareGroupOffsets: a share group without members knows nothing of topics any more."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.shared.share_group import ShareGroupState
from mainstem.broker.request_context import RequestContext
from mainstem.broker.share_groups.records import SharedPartition
from mainstem.broker.share_groups.share_states import COME_AGAIN, NewStart
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_offsets import (
    DeletedShareOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from mainstem.protocol.messages.share_group_state import ANY_EPOCH
from mainstem.protocol.schema import ZERO_UUID
from mainstem.security.acls.acl import Operation, ResourceKind

NOTHING_TO_DELETE = "the group has no offsets in this topic"


async def handle(
    broker: Broker, request: DeleteShareGroupOffsetsRequest, call: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    if not request.group_id:
        return _refused(ErrorCode.INVALID_GROUP_ID)
    may_read = broker.verdicts(call.session).question(Operation.READ, ResourceKind.TOPIC)
    topics = {
        name: broker.metadata.topic(name) for name in (each.topic_name for each in request.topics) if may_read(name)
    }
    begun: list[SharedPartition] = []
    if not request.topics or any(topic is not None for topic in topics.values()):
        [group] = await broker.groups.administration.describe_share_groups([request.group_id])
        code = ErrorCode(group.error_code)
        if code is ErrorCode.NONE and group.group_state != ShareGroupState.EMPTY.value:
            code = ErrorCode.NON_EMPTY_GROUP
        if code is not ErrorCode.NONE:
            return _refused(code)
        found = await broker.shares.states.begun(request.group_id)
        if found is None:
            return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        begun = found
    rows = []
    for name in dict.fromkeys(each.topic_name for each in request.topics):
        topic = topics.get(name)
        if name not in topics:
            rows.append(_row(name, None, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif topic is None:
            rows.append(_row(name, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            row = await _deleted(broker, request.group_id, topic, begun)
            if row.error_code in COME_AGAIN:
                return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            rows.append(row)
    return DeleteShareGroupOffsetsResponse(error_code=ErrorCode.NONE, responses=tuple(rows))


async def _deleted(
    broker: Broker, group_id: str, topic: Topic, begun: list[SharedPartition]
) -> DeletedShareOffsetsTopic:
    read = [partition for partition in begun if partition.topic_id == topic.topic_id]
    if not read:
        return _row(topic.name, topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NOTHING_TO_DELETE)
    codes = await broker.shares.states.begin(group_id, ANY_EPOCH, [NewStart(partition, None) for partition in read])
    failed = next((code for code in codes.values() if code is not ErrorCode.NONE), ErrorCode.NONE)
    return _row(topic.name, topic, failed)


def _row(name: str, topic: Topic | None, code: ErrorCode, message: str | None = None) -> DeletedShareOffsetsTopic:
    return DeletedShareOffsetsTopic(
        topic_name=name,
        topic_id=ZERO_UUID if topic is None else topic.topic_id,
        error_code=code,
        error_message=None if code is ErrorCode.NONE else message or code.message,
    )


def _refused(code: ErrorCode) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=code.message, responses=())
