"""DescribeTopicPartitions: topics by name, ascending, with their partitions up to a limit. A cursor in the answer says
where the next one begins (KIP-966)."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.handlers.metadata import UNKNOWN_COSTS_NAMES, unknown_topic
from mainstem.broker.request_context import RequestContext
from mainstem.broker.topics.topic_descriptions import NO_LEADER, TopicDescriptions
from mainstem.model import NodeRole, Topic, WriteGroupNodes, nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.audit.audit_log import of_session
from mainstem.security.audit.config import DENIED

PARTITIONS_MAX = 2_000
"""Partitions in one answer, whatever the client asks for: Kafka's `max.request.partition.size.limit`."""

NAMES_PER_TURN = 500
"""Topics looked up within one turn of the event loop."""

PARTITIONS_PER_TURN = 250


async def handle(
    broker: Broker, request: DescribeTopicPartitionsRequest, call: RequestContext
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        asked = {topic.name for topic in request.topics}
        return DescribeTopicPartitionsResponse(
            topics=tuple(_without(ErrorCode.INVALID_REQUEST, name) for name in sorted(asked))
        )
    names, refused = await _names(broker, request, call)
    alive = {node.node_id for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener)}
    apart = frozenset(node.node_id for node in broker.metadata.nodes() if NodeRole.BROKER not in node.roles)
    descriptions = TopicDescriptions(broker.leadership, alive, call.version, 0, broker.turns, broker.routing, apart)
    room = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
    found: list[DescribeTopicPartitionsResponseTopic] = []
    pace = broker.turns.pace(PARTITIONS_PER_TURN)
    for name in names:
        topic: Topic | ErrorCode | None = broker.metadata.topic(name)
        if topic is None and request.topics:  # else it was deleted meanwhile
            await pace.step(UNKNOWN_COSTS_NAMES)
            topic = await unknown_topic(broker, name)
        if not isinstance(topic, Topic):
            if topic is not None:
                allowed = broker.verdicts(call.session).operations(ResourceKind.TOPIC, name)
                found.append(replace(_without(topic, name), topic_authorized_operations=allowed))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if not room:
            return DescribeTopicPartitionsResponse(topics=(*found, *refused), next_cursor=_at(name, first))
        end = min(topic.partitions, first + room)
        partitions: list[DescribeTopicPartitionsResponsePartition] = []
        for start in range(first, end, PARTITIONS_PER_TURN):
            stop = min(end, start + PARTITIONS_PER_TURN)
            await pace.step(stop - start)
            shown = descriptions.nodes_of(topic, start, stop)
            partitions += (
                _partition(index, nodes, descriptions.offline(nodes)) for index, nodes in enumerate(shown, start)
            )
        room -= len(partitions)
        found.append(_described(broker, call, topic, partitions))
        if end < topic.partitions:
            return DescribeTopicPartitionsResponse(topics=(*found, *refused), next_cursor=_at(name, end))
    return DescribeTopicPartitionsResponse(topics=(*found, *refused))


async def _names(
    broker: Broker, request: DescribeTopicPartitionsRequest, call: RequestContext
) -> tuple[list[str], list[DescribeTopicPartitionsResponseTopic]]:
    """The topics to describe, ascending, from the cursor's on; and the answers for those that the client asked for by
    name and may not describe. A client that names none gets all that it may."""
    asked = {topic.name for topic in request.topics}
    everything = [topic.name for topic in broker.metadata.topics()] if not asked else []
    from_name = request.cursor.topic_name if request.cursor is not None else ""
    names: list[str] = []
    refused: list[DescribeTopicPartitionsResponseTopic] = []
    pace = broker.turns.pace(NAMES_PER_TURN)
    for name in sorted(asked or everything):
        await pace.step()
        if name < from_name:
            continue
        if broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, name):
            names.append(name)
        elif asked:
            refused.append(_without(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name))
            if broker.audit is not None:
                broker.audit.add(of_session(DENIED, call.session, call.client_id, "DESCRIBE", f"topic:{name}", DENIED))
    return names, refused


def _at(name: str, partition: int) -> Cursor:
    return Cursor(topic_name=name, partition_index=partition)


def _partition(
    index: int, nodes: WriteGroupNodes, offline: tuple[int, ...]
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if nodes.leader == NO_LEADER else ErrorCode.NONE,
        partition_index=index,
        leader_id=nodes.leader,
        leader_epoch=nodes.leader_epoch,
        replica_nodes=nodes.replicas,
        isr_nodes=nodes.in_sync,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=offline,
    )


def _described(
    broker: Broker, call: RequestContext, topic: Topic, partitions: list[DescribeTopicPartitionsResponsePartition]
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(partitions),
        topic_authorized_operations=broker.verdicts(call.session).operations(ResourceKind.TOPIC, topic.name),
    )


def _without(error: ErrorCode, name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name, partitions=())
