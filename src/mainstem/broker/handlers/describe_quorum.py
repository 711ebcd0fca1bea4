"""DescribeQuorum: the metadata quorum, as the one partition of the topic by which Kafka's tools ask for it. Offsets are
entries of the metadata's log; whoever has entry 7 has its end at 8. As in Kafka, a request that names anything besides
that partition is told of nothing."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.model import LogPosition, QuorumStanding
from mainstem.ports import ClusterStanding
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    QuorumListener,
    QuorumNode,
    QuorumReplicaState,
)

METADATA = ("__cluster_metadata", 0)

LISTENER = "RPC"
"""The name of the addresses at which the quorum's nodes reach each other. No Kafka client is answered there."""

NOT_KNOWN = -1


async def handle(broker: Broker, request: DescribeQuorumRequest, call: RequestContext) -> DescribeQuorumResponse:
    if broker.standing is None:
        return DescribeQuorumResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if [(topic.topic_name, one.partition_index) for topic in request.topics for one in topic.partitions] != [METADATA]:
        return DescribeQuorumResponse(error_code=ErrorCode.NONE, topics=tuple(map(_unknown, request.topics)))
    try:
        quorum = await broker.standing.metadata_quorum()
    except MainstemError as error:
        return DescribeQuorumResponse(error_code=error_of_refusal(error), error_message=str(error))
    return DescribeQuorumResponse(
        error_code=ErrorCode.NONE,
        topics=(DescribeQuorumResponseTopic(topic_name=METADATA[0], partitions=(_described(quorum),)),),
        nodes=tuple(_node(broker.standing, voter.node_id) for voter in quorum.voters),
    )


def _unknown(topic: DescribeQuorumRequestTopic) -> DescribeQuorumResponseTopic:
    return DescribeQuorumResponseTopic(
        topic_name=topic.topic_name,
        partitions=tuple(
            DescribeQuorumResponsePartition(
                partition_index=one.partition_index,
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=f"ask for {METADATA[0]}-{METADATA[1]} alone, which is the metadata quorum",
            )
            for one in topic.partitions
        ),
    )


def _described(quorum: QuorumStanding) -> DescribeQuorumResponsePartition:
    return DescribeQuorumResponsePartition(
        partition_index=METADATA[1],
        error_code=ErrorCode.NONE,
        leader_id=quorum.leader,
        leader_epoch=quorum.term,
        high_watermark=quorum.commit_index + 1,
        current_voters=tuple(map(_state, quorum.voters)),
        observers=tuple(map(_state, quorum.observers)),
    )


def _state(position: LogPosition) -> QuorumReplicaState:
    return QuorumReplicaState(
        replica_id=position.node_id,
        log_end_offset=position.last_index + 1 if position.last_index >= 0 else NOT_KNOWN,
        last_fetch_timestamp=position.heard_ms,
        last_caught_up_timestamp=position.caught_up_ms,
    )


def _node(standing: ClusterStanding, node_id: int) -> QuorumNode:
    address = standing.address(node_id)
    listeners = () if address is None else (QuorumListener(name=LISTENER, host=address[0], port=address[1]),)
    return QuorumNode(node_id=node_id, listeners=listeners)
