"""The requests by which members of groups of all kinds join, stay and leave."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mainstem.broker.consumer_groups.modern.heartbeat import HeartbeatCaller, refused
from mainstem.broker.consumer_groups.rebalancing.rebalance import refused_join, refused_sync
from mainstem.broker.consumer_groups.requests.submission import Submission
from mainstem.broker.consumer_groups.shared.share_heartbeat import refused_share
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.consumer_groups.streams.streams_heartbeat import StreamsAnswer, refused_streams
from mainstem.broker.request_context import RequestContext
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from mainstem.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest


class MembershipRequests:
    """To the coordinator of one node."""

    def __init__(self, submission: Submission) -> None:
        self._submission = submission

    async def join_group(self, request: JoinGroupRequest, call: RequestContext) -> JoinGroupResponse:
        caller = Caller.of(call)
        return await self._submission.patient_answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.join(ticket, request, caller, now),
            partial(refused_join, request.member_id),
        )

    async def sync_group(self, request: SyncGroupRequest) -> SyncGroupResponse:
        return await self._submission.answer(
            request.group_id, lambda machine, ticket, now: machine.membership.sync(ticket, request, now), refused_sync
        )

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.heartbeat(ticket, request, now),
            _refused_heartbeat,
        )

    async def leave_group(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """A request in the form of version 3 and later: `members` names the members that leave."""
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.leave(ticket, request, now),
            lambda code: LeaveGroupResponse(error_code=code),
        )

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, call: RequestContext, may_describe: Callable[[str], bool]
    ) -> ConsumerGroupHeartbeatResponse:
        """The heartbeat of a member whose partitions the coordinator assigns. `may_describe`: which topics it sees."""
        sender = HeartbeatCaller(Caller.of(call), may_describe)
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.consumer_heartbeat(ticket, request, sender, now),
            refused,
        )

    async def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, call: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        """The heartbeat of a member of a share group."""
        caller = Caller.of(call)
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.share_heartbeat(ticket, request, caller, now),
            refused_share,
        )

    async def streams_heartbeat(self, request: StreamsGroupHeartbeatRequest, call: RequestContext) -> StreamsAnswer:
        """The heartbeat of a member of a streams group."""
        caller = Caller.of(call)
        return await self._submission.answer(
            request.group_id,
            lambda machine, ticket, now: machine.membership.streams.heartbeat(ticket, request, caller, now),
            lambda code: StreamsAnswer(refused_streams(code)),
        )


def _refused_heartbeat(code: ErrorCode) -> HeartbeatResponse:
    # While the log is loaded no session runs: let members carry on.
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)
