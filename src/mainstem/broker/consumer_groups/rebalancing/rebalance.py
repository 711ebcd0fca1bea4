"""Leads a consumer group from one generation to the next: gather joins, fix the members, wait for the
assignment.

It begins with any change of the membership (`joining`, `presence`) and with three timers: the join timer (time to
join is over), the sync timer (time to fetch the assignment is over) and, through `presence`, sessions. Members that
did not join in time are dropped, except static members: they stay until their session ends.

Work on every member is done in steps (`long_work`): silent members are dropped some at a time while the group is
being prepared, and answers leave some at a time once the generation is fixed, or stable. A member keeps its ticket
until then. Should the next rebalance begin before its answer has left, a member that waits in a join has joined that
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.consumer_groups.long_work import ITEMS_PER_STEP, Current, Slices, in_pieces
from mainstem.broker.consumer_groups.members.consumer_group import ConsumerGroup, ConsumerGroupState, can_rebalance
from mainstem.broker.consumer_groups.members.member import Member
from mainstem.broker.consumer_groups.step import Step
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.machines.result import Ticket
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_membership import (
    JoinGroupResponse,
    JoinGroupResponseMember,
    SyncGroupResponse,
)

REBALANCE_WAIT_MS_MIN = 1_000
"""Clients choose rebalance timeouts; below this one, a consumer group without waiting members would spin."""


def refused_join(member_id: str, code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code, generation_id=-1, protocol_name=None, leader="", member_id=member_id, members=()
    )


def refused_sync(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"")


def joined(group: ConsumerGroup, member_id: str, *, leads: bool) -> JoinGroupResponse:
    """The answer to a member of the present generation; the leader's also lists all members."""
    members = tuple(member.joined_with(group.protocol) for member in group.members.values()) if leads else ()
    return _joined(group, member_id, members)


def _joined(group: ConsumerGroup, member_id: str, members: tuple[JoinGroupResponseMember, ...]) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=members,
    )


def synced(group: ConsumerGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def start_or_continue(step: Step, group: ConsumerGroup) -> None:
    """The membership changed: start a rebalance, or go on with the one in preparation."""
    if can_rebalance(group.state):
        prepare(step, group)
    else:
        complete_if_ready(step, group)


def prepare(step: Step, group: ConsumerGroup) -> None:
    """Ask all members to join again (they learn it from the answers to sync, heartbeat and commit)."""
    refuse_syncs(step, group, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_sync.clear()
    step.stop_timer(TimerKind.SYNC, group)
    delay_ms = step.config.rebalance_delay_ms if group.state is ConsumerGroupState.EMPTY else 0
    group.move_to(ConsumerGroupState.PREPARING_REBALANCE)
    if delay_ms > 0:
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        group.newcomers = False
        step.start_timer(TimerKind.JOIN, group, delay_ms)
    elif group.all_joined:
        complete(step, group)
    else:
        _wait_for_joins(step, group)


def complete_if_ready(step: Step, group: ConsumerGroup) -> None:
    """End the joining when no member is left to wait for, unless the consumer group still gathers."""
    gathering = group.delay_left_ms is not None
    if group.state is ConsumerGroupState.PREPARING_REBALANCE and not gathering and group.all_joined:
        complete(step, group)


def complete(step: Step, group: ConsumerGroup) -> None:
    """Fix the next generation and tell the members that joined; or, when none is left, empty the consumer
    group."""
    step.stop_timer(TimerKind.JOIN, group)
    silent = [member_id for member_id, member in group.members.items() if _is_silent(member)]
    generation = group.generation
    step.begin(lambda current: _completed(current, group, generation, silent))


def _is_silent(member: Member) -> bool:
    return member.join_ticket is None and not member.static


def _completed(current: Current[Step], group: ConsumerGroup, generation: int, silent: Sequence[str]) -> Slices[None]:
    """Drop the silent members, and go on with the others, unless all of these have gone on by themselves."""
    for some in in_pieces(silent):
        for member_id in some:
            member = group.members.get(member_id)
            if member is not None and _is_silent(member):
                drop(current.step, group, member)
        yield len(some)
        if not is_at(group, generation, ConsumerGroupState.PREPARING_REBALANCE):
            return
    yield ITEMS_PER_STEP if len(silent) > ITEMS_PER_STEP else 0
    if not is_at(group, generation, ConsumerGroupState.PREPARING_REBALANCE):
        return
    _begin_generation(current.step, group)


def is_at(group: ConsumerGroup, generation: int, state: ConsumerGroupState) -> bool:
    """Whether a group is still where a piece of long work has left it."""
    return not group.gone and group.generation == generation and group.state is state


def _begin_generation(step: Step, group: ConsumerGroup) -> None:
    if not group.members:
        step.write_group(group, group.emptied(step.now.wall_ms))
        return
    if not group.elect_joined_leader():
        _wait_for_joins(step, group)  # only static members, all silent: until one comes or their sessions end
        return
    group.begin_generation()
    group.pending_sync.update(group.members)
    step.start_timer(TimerKind.SYNC, group, max(group.rebalance_timeout_ms, REBALANCE_WAIT_MS_MIN))
    generation, member_ids = group.generation, list(group.members)
    step.begin(lambda current: _joins_answered(current, group, generation, member_ids))


def _joins_answered(
    current: Current[Step], group: ConsumerGroup, generation: int, member_ids: Sequence[str]
) -> Slices[None]:
    """Tell all members of a generation that it has begun, its leader last, who hears of all others."""
    listed: list[JoinGroupResponseMember] = []
    for some in in_pieces(member_ids):
        for member_id in some:
            member = group.members[member_id]
            listed.append(member.joined_with(group.protocol))
            if member_id != group.leader:
                _answer_join(current.step, group, member, ())
        yield len(some)
        if not is_at(group, generation, ConsumerGroupState.COMPLETING_REBALANCE):
            return
    assert group.leader is not None
    _answer_join(current.step, group, group.members[group.leader], tuple(listed))


def _answer_join(
    step: Step, group: ConsumerGroup, member: Member, members: tuple[JoinGroupResponseMember, ...]
) -> None:
    if member.join_ticket is not None:
        step.answer(member.join_ticket, _joined(group, member.member_id, members))
        group.set_join_ticket(member, None)
    member.new = False
    step.restart_session(group, member.member_id)


def drop(step: Step, group: ConsumerGroup, member: Member) -> None:
    """Remove a member; if its client still waits, it hears that the member is unknown, and joins anew."""
    if member.join_ticket is not None:
        step.answer(member.join_ticket, refused_join("", ErrorCode.UNKNOWN_MEMBER_ID))
        group.set_join_ticket(member, None)
    if member.sync_ticket is not None:
        step.answer(member.sync_ticket, refused_sync(ErrorCode.UNKNOWN_MEMBER_ID))
        member.sync_ticket = None
    step.stop_timer(TimerKind.SESSION, group, member.member_id)
    group.remove(member.member_id)


def refuse_syncs(step: Step, group: ConsumerGroup, code: ErrorCode) -> None:
    """Those that wait now."""
    waiting = [
        (member.member_id, member.sync_ticket) for member in group.members.values() if member.sync_ticket is not None
    ]
    step.begin(lambda current: _syncs_refused(current, group, waiting, code))


def _syncs_refused(
    current: Current[Step], group: ConsumerGroup, waiting: Sequence[tuple[str, Ticket]], code: ErrorCode
) -> Slices[None]:
    for some in in_pieces(waiting):
        for member_id, ticket in some:
            member = group.members.get(member_id)
            if member is not None and member.sync_ticket == ticket:
                current.step.answer(ticket, refused_sync(code))
                member.sync_ticket = None
                if not group.gone:
                    current.step.restart_session(group, member_id)
        yield len(some)


def answer_syncs(step: Step, group: ConsumerGroup) -> None:
    """The generation has its assignment: give each member its share, and charge for it."""
    generation, member_ids = group.generation, list(group.members)
    step.begin(lambda current: _syncs_answered(current, group, generation, member_ids))


def _syncs_answered(
    current: Current[Step], group: ConsumerGroup, generation: int, member_ids: Sequence[str]
) -> Slices[None]:
    """If the next rebalance begins before all have been answered, that answers the others."""
    for some in in_pieces(member_ids):
        stable = is_at(group, generation, ConsumerGroupState.STABLE)
        for member_id in some:
            member = group.members.get(member_id)
            if member is None or group.gone:
                continue
            group.charge(member)
            if stable and member.sync_ticket is not None:
                current.step.answer(member.sync_ticket, synced(group, member))
                member.sync_ticket = None
                current.step.restart_session(group, member_id)
        yield len(some)


def join_time_over(step: Step, group: ConsumerGroup) -> None:
    """The join timer ran out."""
    if group.state is not ConsumerGroupState.PREPARING_REBALANCE:
        return
    if group.newcomers and group.delay_left_ms:
        group.newcomers = False
        delay_ms = min(step.config.rebalance_delay_ms, group.delay_left_ms)
        group.delay_left_ms -= delay_ms
        step.start_timer(TimerKind.JOIN, group, delay_ms)
    else:
        complete(step, group)


def sync_time_over(step: Step, group: ConsumerGroup) -> None:
    """The sync timer ran out: a member that never asked for its assignment is gone, and its share must
    move."""
    if not group.pending_sync:
        return
    assert group.state in (ConsumerGroupState.COMPLETING_REBALANCE, ConsumerGroupState.STABLE)
    for member_id in sorted(group.pending_sync):
        drop(step, group, group.members[member_id])
    prepare(step, group)


def _wait_for_joins(step: Step, group: ConsumerGroup) -> None:
    step.start_timer(TimerKind.JOIN, group, max(group.rebalance_timeout_ms, REBALANCE_WAIT_MS_MIN))
