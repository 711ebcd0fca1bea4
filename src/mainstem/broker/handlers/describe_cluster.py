"""DescribeCluster: the cluster's id and its nodes."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.handlers.metadata import controller_id, operations_on_cluster
from mainstem.broker.request_context import RequestContext
from mainstem.model import Node, NodeRole, nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.describe_cluster import (
    ENDPOINT_TYPE_BROKERS,
    ENDPOINT_TYPE_CONTROLLERS,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN


async def handle(broker: Broker, request: DescribeClusterRequest, call: RequestContext) -> DescribeClusterResponse:
    if request.endpoint_type != ENDPOINT_TYPE_BROKERS:
        return _refused(broker, request)
    nodes = nodes_at(broker.cluster.alive_nodes(), call.session.listener)
    fenced = _fenced(broker, call, nodes) if request.include_fenced_brokers else []
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.metadata.cluster_id(),
        controller_id=controller_id(broker, {node.node_id for node in nodes}),
        brokers=tuple(
            DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
        )
        + tuple(
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=True
            )
            for node in fenced
        ),
        cluster_authorized_operations=operations_on_cluster(broker, call)
        if request.include_cluster_authorized_operations
        else AUTHORIZED_OPERATIONS_UNKNOWN,
    )


def _fenced(broker: Broker, call: RequestContext, alive: Sequence[Node]) -> list[Node]:
    """The brokers that are held for dead."""
    here = {node.node_id for node in alive}
    brokers = [node for node in broker.metadata.nodes() if NodeRole.BROKER in node.roles]
    return [node for node in nodes_at(brokers, call.session.listener) if node.node_id not in here]


def _refused(broker: Broker, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == ENDPOINT_TYPE_CONTROLLERS:
        error, message = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's address, not a controller's"
    else:
        error, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "the endpoints asked for are of no known type"
    return DescribeClusterResponse(
        error_code=error, error_message=message, cluster_id=broker.metadata.cluster_id(), brokers=()
    )
