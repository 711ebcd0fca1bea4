"""StreamsGroupDescribe. A group whose application has a topic that the client may not describe is not shown."""

from __future__ import annotations

from collections.abc import Iterator

from mainstem.broker.admin.group_visibility import shown_groups
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.streams.streams_described import streams_not_described
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)


async def handle(
    broker: Broker, request: StreamsGroupDescribeRequest, call: RequestContext
) -> StreamsGroupDescribeResponse:
    groups = await shown_groups(
        broker,
        call,
        request.group_ids,
        describe=broker.groups.administration.describe_streams_groups,
        topics_of=_topics,
        hidden=streams_not_described,
        with_operations=request.include_authorized_operations,
    )
    return StreamsGroupDescribeResponse(groups=groups)


def _topics(group: DescribedStreamsGroup) -> Iterator[str]:
    for part in () if group.topology is None else group.topology.subtopologies or ():
        yield from (*part.source_topics, *part.repartition_sink_topics)
        yield from (topic.name for topic in (*part.state_changelog_topics, *part.repartition_source_topics))
