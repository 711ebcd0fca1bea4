"""ConsumerGroupDescribe. A group that reads a topic which the client may not describe is not shown."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.modern.described import not_described
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import SessionVerdicts

GROUPS_PER_STEP = 100
"""Consumer groups described in one turn of the event loop."""


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, call: RequestContext
) -> ConsumerGroupDescribeResponse:
    shown: list[DescribedConsumerGroup] = []
    for first in range(0, len(request.group_ids), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        found = await broker.groups.administration.describe_consumer_groups(
            request.group_ids[first : first + GROUPS_PER_STEP]
        )
        verdicts = broker.verdicts(call.session)
        shown += [_shown(group, request, verdicts) for group in found]
    return ConsumerGroupDescribeResponse(groups=tuple(shown))


def _shown(
    group: DescribedConsumerGroup, request: ConsumerGroupDescribeRequest, verdicts: SessionVerdicts
) -> DescribedConsumerGroup:
    names = {
        row.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for row in assignment.topic_partitions
    }
    if not all(verdicts.allows(Operation.DESCRIBE, ResourceKind.TOPIC, name) for name in names):
        why = "members of the group read topics that the client may not describe"
        return not_described(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
    if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
        return replace(group, authorized_operations=verdicts.operations(ResourceKind.GROUP, group.group_id))
    return group
