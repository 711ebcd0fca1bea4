"""DescribeProducers: the producers that partitions know, and where their open transactions begin.

Kafka's tool that looks for hanging transactions of a broker asks it about all partitions of which it has a replica, led
by it or not, and fails where one is refused. So of those that it follows a node tells by what their leaders say; of
offsets that transactions commit, the coordinator of the groups says it.
"""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.errors import ERROR_OF_OUTCOME, CoordinatorRefusal
from mainstem.broker.machines.served_topic import NO_LEADER
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.asking import ask
from mainstem.errors import MainstemError
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

ASKED_VERSION = 0
"""Of DescribeProducers, in which nodes ask each other: the only one there is."""


async def handle(broker: Broker, request: DescribeProducersRequest, call: RequestContext) -> DescribeProducersResponse:
    return DescribeProducersResponse(topics=tuple([await _topic(broker, asked) for asked in request.topics]))


async def _topic(broker: Broker, asked: DescribeProducersTopic) -> DescribeProducersTopicResponse:
    topic = broker.metadata.topic(asked.name)
    partitions = []
    for index in asked.partition_indexes:
        await broker.turns.take()
        if topic is None or not 0 <= index < topic.partitions:
            partitions.append(_refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        elif not broker.has_replica(topic, index):
            partitions.append(_refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif asked.name == OFFSETS_TOPIC:
            partitions.append(await _of_offsets(broker, index))
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
    coordinator = broker.groups.served.leader_at(index)
    if coordinator in (broker.node_id, NO_LEADER) or broker.transactions is None or broker.transactions.calls is None:
        return await _of_offsets_here(broker.groups, index)
    asked = DescribeProducersTopic(name=OFFSETS_TOPIC, partition_indexes=(index,))
    request = DescribeProducersRequest(topics=(asked,))
    try:
        answer: DescribeProducersResponse = await ask(broker.transactions.calls, coordinator, request, ASKED_VERSION)
    except MainstemError:
        return _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return answer.topics[0].partitions[0]


async def producers_of_offsets(
    groups: ConsumerGroupCoordinator, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The answer of this node's coordinator of consumer groups to another node."""
    topics = []
    for asked in request.topics:
        partitions = [
            await _of_offsets_here(groups, index)
            if asked.name == OFFSETS_TOPIC
            else _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for index in asked.partition_indexes
        ]
        topics.append(DescribeProducersTopicResponse(name=asked.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(topics=tuple(topics))


async def _of_offsets_here(groups: ConsumerGroupCoordinator, index: int) -> DescribeProducersPartitionResponse:
    """The producers whose open transactions commit offsets: these begin nowhere among the topic's own offsets, so that
    0 stands for the beginning."""
    try:
        found = await groups.offsets.pending_producers(index)
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
