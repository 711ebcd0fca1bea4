"""ConsumerGroupDescribe. A group that reads a topic which the client may not describe is not shown."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.admin.group_visibility import shown_groups
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.modern.described import not_described
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumerGroup,
)


async def handle(
    broker: Broker, request: ConsumerGroupDescribeRequest, call: RequestContext
) -> ConsumerGroupDescribeResponse:
    groups = await shown_groups(
        broker,
        call,
        request.group_ids,
        describe=broker.groups.administration.describe_consumer_groups,
        topics_of=_topics,
        hidden=not_described,
        with_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)


def _topics(group: DescribedConsumerGroup) -> Iterator[str]:
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            for row in assignment.topic_partitions:
                yield row.topic_name
