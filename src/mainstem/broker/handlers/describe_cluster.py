"""DescribeCluster: the cluster's id and its nodes."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.handlers.metadata import controller_id, operations_on_cluster
from mainstem.broker.request_context import RequestContext
from mainstem.model import nodes_at
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
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=broker.metadata.cluster_id(),
        controller_id=controller_id(broker, {node.node_id for node in nodes}),
        brokers=tuple(
            DescribeClusterBroker(broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack)
            for node in nodes
        ),
        cluster_authorized_operations=operations_on_cluster(broker, call)
        if request.include_cluster_authorized_operations
        else AUTHORIZED_OPERATIONS_UNKNOWN,
    )


def _refused(broker: Broker, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == ENDPOINT_TYPE_CONTROLLERS:
        error, message = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker's address, not a controller's"
    else:
        error, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "the endpoints asked for are of no known type"
    return DescribeClusterResponse(
        error_code=error, error_message=message, cluster_id=broker.metadata.cluster_id(), brokers=()
    )
