"""The life of a member of a consumer group whose partitions the coordinator assigns (KIP-848), in two APIs.

ConsumerGroupHeartbeat: join, stay, hear of an assignment, confirm it, and leave. A field is null when the member has
said the same before.
ConsumerGroupDescribe: such consumer groups with their epochs and their members' assignments.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import array, boolean, int8, int16, int32, message, nested, string, struct, uuid, wire

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""The member's instance comes back."""

MEMBER_TYPE_CLASSIC = 0
MEMBER_TYPE_CONSUMER = 1
"""`member_type` of a member that speaks this protocol."""


@nested
class HeartbeatTopicPartitions:
    topic_id: UUID = wire(uuid)
    partitions: tuple[int, ...] = wire(array(int32))


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    subscribed_topic_names: tuple[str, ...] | None = wire(array(string), nullable="0+", default=None)
    subscribed_topic_regex: str | None = wire(string, "1+", nullable="1+", default=None)
    server_assignor: str | None = wire(string, nullable="0+", default=None)
    topic_partitions: tuple[HeartbeatTopicPartitions, ...] | None = wire(
        array(HeartbeatTopicPartitions), nullable="0+", default=None
    )


@nested
class HeartbeatAssignment:
    topic_partitions: tuple[HeartbeatTopicPartitions, ...] = wire(array(HeartbeatTopicPartitions))


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    member_id: str | None = wire(string, nullable="0+", default=None)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    assignment: HeartbeatAssignment | None = wire(struct(HeartbeatAssignment), nullable="0+", default=None)


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...] = wire(array(string))
    include_authorized_operations: bool = wire(boolean)


@nested
class DescribedTopicPartitions:
    topic_id: UUID = wire(uuid)
    topic_name: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class DescribedAssignment:
    topic_partitions: tuple[DescribedTopicPartitions, ...] = wire(array(DescribedTopicPartitions))


@nested
class DescribedConsumer:
    member_id: str = wire(string)
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    member_epoch: int = wire(int32)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: tuple[str, ...] = wire(array(string))
    subscribed_topic_regex: str | None = wire(string, nullable="0+", default=None)
    assignment: DescribedAssignment = wire(struct(DescribedAssignment))
    target_assignment: DescribedAssignment = wire(struct(DescribedAssignment))
    member_type: int = wire(int8, "1+", default=-1, ignorable=True)


@nested
class DescribedConsumerGroup:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    assignor_name: str = wire(string)
    members: tuple[DescribedConsumer, ...] = wire(array(DescribedConsumer))
    authorized_operations: int = wire(int32, default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: int = wire(int32, default=0)
    groups: tuple[DescribedConsumerGroup, ...] = wire(array(DescribedConsumerGroup))
