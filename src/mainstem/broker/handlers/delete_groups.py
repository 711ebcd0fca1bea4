"""DeleteGroups."""

from __future__ import annotations

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse


async def handle(broker: Broker, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    return await broker.groups.delete_groups(request)
