"""DeleteGroups."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_administration import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

GROUPS_PER_STEP = 100
"""Groups deleted in one turn of the event loop, but for their committed offsets."""


async def handle(broker: Broker, request: DeleteGroupsRequest, call: RequestContext) -> DeleteGroupsResponse:
    results: dict[str, DeletableGroupResult] = {}
    for first in range(0, len(request.groups_names), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        part = replace(request, groups_names=request.groups_names[first : first + GROUPS_PER_STEP])
        response = await broker.groups.delete_groups(part)
        for result in response.results:  # of a group named twice, the first: the second finds it gone
            results.setdefault(result.group_id, result)
    return DeleteGroupsResponse(results=tuple(results.values()))
