"""JoinGroup: admits members, and starts the rebalances that follow.

A dynamic member of a current client first gets an id and must come back with it, so that a client that retries does
not leave unknown members behind. A static member (`group.instance.id`) is recognized by its instance id: after a
restart it takes the place of its old self, and while the consumer group is stable and would choose the same protocol,
the other members do not notice.
"""

from __future__ import annotations

from dataclasses import replace

from mainstem.broker.consumer_groups.members.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    member_error,
    rebalance_timeout_ms,
)
from mainstem.broker.consumer_groups.members.member import MEMBER_BYTES, Member, protocols_bytes
from mainstem.broker.consumer_groups.rebalancing import rebalance
from mainstem.broker.consumer_groups.rebalancing.rebalance import joined, refused_join, refused_sync
from mainstem.broker.consumer_groups.step import Caller, Step
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import JoinGroupRequest

MEMBER_ID_REQUIRED_FROM = 4
"""JoinGroup version from which clients understand that they must come back with the id they are given."""

SKIP_ASSIGNMENT_FROM = 9
"""JoinGroup version from which a leader understands that it leads but need not assign."""

PROTOCOLS_OFFERED = 4
"""Room for protocols besides the chosen one: the record of a consumer group has its members' metadata for one
protocol, but clients offer up to three."""

MEMBER_NAME_LENGTH_MAX = 255
"""Characters of the client's name that go into a member id, which must fit into a string of the protocol."""


def join(step: Step, group: ConsumerGroup, ticket: Ticket, request: JoinGroupRequest, caller: Caller) -> None:
    member_id = request.member_id
    if not _has_room(step, group, member_id):
        step.stop_timer(TimerKind.SESSION, group, member_id)
        if member_id in group.members:
            rebalance.drop(step, group, group.members[member_id])
        group.remove(member_id)
        step.answer(ticket, refused_join("", ErrorCode.GROUP_MAX_SIZE_REACHED))
        rebalance.complete_if_ready(step, group)
    elif (code := _too_large(step, group, request, caller)) is not ErrorCode.NONE:
        step.answer(ticket, refused_join(member_id, code))
    elif not group.supports(request.protocol_type, request.protocols):
        step.answer(ticket, refused_join(member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif not member_id:
        _join_new(step, group, ticket, request, caller)
    elif member_id in group.pending_members:
        if request.group_instance_id is None:
            _add(step, group, member_id, ticket, request, caller)
        else:  # only dynamic members are given ids
            step.answer(ticket, refused_join(member_id, ErrorCode.UNKNOWN_MEMBER_ID))
    else:
        _join_known(step, group, ticket, request)


def _has_room(step: Step, group: ConsumerGroup, member_id: str) -> bool:
    size_max = step.config.group_size_max
    if group.state is ConsumerGroupState.EMPTY:
        return len(group.pending_members) < size_max or member_id in group.pending_members
    member = group.members.get(member_id)
    if group.state is ConsumerGroupState.PREPARING_REBALANCE:
        # If the bound was lowered and all members join again, the first ones stay.
        joined_already = member is not None and member.join_ticket is not None
        return joined_already or group.awaiting_join + _others_pending(group, member_id) < size_max
    return member is not None or len(group.members) + _others_pending(group, member_id) < size_max


def _too_large(step: Step, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller) -> ErrorCode:
    """Refuses a member whose subscription finds no memory left. A member that sends no more than before is
    always let in."""
    member_id = request.member_id or group.static_members.get(request.group_instance_id or "", "")
    member = group.members.get(member_id)
    before = 0 if member is None else MEMBER_BYTES + protocols_bytes(member.protocols)
    more = MEMBER_BYTES + protocols_bytes(request.protocols) - before
    if more <= 0:
        return ErrorCode.NONE
    if group.bytes_held + more > PROTOCOLS_OFFERED * step.config.group_metadata_bytes_max + MEMBER_BYTES * (
        1 + len(group.members)
    ):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not step.holdings.has_room(caller.client_host, more):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NONE


def _others_pending(group: ConsumerGroup, member_id: str) -> int:
    return len(group.pending_members) - (member_id in group.pending_members)


def _join_new(step: Step, group: ConsumerGroup, ticket: Ticket, request: JoinGroupRequest, caller: Caller) -> None:
    instance_id = request.group_instance_id
    name = caller.client_id if instance_id is None else instance_id
    new_member_id = f"{name[:MEMBER_NAME_LENGTH_MAX]}-{step.new_id()}"
    if instance_id is not None and instance_id in group.static_members:
        _replace_static(step, group, new_member_id, ticket, request, caller)
    elif instance_id is None and caller.version >= MEMBER_ID_REQUIRED_FROM:
        group.pending_members.add(new_member_id)
        step.start_timer(TimerKind.SESSION, group, request.session_timeout_ms, new_member_id)
        step.answer(ticket, refused_join(new_member_id, ErrorCode.MEMBER_ID_REQUIRED))
    else:
        _add(step, group, new_member_id, ticket, request, caller)


def _add(
    step: Step,
    group: ConsumerGroup,
    member_id: str,
    ticket: Ticket,
    request: JoinGroupRequest,
    caller: Caller,
) -> None:
    member = _member(step, member_id, request, caller)
    member.join_ticket = ticket
    member.new = True
    if group.delay_left_ms is not None:
        group.newcomers = True
    group.add(member, request.protocol_type)
    # A new client may go away before it hears its id, and nothing would show it: so its join is timed.
    step.start_timer(TimerKind.SESSION, group, step.config.new_member_join_timeout_ms, member_id)
    rebalance.start_or_continue(step, group)


def _rebalance_timeout_ms(step: Step, request: JoinGroupRequest) -> int:
    given_ms = rebalance_timeout_ms(request.rebalance_timeout_ms, request.session_timeout_ms)
    return min(given_ms, step.config.rebalance_timeout_ms_max)


def _member(step: Step, member_id: str, request: JoinGroupRequest, caller: Caller) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(step, request),
        protocols=request.protocols,
    )


def _join_known(step: Step, group: ConsumerGroup, ticket: Ticket, request: JoinGroupRequest) -> None:
    member_id = request.member_id
    code = member_error(group, member_id, request.group_instance_id)
    if code is not ErrorCode.NONE:
        step.answer(ticket, refused_join(member_id, code))
        return
    member = group.members[member_id]
    leads = group.leader == member_id
    unchanged = member.protocols == request.protocols
    # A lost answer is repeated. A stable group's leader, though, joins to have partitions assigned anew.
    again = (group.state is ConsumerGroupState.COMPLETING_REBALANCE and unchanged) or (
        group.state is ConsumerGroupState.STABLE and unchanged and not leads
    )
    if again:
        step.answer(ticket, joined(group, member_id, leads=leads))
        return
    _supersede(step, group, member, ErrorCode.REBALANCE_IN_PROGRESS)
    group.set_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = _rebalance_timeout_ms(step, request)
    group.set_join_ticket(member, ticket)
    rebalance.start_or_continue(step, group)


def _supersede(step: Step, group: ConsumerGroup, member: Member, code: ErrorCode) -> None:
    """Answer the requests that a member has waiting: a newer request took their place."""
    if member.join_ticket is not None:
        step.answer(member.join_ticket, refused_join(member.member_id, code))
        group.set_join_ticket(member, None)
    if member.sync_ticket is not None:
        step.answer(member.sync_ticket, refused_sync(code))
        member.sync_ticket = None


def _replace_static(
    step: Step,
    group: ConsumerGroup,
    member_id: str,
    ticket: Ticket,
    request: JoinGroupRequest,
    caller: Caller,
) -> None:
    """A static member restarted: its new self, under a new id, takes the place of the old."""
    assert request.group_instance_id is not None
    old = group.members[group.static_members[request.group_instance_id]]
    leader = group.leader
    _supersede(step, group, old, ErrorCode.FENCED_INSTANCE_ID)
    step.stop_timer(TimerKind.SESSION, group, old.member_id)
    new = _member(step, member_id, request, caller)
    new.assignment = old.assignment
    next_protocol = group.selected_protocol({old.member_id: request.protocols})
    if group.state is ConsumerGroupState.STABLE and next_protocol == group.protocol:
        step.write_group(group, group.replaced(step.now.wall_ms, old.member_id, new))
        group.set_protocols(group.members[member_id], request.protocols)
        step.restart_session(group, member_id)
        _answer_replaced(step, group, ticket, member_id, leader, caller)
        return
    group.replace(old.member_id, new)
    group.set_join_ticket(new, ticket)
    step.restart_session(group, member_id)
    # While an assignment is being made, it is being made for the old id: start over.
    rebalance.start_or_continue(step, group)


def _answer_replaced(
    step: Step, group: ConsumerGroup, ticket: Ticket, member_id: str, old_leader: str | None, caller: Caller
) -> None:
    """Nothing changed, so no member may assign: not even a leader that comes back under a new id."""
    leads = group.leader == member_id and caller.version >= SKIP_ASSIGNMENT_FROM
    answer = joined(group, member_id, leads=leads)
    if leads:
        answer = replace(answer, skip_assignment=True)
    elif caller.version < SKIP_ASSIGNMENT_FROM:
        answer = replace(answer, leader=old_leader or "")  # an old client that sees itself lead would assign
    step.answer(ticket, answer)
