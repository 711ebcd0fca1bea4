"""Heartbeat."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_membership import HeartbeatRequest, HeartbeatResponse


async def handle(broker: Broker, request: HeartbeatRequest, call: RequestContext) -> HeartbeatResponse:
    return await broker.groups.membership.heartbeat(request)
