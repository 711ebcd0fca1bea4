"""ShareGroupHeartbeat. Topics that the client may not describe are refused."""

from __future__ import annotations

from mainstem.broker.admin.group_visibility import may_describe_all
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.shared.share_heartbeat import refused_share
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


async def handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, call: RequestContext
) -> ShareGroupHeartbeatResponse:
    if not await may_describe_all(broker, call, request.subscribed_topic_names or ()):
        return refused_share(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return await broker.groups.membership.share_heartbeat(request, call)
