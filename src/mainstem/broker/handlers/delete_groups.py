"""DeleteGroups."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)

GROUPS_PER_STEP = 100
"""Deleted in one turn of the event loop, but for what they have committed."""


async def handle(broker: Broker, request: DeleteGroupsRequest, call: Call) -> DeleteGroupsResponse:
    results: dict[str, DeletableGroupResult] = {}
    for first in range(0, len(request.groups_names), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        part = replace(request, groups_names=request.groups_names[first : first + GROUPS_PER_STEP])
        response = await broker.groups.delete_groups(part)
        for result in response.results:  # of a group named again, the first: it is gone by then
            results.setdefault(result.group_id, result)
    return DeleteGroupsResponse(results=tuple(results.values()))
