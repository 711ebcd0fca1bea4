"""SyncGroup: the leader hands in the assignment of its generation, every member receives its own."""

from __future__ import annotations

from mainstem.protocol.schema import array, binary, int16, int32, message, nested, string, wire


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
