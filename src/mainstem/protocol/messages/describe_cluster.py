"""DescribeCluster: the cluster's id, controller and brokers."""

from __future__ import annotations

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, wire

ENDPOINT_TYPE_BROKERS = 1
ENDPOINT_TYPE_CONTROLLERS = 2


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = wire(boolean)
    endpoint_type: int = wire(int8, "1+", default=ENDPOINT_TYPE_BROKERS)
    include_fenced_brokers: bool = wire(boolean, "2+", default=False)


@nested
class DescribeClusterBroker:
    broker_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, nullable="0+", default=None)
    is_fenced: bool = wire(boolean, "2+", default=False)


@message(api_key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    endpoint_type: int = wire(int8, "1+", default=ENDPOINT_TYPE_BROKERS)
    cluster_id: str = wire(string)
    controller_id: int = wire(int32, default=-1)
    brokers: tuple[DescribeClusterBroker, ...] = wire(array(DescribeClusterBroker))
    cluster_authorized_operations: int = wire(int32, default=AUTHORIZED_OPERATIONS_UNKNOWN)
