"""DeleteGroups. All nodes forget how far a share group is before the group itself is deleted: if one of them cannot be
asked, the group is still there to be deleted again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.shared.share_group import ShareGroupState
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
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
        names = request.groups_names[first : first + GROUPS_PER_STEP]
        kept = await _with_state(broker, names)
        for name in kept:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            results.setdefault(name, DeletableGroupResult(group_id=name, error_code=code))
        part = replace(request, groups_names=tuple(name for name in names if name not in kept))
        response = await broker.groups.administration.delete_groups(part)
        for result in response.results:  # of a group named twice, the first: the second finds it gone
            results.setdefault(result.group_id, result)
    return DeleteGroupsResponse(results=tuple(results.values()))


async def _with_state(broker: Broker, names: Sequence[str]) -> set[str]:
    """Forget what empty share groups have read; returns those of which some is left."""
    found = await broker.groups.administration.describe_share_groups(names)
    empty = {group.group_id for group in found if group.group_state == ShareGroupState.EMPTY.value}
    return {name for name in sorted(empty) if not await broker.shares.states.forget_group(name)}
