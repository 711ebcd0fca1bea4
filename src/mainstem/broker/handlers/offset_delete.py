"""OffsetDelete. Partitions that do not exist are refused here, the rest goes to the coordinator."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from mainstem.security.acls.acl import Operation, ResourceKind


async def handle(broker: Broker, request: OffsetDeleteRequest, call: RequestContext) -> OffsetDeleteResponse:
    verdicts = broker.verdicts(call.session)
    may_read = verdicts.question(Operation.READ, ResourceKind.TOPIC)
    known = tuple(
        replace(topic, partitions=_existing(broker, topic)) for topic in request.topics if may_read(topic.name)
    )
    response = await broker.groups.offsets.delete_offsets(replace(request, topics=known))
    if response.error_code:
        return response
    codes = {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }
    topics = []
    for topic in request.topics:
        partitions = tuple(
            OffsetDeleteResponsePartition(
                partition_index=item.partition_index,
                error_code=codes.get((topic.name, item.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if may_read(topic.name)
                else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            )
            for item in topic.partitions
        )
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return replace(response, topics=tuple(topics))


def _existing(broker: Broker, asked: OffsetDeleteRequestTopic) -> tuple[OffsetDeleteRequestPartition, ...]:
    topic = broker.metadata.topic(asked.name)
    count = 0 if topic is None else topic.partitions
    return tuple(item for item in asked.partitions if 0 <= item.partition_index < count)
