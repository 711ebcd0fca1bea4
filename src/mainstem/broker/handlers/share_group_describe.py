"""ShareGroupDescribe. A group that reads a topic which the client may not describe is not shown."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.admin.group_visibility import shown_groups
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.shared.share_described import share_not_described
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)


async def handle(
    broker: Broker, request: ShareGroupDescribeRequest, call: RequestContext
) -> ShareGroupDescribeResponse:
    groups = await shown_groups(
        broker,
        call,
        request.group_ids,
        describe=broker.groups.administration.describe_share_groups,
        topics_of=_topics,
        hidden=share_not_described,
        with_operations=request.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(groups=groups)


def _topics(group: DescribedShareGroup) -> Iterator[str]:
    for member in group.members:
        for row in member.assignment.topic_partitions:
            yield row.topic_name
