"""StreamsGroupDescribe. A group whose application has a topic that the client may not describe is not shown."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.streams.streams_described import streams_not_described
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind
from mainstem.security.acls.authorizer import SessionVerdicts

GROUPS_PER_STEP = 100
"""Streams groups described in one turn of the event loop."""


async def handle(
    broker: Broker, request: StreamsGroupDescribeRequest, call: RequestContext
) -> StreamsGroupDescribeResponse:
    shown: list[DescribedStreamsGroup] = []
    for first in range(0, len(request.group_ids), GROUPS_PER_STEP):
        if first:
            await broker.turns.take()
        found = await broker.groups.administration.describe_streams_groups(
            request.group_ids[first : first + GROUPS_PER_STEP]
        )
        verdicts = broker.verdicts(call.session)
        shown += [_shown(group, request, verdicts) for group in found]
    return StreamsGroupDescribeResponse(groups=tuple(shown))


def _shown(
    group: DescribedStreamsGroup, request: StreamsGroupDescribeRequest, verdicts: SessionVerdicts
) -> DescribedStreamsGroup:
    names = _names(group)
    if not all(verdicts.allows(Operation.DESCRIBE, ResourceKind.TOPIC, name) for name in names):
        why = "the application has topics that the client may not describe"
        return streams_not_described(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
    if request.include_authorized_operations and group.error_code == ErrorCode.NONE:
        return replace(group, authorized_operations=verdicts.operations(ResourceKind.GROUP, group.group_id))
    return group


def _names(group: DescribedStreamsGroup) -> set[str]:
    parts = () if group.topology is None else group.topology.subtopologies or ()
    names: set[str] = set()
    for part in parts:
        names.update((*part.source_topics, *part.repartition_sink_topics))
        names.update(topic.name for topic in (*part.state_changelog_topics, *part.repartition_source_topics))
    return names
