"""Tracks which members are present: heartbeats, sessions that run out, and members that leave or are
removed."""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.consumer_groups.members.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    generation_error,
    member_error,
)
from mainstem.broker.consumer_groups.rebalancing import rebalance
from mainstem.broker.consumer_groups.step import Step
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import HeartbeatRequest, MemberIdentity, MemberResponse


def heartbeat(step: Step, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
    """Returns the answer's error code, by which a member learns that it must join again."""
    code = generation_error(group, request.member_id, request.group_instance_id, request.generation_id)
    if code is not ErrorCode.NONE:
        return code
    step.restart_session(group, request.member_id)
    preparing = group.state is ConsumerGroupState.PREPARING_REBALANCE
    return ErrorCode.REBALANCE_IN_PROGRESS if preparing else ErrorCode.NONE


def leave(step: Step, group: ConsumerGroup, members: Sequence[MemberIdentity]) -> tuple[MemberResponse, ...]:
    """Remove members, all in one rebalance. A static member may be named by its instance id alone."""
    responses = []
    for identity in members:
        code = _remove(step, group, identity)
        responses.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if any(response.error_code == ErrorCode.NONE for response in responses):
        _after_removal(step, group)
    return tuple(responses)


def session_over(step: Step, group: ConsumerGroup, member_id: str) -> None:
    """The session timer of a member, or of an id that was given out, ran out."""
    if member_id in group.pending_members:
        group.remove(member_id)
        rebalance.complete_if_ready(step, group)
        return
    member = group.members.get(member_id)
    if member is None or member.excused_from_heartbeats:
        return  # an excused member's session starts again with the answer that it waits for
    step.counts.sessions_expired += 1
    rebalance.drop(step, group, member)
    _after_removal(step, group)


def _remove(step: Step, group: ConsumerGroup, identity: MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if member_id in group.pending_members:
        step.stop_timer(TimerKind.SESSION, group, member_id)
        group.remove(member_id)
        return ErrorCode.NONE
    if not member_id and identity.group_instance_id is not None:
        member_id = group.static_members.get(identity.group_instance_id, "")
    code = member_error(group, member_id, identity.group_instance_id)
    if code is ErrorCode.NONE:
        rebalance.drop(step, group, group.members[member_id])
    return code


def _after_removal(step: Step, group: ConsumerGroup) -> None:
    if group.state is not ConsumerGroupState.EMPTY:
        rebalance.start_or_continue(step, group)
