"""ListGroups."""

from __future__ import annotations

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse


async def handle(broker: Broker, request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    return await broker.groups.list_groups(request)
