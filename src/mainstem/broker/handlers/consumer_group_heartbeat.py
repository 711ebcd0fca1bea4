"""ConsumerGroupHeartbeat. Topics that the client may not describe are refused by name, and left out where a regular
expression matches them."""

from __future__ import annotations

from mainstem.broker.admin.group_visibility import may_describe_all
from mainstem.broker.broker import Broker
from mainstem.broker.consumer_groups.modern.heartbeat import refused
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from mainstem.security.acls.acl import Operation, ResourceKind


async def handle(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, call: RequestContext
) -> ConsumerGroupHeartbeatResponse:
    def may_describe(topic: str) -> bool:
        return broker.verdicts(call.session).allows(Operation.DESCRIBE, ResourceKind.TOPIC, topic)

    if not await may_describe_all(broker, call, request.subscribed_topic_names or ()):
        return refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return await broker.groups.membership.consumer_heartbeat(request, call, may_describe)
