"""Describes streams groups to administrators."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.consumer_groups.streams.streams_group import StreamsGroup
from mainstem.broker.consumer_groups.streams.streams_member import StreamsMember
from mainstem.broker.consumer_groups.streams.streams_step import StreamsStep, look_at_topics
from mainstem.broker.consumer_groups.streams.topology import ConfiguredTopology
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import ListedGroup
from mainstem.protocol.messages.streams_groups import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    DescribedTopology,
    StreamsSubtopology,
    StreamsTopicInfo,
)

STREAMS_PROTOCOL = "streams"


def listed_streams(group: StreamsGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=STREAMS_PROTOCOL,
        group_state=group.state.value,
        group_type=STREAMS_PROTOCOL,
    )


def described_streams(it: StreamsStep) -> DescribedStreamsGroup:
    group = it.group
    configured = look_at_topics(it)[0] if group.topology is not None else None
    return DescribedStreamsGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=None if configured is None else _topology(group, configured),
        members=tuple(_member(group, member) for member in group.members.values()),
    )


def streams_not_described(group_id: str, code: ErrorCode, why: str | None = None) -> DescribedStreamsGroup:
    return DescribedStreamsGroup(
        error_code=code,
        error_message=why or code.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        members=(),
    )


def _topology(group: StreamsGroup, configured: ConfiguredTopology) -> DescribedTopology:
    """With the numbers of partitions that internal topics have; without subtopologies while they are not known."""
    assert group.topology is not None
    if not configured.ready:
        return DescribedTopology(epoch=configured.epoch)
    parts = tuple(_subtopology(part, configured) for part in group.topology.subtopologies)
    return DescribedTopology(epoch=configured.epoch, subtopologies=parts)


def _subtopology(part: StreamsSubtopology, configured: ConfiguredTopology) -> DescribedSubtopology:
    def sized(topic: StreamsTopicInfo) -> StreamsTopicInfo:
        known = configured.internal.get(topic.name)
        return topic if known is None else replace(topic, partitions=known.partitions)

    return DescribedSubtopology(
        subtopology_id=part.subtopology_id,
        source_topics=part.source_topics,
        repartition_sink_topics=part.repartition_sink_topics,
        state_changelog_topics=tuple(map(sized, part.state_changelog_topics)),
        repartition_source_topics=tuple(map(sized, part.repartition_source_topics)),
    )


def _member(group: StreamsGroup, member: StreamsMember) -> DescribedStreamsMember:
    metadata = member.metadata
    assert metadata is not None, f"member {member.member_id!r} of {group.group_id!r} has no metadata"
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.current.epoch,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        topology_epoch=metadata.topology_epoch,
        process_id=metadata.process_id,
        user_endpoint=metadata.user_endpoint,
        client_tags=metadata.client_tags,
        task_offsets=(),
        task_end_offsets=(),
        assignment=member.current.assigned.described(),
        target_assignment=group.target(member.member_id).described(),
        is_classic=False,
    )
