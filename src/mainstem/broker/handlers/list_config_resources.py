"""ListConfigResources: the names of topics and brokers, as what has configs (KIP-1142). Client metrics and groups have
none here."""

from __future__ import annotations

from mainstem.broker.admin.config_entries import ResourceType
from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)

NAMES_PER_TURN = 1_000
"""Names listed within one turn of the event loop: about a millisecond."""

_NAMED = (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.BROKER_LOGGER)
_SUPPORTED = frozenset(map(int, ResourceType))


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, call: RequestContext
) -> ListConfigResourcesResponse:
    if call.version == 0:
        return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=())
    wanted = set(request.resource_types) or _SUPPORTED
    if not wanted <= _SUPPORTED:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=())
    nodes = [str(node.node_id) for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener)]
    found: list[ListedConfigResource] = []
    pace = broker.turns.pace(NAMES_PER_TURN)
    for kind in _NAMED:
        if kind not in wanted:
            continue
        names = [topic.name for topic in broker.metadata.topics()] if kind is ResourceType.TOPIC else nodes
        for name in names:
            await pace.step()
            found.append(ListedConfigResource(resource_name=name, resource_type=kind))
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=tuple(found))
