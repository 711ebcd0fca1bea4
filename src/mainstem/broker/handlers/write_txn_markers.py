"""WriteTxnMarkers: ends transactions in partitions, as their coordinator has decided, or an administrator who ends one
that hangs. Markers for the offsets of consumer groups go to the coordinator of these."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.errors import ERROR_OF_OUTCOME
from mainstem.broker.request_context import RequestContext
from mainstem.broker.transactions.transaction import TopicPartition
from mainstem.model import TransactionMarker
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.transaction_administration import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from mainstem.security.acls.acl import Operation


async def handle(broker: Broker, request: WriteTxnMarkersRequest, call: RequestContext) -> WriteTxnMarkersResponse:
    verdicts = broker.verdicts(call.session)
    allowed = verdicts.allows_on_cluster(Operation.CLUSTER_ACTION) or verdicts.allows_on_cluster(Operation.ALTER)
    results = []
    for marker in request.markers:
        if allowed:
            codes = await _written(broker, marker)
        else:
            refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            codes = {(topic.name, index): refused for topic in marker.topics for index in topic.partition_indexes}
        results.append(_result(marker, codes))
    return WriteTxnMarkersResponse(markers=tuple(results))


async def offsets_ended(groups: ConsumerGroupCoordinator, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Apply the markers of a coordinator of transactions on any node to the offsets of consumer groups."""
    results = []
    for marker in request.markers:
        codes = {}
        for topic in marker.topics:
            for index in topic.partition_indexes:
                codes[topic.name, index] = await _offsets_ended(groups, marker, topic.name, index)
        results.append(_result(marker, codes))
    return WriteTxnMarkersResponse(markers=tuple(results))


async def _offsets_ended(
    groups: ConsumerGroupCoordinator, marker: WritableTxnMarker, topic: str, index: int
) -> ErrorCode:
    if topic != OFFSETS_TOPIC:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return await groups.offsets.end_transaction(
        index,
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        commit=marker.transaction_result,
    )


async def _written(broker: Broker, marker: WritableTxnMarker) -> dict[TopicPartition, ErrorCode]:
    codes: dict[TopicPartition, ErrorCode] = {}
    wanted: list[TopicPartition] = []
    markers: list[TransactionMarker] = []
    for named in marker.topics:
        topic = broker.metadata.topic(named.name)
        for index in named.partition_indexes:
            if topic is None or not 0 <= index < topic.partitions:
                codes[named.name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif named.name == OFFSETS_TOPIC:
                code = await _offsets_ended(broker.groups, marker, named.name, index)
                not_here = code is ErrorCode.NOT_COORDINATOR
                codes[named.name, index] = ErrorCode.NOT_LEADER_OR_FOLLOWER if not_here else code
            elif topic.internal:
                codes[named.name, index] = ErrorCode.INVALID_TOPIC_EXCEPTION
            else:
                wanted.append((named.name, index))
                markers.append(
                    TransactionMarker(
                        topic.queue_id(index),
                        marker.producer_id,
                        marker.producer_epoch,
                        marker.transaction_result,
                        marker.coordinator_epoch,
                    )
                )
    return codes | await _appended(broker, wanted, markers)


async def _appended(
    broker: Broker, wanted: Sequence[TopicPartition], markers: Sequence[TransactionMarker]
) -> dict[TopicPartition, ErrorCode]:
    if broker.markers is None:
        return dict.fromkeys(wanted, ErrorCode.UNSUPPORTED_VERSION)
    if not markers:
        return {}
    outcomes = await broker.markers.write(markers)
    return {each: ERROR_OF_OUTCOME[outcome] for each, outcome in zip(wanted, outcomes, strict=True)}


def _result(marker: WritableTxnMarker, codes: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    topics = tuple(
        WritableTxnMarkerTopicResult(
            name=topic.name,
            partitions=tuple(
                WritableTxnMarkerPartitionResult(partition_index=index, error_code=codes[topic.name, index])
                for index in topic.partition_indexes
            ),
        )
        for topic in marker.topics
    )
    return WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics)
