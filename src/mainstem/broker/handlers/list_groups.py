"""ListGroups."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_administration import ListGroupsRequest, ListGroupsResponse


async def handle(broker: Broker, request: ListGroupsRequest, call: RequestContext) -> ListGroupsResponse:
    return await broker.groups.list_groups(request)
