"""SyncGroup."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_membership import SyncGroupRequest, SyncGroupResponse


async def handle(broker: Broker, request: SyncGroupRequest, call: RequestContext) -> SyncGroupResponse:
    return await broker.groups.membership.sync_group(request)
