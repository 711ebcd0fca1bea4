"""ShareGroupHeartbeat. Topics that the client may not describe are refused."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.shared.share_heartbeat import refused_share
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from mainstem.security.acls.acl import Operation, ResourceKind

NAMES_PER_TURN = 500
"""Names judged within one turn of the event loop: about a millisecond."""


async def handle(
    broker: Broker, request: ShareGroupHeartbeatRequest, call: RequestContext
) -> ShareGroupHeartbeatResponse:
    pace = broker.turns.pace(NAMES_PER_TURN)
    for name in request.subscribed_topic_names or ():
        await pace.step()
        if not broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, name):
            return refused_share(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return await broker.groups.membership.share_heartbeat(request, call)
