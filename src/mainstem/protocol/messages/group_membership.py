"""The life of a member of a classic consumer group, in five APIs.

FindCoordinator: who coordinates a group or transaction; several keys at once from version 4.
JoinGroup: become a member and learn the new generation.
SyncGroup: the leader hands in the assignment of its generation, every member receives its own.
Heartbeat: a member says it is alive, and learns of a rebalance.
LeaveGroup: one member leaves (up to version 2), or several are removed (from 3).
"""

from __future__ import annotations

from mainstem.protocol.schema import array, binary, boolean, int8, int16, int32, message, nested, string, wire

KEY_TYPE_GROUP = 0
KEY_TYPE_TRANSACTION = 1
KEY_TYPE_SHARE = 2


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = wire(string, "0-3", default="")
    key_type: int = wire(int8, "1+", default=KEY_TYPE_GROUP)
    coordinator_keys: tuple[str, ...] = wire(array(string), "4+", default=())


@nested
class Coordinator:
    key: str = wire(string, "4+")
    node_id: int = wire(int32, "4+")
    host: str = wire(string, "4+")
    port: int = wire(int32, "4+")
    error_code: int = wire(int16, "4+")
    error_message: str | None = wire(string, "4+", nullable="4+", default=None, ignorable=True)


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16, "0-3", default=0)
    error_message: str | None = wire(string, "1-3", nullable="1-3", default=None, ignorable=True)
    node_id: int = wire(int32, "0-3", default=0)
    host: str = wire(string, "0-3", default="")
    port: int = wire(int32, "0-3", default=0)
    coordinators: tuple[Coordinator, ...] = wire(array(Coordinator), "4+", default=())


@nested
class JoinGroupRequestProtocol:
    name: str = wire(string)
    metadata: bytes = wire(binary)


@message(api_key=11, versions="0-9", flexible="6+", elements_max=1_000)
class JoinGroupRequest:
    group_id: str = wire(string)
    session_timeout_ms: int = wire(int32)
    rebalance_timeout_ms: int = wire(int32, "1+", default=-1, ignorable=True)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "5+", nullable="5+", default=None)
    protocol_type: str = wire(string)
    protocols: tuple[JoinGroupRequestProtocol, ...] = wire(array(JoinGroupRequestProtocol))
    reason: str | None = wire(string, "8+", nullable="8+", default=None, ignorable=True)


@nested
class JoinGroupResponseMember:
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = wire(binary)


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: int = wire(int32, "2+", default=0, ignorable=True)
    error_code: int = wire(int16)
    generation_id: int = wire(int32, default=-1)
    protocol_type: str | None = wire(string, "7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = wire(string, nullable="7+")
    leader: str = wire(string)
    skip_assignment: bool = wire(boolean, "9+", default=False)
    member_id: str = wire(string)
    members: tuple[JoinGroupResponseMember, ...] = wire(array(JoinGroupResponseMember))


@nested
class SyncGroupRequestAssignment:
    member_id: str = wire(string)
    assignment: bytes = wire(binary)


@message(api_key=14, versions="0-5", flexible="4+", elements_max=20_000)
class SyncGroupRequest:
    group_id: str = wire(string)
    generation_id: int = wire(int32)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    protocol_type: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)
    assignments: tuple[SyncGroupRequestAssignment, ...] = wire(array(SyncGroupRequestAssignment))


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16)
    protocol_type: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = wire(binary)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    group_id: str = wire(string)
    generation_id: int = wire(int32)
    member_id: str = wire(string)
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16)


@nested
class MemberIdentity:
    member_id: str = wire(string, "3+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+", default=None)
    reason: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: str = wire(string)
    member_id: str = wire(string, "0-2", default="")
    members: tuple[MemberIdentity, ...] = wire(array(MemberIdentity), "3+", default=())


@nested
class MemberResponse:
    member_id: str = wire(string, "3+")
    group_instance_id: str | None = wire(string, "3+", nullable="3+")
    error_code: int = wire(int16, "3+")


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16)
    members: tuple[MemberResponse, ...] = wire(array(MemberResponse), "3+", default=())
