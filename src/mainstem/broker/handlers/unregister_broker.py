"""UnregisterBroker: takes a node that is gone for good out of the cluster, as `mainstem cluster remove` does. A node
that holds anything, or still runs, stays."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.errors import error_of_refusal
from mainstem.broker.request_context import RequestContext
from mainstem.errors import MainstemError
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


async def handle(broker: Broker, request: UnregisterBrokerRequest, call: RequestContext) -> UnregisterBrokerResponse:
    if broker.cluster_admin is None:
        return UnregisterBrokerResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if all(node.node_id != request.broker_id for node in broker.metadata.nodes()):
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            error_message=f"node {request.broker_id} is not registered in this cluster",
        )
    try:
        await broker.cluster_admin.remove_node(request.broker_id)
    except MainstemError as refusal:
        return UnregisterBrokerResponse(error_code=error_of_refusal(refusal), error_message=str(refusal))
    return UnregisterBrokerResponse(error_code=ErrorCode.NONE)
