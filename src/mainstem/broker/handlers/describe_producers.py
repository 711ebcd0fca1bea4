"""DescribeProducers: the producers that partitions know, and where their open transactions begin.

Kafka's tool that looks for hanging transactions of a broker asks it about all partitions of which it has a replica, led
by it or not, and fails where one is refused. So of those that it follows a node tells by what their leaders say; of
offsets that transactions commit, the coordinator of the groups says it. Each of these is asked once about all its
partitions, or one that does not answer would cost its time with each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.errors import ERROR_OF_OUTCOME, CoordinatorRefusal
from mainstem.broker.machines.served_topic import NO_LEADER
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.asking import ask
from mainstem.errors import MainstemError
from mainstem.model import ActiveProducer, Outcome
from mainstem.ports import BrokerCalls
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

Place = tuple[str, int]
"""A topic's name and a partition's index."""

Answers = dict[int, DescribeProducersPartitionResponse]
"""By partition of the topic of committed offsets."""


async def handle(broker: Broker, request: DescribeProducersRequest, call: RequestContext) -> DescribeProducersResponse:
    answers: dict[Place, DescribeProducersPartitionResponse] = {}
    wanted: dict[Place, int] = {}  # queue ids
    for asked in request.topics:
        topic = broker.metadata.topic(asked.name)
        for index in asked.partition_indexes:
            await broker.turns.take()
            place = asked.name, index
            if topic is None or not 0 <= index < topic.partitions:
                answers[place] = _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not broker.has_replica(topic, index):
                answers[place] = _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            elif asked.name != OFFSETS_TOPIC and broker.markers is None:
                answers[place] = _refused(index, ErrorCode.UNSUPPORTED_VERSION)
            else:
                wanted[place] = topic.queue_id(index)
    of_offsets = await _of_offsets(broker, [index for name, index in wanted if name == OFFSETS_TOPIC])
    answers |= {(OFFSETS_TOPIC, index): answer for index, answer in of_offsets.items()}
    others = [(place, queue_id) for place, queue_id in wanted.items() if place[0] != OFFSETS_TOPIC]
    if others and broker.markers is not None:
        told = await broker.markers.producers([queue_id for _, queue_id in others])
        answers |= {place: _described(place[1], found) for (place, _), found in zip(others, told, strict=True)}
    return DescribeProducersResponse(
        topics=tuple(
            DescribeProducersTopicResponse(
                name=asked.name, partitions=tuple(answers[asked.name, index] for index in asked.partition_indexes)
            )
            for asked in request.topics
        )
    )


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


async def _of_offsets(broker: Broker, indexes: Sequence[int]) -> Answers:
    """The coordinators are asked, each once, all at the same time: those that do not answer cost no more time
    together than one of them."""
    calls = None if broker.transactions is None else broker.transactions.calls
    by_coordinator: dict[int, list[int]] = {}
    for index in indexes:
        coordinator = broker.groups.served.leader_at(index)
        is_here = calls is None or coordinator == NO_LEADER
        by_coordinator.setdefault(broker.node_id if is_here else coordinator, []).append(index)
    told = await asyncio.gather(
        *(
            _of_offsets_here(broker.groups, theirs)
            if calls is None or coordinator == broker.node_id
            else _of_coordinator(calls, coordinator, theirs)
            for coordinator, theirs in by_coordinator.items()
        )
    )
    return {index: answer for answers in told for index, answer in answers.items()}


async def _of_coordinator(calls: BrokerCalls, coordinator: int, indexes: Sequence[int]) -> Answers:
    asked = DescribeProducersTopic(name=OFFSETS_TOPIC, partition_indexes=tuple(indexes))
    request = DescribeProducersRequest(topics=(asked,))
    told: Answers = {}
    with suppress(MainstemError):  # whoever is not told of is refused
        answer: DescribeProducersResponse = await ask(calls, coordinator, request, ASKED_VERSION)
        told = {row.partition_index: row for topic in answer.topics for row in topic.partitions}
    return {index: told.get(index) or _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER) for index in indexes}


async def producers_of_offsets(
    groups: ConsumerGroupCoordinator, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """The answer of this node's coordinator of consumer groups to another node."""
    topics = []
    for asked in request.topics:
        partitions = [
            await _of_partition_here(groups, index)
            if asked.name == OFFSETS_TOPIC
            else _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            for index in asked.partition_indexes
        ]
        topics.append(DescribeProducersTopicResponse(name=asked.name, partitions=tuple(partitions)))
    return DescribeProducersResponse(topics=tuple(topics))


async def _of_offsets_here(groups: ConsumerGroupCoordinator, indexes: Sequence[int]) -> Answers:
    return {index: await _of_partition_here(groups, index) for index in indexes}


async def _of_partition_here(groups: ConsumerGroupCoordinator, index: int) -> DescribeProducersPartitionResponse:
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
