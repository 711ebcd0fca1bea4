"""DescribeGroups. Up to version 5 a consumer group that does not exist is described as dead, without an
error."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from mainstem.security.acls.acl import ResourceKind
from mainstem.security.acls.authorizer import SessionVerdicts

NOT_FOUND_FROM = 6

GROUPS_PER_STEP = 100
"""Consumer groups described in one turn of the event loop."""


async def handle(broker: Broker, request: DescribeGroupsRequest, call: RequestContext) -> DescribeGroupsResponse:
    shown: list[DescribedGroup] = []
    for first in range(0, len(request.groups), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        part = replace(request, groups=request.groups[first : first + GROUPS_PER_STEP])
        response = await broker.groups.administration.describe_groups(part)
        verdicts = broker.verdicts(call.session)
        shown += [_shown(group, request, call, verdicts) for group in response.groups]
    return DescribeGroupsResponse(groups=tuple(shown))


def _shown(
    group: DescribedGroup, request: DescribeGroupsRequest, call: RequestContext, verdicts: SessionVerdicts
) -> DescribedGroup:
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND and call.version < NOT_FOUND_FROM:
        group = replace(group, error_code=ErrorCode.NONE, error_message=None)
    if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
        return replace(group, authorized_operations=verdicts.operations(ResourceKind.GROUP, group.group_id))
    return group
