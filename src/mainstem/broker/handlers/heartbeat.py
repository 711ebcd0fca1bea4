"""Heartbeat."""

from __future__ import annotations

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


async def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> HeartbeatResponse:
    return await broker.groups.heartbeat(request)
