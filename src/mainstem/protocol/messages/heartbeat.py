"""Heartbeat: a member says it is alive, and learns of a rebalance."""

from __future__ import annotations

from mainstem.protocol.schema import int16, int32, message, string, wire


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
