"""The life of a member of a share group (KIP-932), in two APIs.

ShareGroupHeartbeat: join, stay, hear of the partitions to read, and leave. Nothing is confirmed: members of a share
group may read one partition together.
ShareGroupDescribe: share groups with their epochs and their members' partitions.
"""

from __future__ import annotations

from mainstem.protocol.messages.consumer_group_heartbeat import DescribedAssignment, HeartbeatAssignment
from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import array, boolean, int16, int32, message, nested, string, struct, wire


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    group_id: str = wire(string)
    member_id: str = wire(string)
    member_epoch: int = wire(int32)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    subscribed_topic_names: tuple[str, ...] | None = wire(array(string), nullable="0+", default=None)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    member_id: str | None = wire(string, nullable="0+", default=None)
    member_epoch: int = wire(int32)
    heartbeat_interval_ms: int = wire(int32)
    assignment: HeartbeatAssignment | None = wire(struct(HeartbeatAssignment), nullable="0+", default=None)


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    group_ids: tuple[str, ...] = wire(array(string))
    include_authorized_operations: bool = wire(boolean)


@nested
class DescribedShareMember:
    member_id: str = wire(string)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    member_epoch: int = wire(int32)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: tuple[str, ...] = wire(array(string))
    assignment: DescribedAssignment = wire(struct(DescribedAssignment))


@nested
class DescribedShareGroup:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    group_id: str = wire(string)
    group_state: str = wire(string)
    group_epoch: int = wire(int32)
    assignment_epoch: int = wire(int32)
    assignor_name: str = wire(string)
    members: tuple[DescribedShareMember, ...] = wire(array(DescribedShareMember))
    authorized_operations: int = wire(int32, default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    throttle_time_ms: int = wire(int32, default=0)
    groups: tuple[DescribedShareGroup, ...] = wire(array(DescribedShareGroup))
