"""JoinGroup: become a member of a classic consumer group and learn the new generation."""

from __future__ import annotations

from mainstem.protocol.schema import array, binary, boolean, int16, int32, message, nested, string, wire


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
