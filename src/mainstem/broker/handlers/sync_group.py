"""SyncGroup."""

from __future__ import annotations

from mainstem.broker.broker import Broker, Call
from mainstem.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


async def handle(broker: Broker, request: SyncGroupRequest, call: Call) -> SyncGroupResponse:
    return await broker.groups.sync_group(request)
