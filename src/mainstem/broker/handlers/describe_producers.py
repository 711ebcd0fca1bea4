"""DescribeProducers: the producers that partitions know, and where their open transactions begin."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.errors import ERROR_OF_OUTCOME, CoordinatorRefusal
from mainstem.broker.request_context import RequestContext
from mainstem.model import ActiveProducer, Outcome
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    DescribedProducer,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
    DescribeProducersTopicResponse,
)


async def handle(broker: Broker, request: DescribeProducersRequest, call: RequestContext) -> DescribeProducersResponse:
    return DescribeProducersResponse(topics=tuple([await _topic(broker, asked) for asked in request.topics]))


async def _topic(broker: Broker, asked: DescribeProducersTopic) -> DescribeProducersTopicResponse:
    topic = broker.metadata.topic(asked.name)
    partitions = []
    for index in asked.partition_indexes:
        await broker.turns.take()
        if topic is None or not 0 <= index < topic.partitions:
            partitions.append(_refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif asked.name == OFFSETS_TOPIC:
            partitions.append(await _of_offsets(broker, index))
        elif not broker.serves(topic, index):
            partitions.append(_refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif broker.markers is None:
            partitions.append(_refused(index, ErrorCode.UNSUPPORTED_VERSION))
        else:
            [found] = await broker.markers.producers([topic.queue_id(index)])
            partitions.append(_described(index, found))
    return DescribeProducersTopicResponse(name=asked.name, partitions=tuple(partitions))


def _described(index: int, found: list[ActiveProducer] | Outcome) -> DescribeProducersPartitionResponse:
    if isinstance(found, Outcome):
        return _refused(index, ERROR_OF_OUTCOME[found])
    return DescribeProducersPartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            DescribedProducer(
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.last_timestamp_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.transaction_start,
            )
            for each in found
        ),
    )


async def _of_offsets(broker: Broker, index: int) -> DescribeProducersPartitionResponse:
    """The producers whose open transactions commit offsets: these begin nowhere among the topic's own offsets, so that
    0 stands for the beginning."""
    try:
        found = await broker.groups.offsets.pending_producers(index)
    except CoordinatorRefusal as refusal:
        not_here = refusal.code is ErrorCode.NOT_COORDINATOR
        return _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER if not_here else refusal.code)
    return DescribeProducersPartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE,
        active_producers=tuple(
            DescribedProducer(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_timestamp=last_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=0,
            )
            for producer_id, epoch, last_ms in found
        ),
    )


def _refused(index: int, code: ErrorCode) -> DescribeProducersPartitionResponse:
    return DescribeProducersPartitionResponse(
        partition_index=index, error_code=code, error_message=code.message, active_producers=()
    )
