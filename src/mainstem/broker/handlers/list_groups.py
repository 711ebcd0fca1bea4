"""ListGroups. A client that may not describe the cluster sees the consumer groups that it may describe."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_administration import ListGroupsRequest, ListGroupsResponse
from mainstem.security.acls.acl import Operation, ResourceKind

GROUPS_PER_TURN = 500
"""Consumer groups judged within one turn of the event loop: about a millisecond."""


async def handle(broker: Broker, request: ListGroupsRequest, call: RequestContext) -> ListGroupsResponse:
    response = await broker.groups.administration.list_groups(request)
    if broker.verdicts(call.session).allows_on_cluster(Operation.DESCRIBE):
        return response
    shown = []
    pace = broker.turns.pace(GROUPS_PER_TURN)
    for group in response.groups:
        await pace.step()
        if broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.GROUP, group.group_id):
            shown.append(group)
    return replace(response, groups=tuple(shown))
