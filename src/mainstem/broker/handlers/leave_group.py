"""LeaveGroup. Up to version 2 a member speaks for itself, and its error stands at the top of the response."""

from __future__ import annotations

from mainstem.broker.broker import Broker
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.messages.group_membership import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

SEVERAL_MEMBERS_FROM = 3


async def handle(broker: Broker, request: LeaveGroupRequest, call: RequestContext) -> LeaveGroupResponse:
    if call.version >= SEVERAL_MEMBERS_FROM:
        return await broker.groups.membership.leave_group(request)
    alone = (MemberIdentity(member_id=request.member_id),)
    response = await broker.groups.membership.leave_group(LeaveGroupRequest(group_id=request.group_id, members=alone))
    codes = [response.error_code, *(member.error_code for member in response.members)]
    return LeaveGroupResponse(error_code=next((code for code in codes if code), 0))
