"""The life of a member of a streams group (KIP-1071), in two APIs.

StreamsGroupHeartbeat: join with the topology of the application, stay, confirm tasks that are given up, hear of the
tasks to run, and leave.
StreamsGroupDescribe: streams groups with their epochs, their topology, and their members' tasks.
"""

from __future__ import annotations

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import (
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uint16,
    wire,
)


@nested
class StreamsKeyValue:
    """A config of a topic, or a tag of a client."""

    key: str = wire(string)
    value: str = wire(string)


@nested
class StreamsTopicInfo:
    """An internal topic of a streams application."""

    name: str = wire(string)
    partitions: int = wire(int32)
    """Zero: as many as follow from the topology."""
    replication_factor: int = wire(int16)
    """Zero: as many as topics have that say nothing."""
    topic_configs: tuple[StreamsKeyValue, ...] = wire(array(StreamsKeyValue))


@nested
class StreamsCopartitionGroup:
    """Topics that must have as many partitions as each other, by their numbers in the lists of the subtopology."""

    source_topics: tuple[int, ...] = wire(array(int16))
    source_topic_regex: tuple[int, ...] = wire(array(int16))
    repartition_source_topics: tuple[int, ...] = wire(array(int16))


@nested
class StreamsSubtopology:
    subtopology_id: str = wire(string)
    source_topics: tuple[str, ...] = wire(array(string))
    source_topic_regex: tuple[str, ...] = wire(array(string))
    state_changelog_topics: tuple[StreamsTopicInfo, ...] = wire(array(StreamsTopicInfo))
    repartition_sink_topics: tuple[str, ...] = wire(array(string))
    repartition_source_topics: tuple[StreamsTopicInfo, ...] = wire(array(StreamsTopicInfo))
    copartition_groups: tuple[StreamsCopartitionGroup, ...] = wire(array(StreamsCopartitionGroup))


@nested
class StreamsTopology:
    epoch: int = wire(int32)
    subtopologies: tuple[StreamsSubtopology, ...] = wire(array(StreamsSubtopology))


@nested
class StreamsTaskIds:
    """The tasks of a subtopology, by the partitions that they read."""

    subtopology_id: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class StreamsEndpoint:
    """The address at which an application answers queries of its state."""

    host: str = wire(string)
    port: int = wire(uint16)


@nested
class StreamsTaskOffset:
    subtopology_id: str = wire(string)
    partition: int = wire(int32)
    offset: int = wire(int64)


@message(api_key=88, versions="0", flexible="0+")
class StreamsGroupHeartbeatRequest:
    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    endpoint_information_epoch: int = wire(int32)
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    topology: StreamsTopology | None = wire(struct(StreamsTopology), nullable="0+", default=None)
    active_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    standby_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    warmup_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    process_id: str | None = wire(string, nullable="0+", default=None)
    user_endpoint: StreamsEndpoint | None = wire(struct(StreamsEndpoint), nullable="0+", default=None)
    client_tags: tuple[StreamsKeyValue, ...] | None = wire(array(StreamsKeyValue), nullable="0+", default=None)
    task_offsets: tuple[StreamsTaskOffset, ...] | None = wire(array(StreamsTaskOffset), nullable="0+", default=None)
    task_end_offsets: tuple[StreamsTaskOffset, ...] | None = wire(array(StreamsTaskOffset), nullable="0+", default=None)
    shutdown_application: bool = wire(boolean, default=False)


@nested
class StreamsStatus:
    """Something about the group that its members should know."""

    status_code: int = wire(int8)
    status_detail: str = wire(string)


@nested
class StreamsTopicPartitions:
    topic: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class StreamsEndpointPartitions:
    """The partitions whose state an endpoint has."""

    user_endpoint: StreamsEndpoint = wire(struct(StreamsEndpoint))
    active_partitions: tuple[StreamsTopicPartitions, ...] = wire(array(StreamsTopicPartitions))
    standby_partitions: tuple[StreamsTopicPartitions, ...] = wire(array(StreamsTopicPartitions))


@message(api_key=88, versions="0", flexible="0+")
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    acceptable_recovery_lag: int = wire(int32)
    task_offset_interval_ms: int = wire(int32)
    status: tuple[StreamsStatus, ...] | None = wire(array(StreamsStatus), nullable="0+")
    active_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    standby_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    warmup_tasks: tuple[StreamsTaskIds, ...] | None = wire(array(StreamsTaskIds), nullable="0+", default=None)
    endpoint_information_epoch: int = wire(int32)
    partitions_by_user_endpoint: tuple[StreamsEndpointPartitions, ...] | None = wire(
        array(StreamsEndpointPartitions), nullable="0+", default=None
    )


@message(api_key=89, versions="0", flexible="0+")
class StreamsGroupDescribeRequest:
    group_ids: tuple[str, ...] = wire(array(string))
    include_authorized_operations: bool = wire(boolean)


@nested
class DescribedSubtopology:
    subtopology_id: str = wire(string)
    source_topics: tuple[str, ...] = wire(array(string))
    repartition_sink_topics: tuple[str, ...] = wire(array(string))
    state_changelog_topics: tuple[StreamsTopicInfo, ...] = wire(array(StreamsTopicInfo))
    repartition_source_topics: tuple[StreamsTopicInfo, ...] = wire(array(StreamsTopicInfo))


@nested
class DescribedTopology:
    epoch: int = wire(int32)
    subtopologies: tuple[DescribedSubtopology, ...] | None = wire(
        array(DescribedSubtopology), nullable="0+", default=None
    )


@nested
class DescribedTasks:
    active_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))
    standby_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))
    warmup_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))


@nested
class DescribedStreamsMember:
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    topology_epoch: int = wire(int32)
    process_id: str = wire(string)
    user_endpoint: StreamsEndpoint | None = wire(struct(StreamsEndpoint), nullable="0+", default=None)
    client_tags: tuple[StreamsKeyValue, ...] = wire(array(StreamsKeyValue))
    task_offsets: tuple[StreamsTaskOffset, ...] = wire(array(StreamsTaskOffset))
    task_end_offsets: tuple[StreamsTaskOffset, ...] = wire(array(StreamsTaskOffset))
    assignment: DescribedTasks = wire(struct(DescribedTasks))
    target_assignment: DescribedTasks = wire(struct(DescribedTasks))
    is_classic: bool = wire(boolean)


@nested
class DescribedStreamsGroup:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    topology: DescribedTopology | None = wire(struct(DescribedTopology), nullable="0+", default=None)
    members: tuple[DescribedStreamsMember, ...] = wire(array(DescribedStreamsMember))
    authorized_operations: int = wire(int32, default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=89, versions="0", flexible="0+")
class StreamsGroupDescribeResponse:
    throttle_time_ms: int = wire(int32, default=0)
    groups: tuple[DescribedStreamsGroup, ...] = wire(array(DescribedStreamsGroup))
