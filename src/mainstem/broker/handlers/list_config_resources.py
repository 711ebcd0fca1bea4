"""ListConfigResources: the names of topics and brokers, as what has configs (KIP-1142), and of groups and client
metrics those that have some set. Version 0 asks for client metrics alone (KIP-1000)."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.model import ResourceType, nodes_at
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)

NAMES_PER_TURN = 1_000
"""Names listed within one turn of the event loop: about a millisecond."""

_NAMED = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)
_SUPPORTED = frozenset(map(int, ResourceType))


async def handle(
    broker: Broker, request: ListConfigResourcesRequest, call: RequestContext
) -> ListConfigResourcesResponse:
    wanted = {int(ResourceType.CLIENT_METRICS)} if call.version == 0 else set(request.resource_types) or _SUPPORTED
    if not wanted <= _SUPPORTED:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=())
    nodes = [str(node.node_id) for node in nodes_at(broker.cluster.alive_nodes(), call.session.listener)]
    found: list[ListedConfigResource] = []
    pace = broker.turns.pace(NAMES_PER_TURN)
    for kind in _NAMED:
        if kind not in wanted:
            continue
        for name in _names(broker, kind, nodes):
            await pace.step()
            found.append(ListedConfigResource(resource_name=name, resource_type=kind))
    return ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=tuple(found))


def _names(broker: Broker, kind: ResourceType, nodes: Sequence[str]) -> Sequence[str]:
    match kind:
        case ResourceType.TOPIC:
            return [topic.name for topic in broker.metadata.topics()]
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return nodes
        case _:
            return broker.configs.names(kind)
