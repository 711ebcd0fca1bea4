"""JoinGroup."""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_membership import JoinGroupRequest, JoinGroupResponse

NULL_PROTOCOL_FROM = 7
"""Before this version, no protocol is an empty name."""


async def handle(broker: Broker, request: JoinGroupRequest, call: RequestContext) -> JoinGroupResponse:
    response = await broker.groups.membership.join_group(request, call)
    if response.protocol_name is None and call.version < NULL_PROTOCOL_FROM:
        return replace(response, protocol_name="")
    return response
