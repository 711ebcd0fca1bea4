"""TxnOffsetCommit: offsets that come into force with their transaction. Its coordinator, which may be another node, is
asked first whether it is open; from version 5 on it takes the group's offsets in by that."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.consumer_groups.requests.offset_requests import refused_in_transaction
from mainstem.broker.errors import CoordinatorRefusal
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transitions import Producer
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.producer_transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

ADDS_FROM = 5
ABORTABLE_FROM = 4


async def handle(broker: Broker, request: TxnOffsetCommitRequest, call: RequestContext) -> TxnOffsetCommitResponse:
    code = _refusal(broker, request)
    if code is not ErrorCode.NONE:
        return refused_in_transaction(request, code)
    known = tuple(
        replace(topic, partitions=there)
        for topic in request.topics
        if (there := tuple(item for item in topic.partitions if _exists(broker, topic.name, item.partition_index)))
    )
    seen = broker.groups.offsets.applied_markers(request.group_id)
    code, epoch = await _verified(broker, request, call.version)
    if code is not ErrorCode.NONE:
        return refused_in_transaction(request, code)
    committed = await broker.groups.offsets.commit_in_transaction(replace(request, topics=known), seen, epoch)
    codes = {
        (topic.name, item.partition_index): item.error_code for topic in committed.topics for item in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = []
    for topic in request.topics:
        partitions = tuple(
            TxnOffsetCommitResponsePartition(
                partition_index=item.partition_index,
                error_code=codes.get((topic.name, item.partition_index), unknown),
            )
            for item in topic.partitions
        )
        topics.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions))
    return TxnOffsetCommitResponse(topics=tuple(topics))


def _refusal(broker: Broker, request: TxnOffsetCommitRequest) -> ErrorCode:
    if broker.transactions is None:
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE if request.group_id else ErrorCode.INVALID_GROUP_ID


async def _verified(broker: Broker, request: TxnOffsetCommitRequest, version: int) -> tuple[ErrorCode, int]:
    """Kafka's code, and the epoch of the coordinator that was asked."""
    assert broker.transactions is not None
    try:
        topic = await broker.groups.served.open()
    except CoordinatorRefusal as refusal:
        return refusal.code, -1
    partition = OFFSETS_TOPIC, coordinator_partition_of(request.group_id, topic.partitions)
    answer = await broker.transactions.verification.ask(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        [partition],
        adds=version >= ADDS_FROM,
    )
    code = answer.codes[partition]
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        code = ErrorCode.INVALID_TXN_STATE
    elif code is ErrorCode.NOT_COORDINATOR:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code, answer.coordinator_epoch


def _exists(broker: Broker, name: str, index: int) -> bool:
    topic = broker.metadata.topic(name)
    return topic is not None and 0 <= index < topic.partitions
