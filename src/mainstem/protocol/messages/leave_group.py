"""LeaveGroup: one member leaves (up to version 2), or several are removed (from 3)."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


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
