"""Metadata: the nodes, and the topics asked for, of which unknown ones may be created."""

from __future__ import annotations

from mainstem.broker.broker import Broker, Call
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.groups.internal_topic import OFFSETS_TOPIC
from mainstem.broker.topics import create_topic, ensure_topic
from mainstem.errors import MainstemError
from mainstem.model import Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.metadata import (
    AUTHORIZED_OPERATIONS_UNKNOWN,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from mainstem.protocol.schema import ZERO_UUID

NO_LEADER = -1

TOPICS_CREATED_MAX = 100
"""By one request. A client asks again for what is still unknown, so the rest is only delayed."""

_ASK_BY_ID_FROM = 12
_EMPTY_IS_ALL_UNTIL = 0

# Without access control every operation is allowed. Bits by Kafka's operation codes: 3 read, 4 write,
# 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10 and 11 describe and alter configs,
# 12 idempotent write.
_TOPIC_OPERATIONS = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
_CLUSTER_OPERATIONS = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


async def handle(broker: Broker, request: MetadataRequest, call: Call) -> MetadataResponse:
    everything = request.topics is None or (not request.topics and call.version <= _EMPTY_IS_ALL_UNTIL)
    operations = AUTHORIZED_OPERATIONS_UNKNOWN
    if request.include_topic_authorized_operations:
        operations = _TOPIC_OPERATIONS
    if everything:
        topics = [_describe(broker, topic, operations) for topic in broker.metadata.topics()]
    else:
        topics = await _named_topics(broker, request, call, operations)
    cluster_operations = AUTHORIZED_OPERATIONS_UNKNOWN
    if request.include_cluster_authorized_operations:
        cluster_operations = _CLUSTER_OPERATIONS
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(node_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in broker.metadata.nodes()
        ),
        cluster_id=broker.metadata.cluster_id(),
        controller_id=broker.node_id,
        topics=tuple(topics),
        cluster_authorized_operations=cluster_operations,
    )


async def _named_topics(
    broker: Broker, request: MetadataRequest, call: Call, operations: int
) -> list[MetadataResponseTopic]:
    described = []
    creations_left = TOPICS_CREATED_MAX if request.allow_auto_topic_creation else 0
    for asked in dict.fromkeys(request.topics or ()):
        if asked.name is None or asked.topic_id != ZERO_UUID:
            described.append(_describe_by_id(broker, asked, call, operations))
            continue
        found: Topic | ErrorCode | None = broker.metadata.topic(asked.name)
        if found is None:
            found = await _unknown_topic(broker, asked.name, creatable=creations_left > 0)
            creations_left -= isinstance(found, Topic)
        if isinstance(found, Topic):
            described.append(_describe(broker, found, operations))
        else:
            described.append(_refused(found, asked.name))
    return described


async def _unknown_topic(broker: Broker, name: str, *, creatable: bool) -> Topic | ErrorCode:
    """Create a topic that was asked for, if that is allowed; else why it is not there."""
    config = broker.config
    try:
        if creatable and config.auto_create_topics and name != OFFSETS_TOPIC:
            return await ensure_topic(broker, name)
        # an illegal name is told apart from one that merely does not exist
        await create_topic(broker, name, 1, 1, {}, validate_only=True)
    except MainstemError as refusal:
        return error_of_refusal(refusal)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _describe_by_id(
    broker: Broker, asked: MetadataRequestTopic, call: Call, operations: int
) -> MetadataResponseTopic:
    if call.version < _ASK_BY_ID_FROM:
        return _refused(ErrorCode.INVALID_REQUEST, asked.name or "")
    topic = broker.metadata.topic_by_id(asked.topic_id)
    if topic is None:
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=asked.topic_id, partitions=()
        )
    return _describe(broker, topic, operations)


def _refused(error: ErrorCode, name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, partitions=())


def _describe(broker: Broker, topic: Topic, operations: int) -> MetadataResponseTopic:
    queue_ids = [topic.queue_id(partition) for partition in range(topic.partitions)]
    partitions = []
    for partition, offsets in enumerate(broker.store.offsets(queue_ids)):
        leader = broker.metadata.leader(queue_ids[partition])
        replicas = () if leader == NO_LEADER else (leader,)
        partitions.append(
            MetadataResponsePartition(
                error_code=ErrorCode.NONE if replicas else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=-1 if offsets is None else offsets.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        )
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(partitions),
        topic_authorized_operations=operations,
    )
