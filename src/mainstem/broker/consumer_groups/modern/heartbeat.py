"""Answers ConsumerGroupHeartbeat: members join, stay, change what they subscribe to, and leave.

A request goes through at most four changes, each a record: the member's metadata; the group's epoch, if members,
subscriptions or topics have changed; the target assignment of that epoch; and one step of this member toward it.
Nothing waits: a member hears of what others do at its own next heartbeat. The target of a large group is made now and
then, for all who have come and gone by then, and in steps: heartbeats go by the last target until it is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions, partitions_of, told
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment, ReconciliationState
from mainstem.broker.consumer_groups.epochs.subscribed_topics import matching
from mainstem.broker.consumer_groups.modern import group_changes
from mainstem.broker.consumer_groups.modern.assignors import ASSIGNORS
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.modern_group import ModernMember
from mainstem.broker.consumer_groups.modern.new_targets import assign
from mainstem.broker.consumer_groups.modern.reconciliation import contains, reconcile
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from mainstem.protocol.messages.consumer_group_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)

MEMBER_ID_FROM = 1
"""The version from which a member makes its own id."""

EXPRESSION_CHECK_MS = 10_000
"""How often a regular expression is matched with all topics anew."""

WAITING_HEARTBEAT_MS = 500
"""How soon a member that waits for partitions of others is asked for its next heartbeat. Others give them up within
milliseconds, unless their application takes its time."""

WAITING_HEARTBEATS_PER_SECOND = 1_000
"""Of all members of a group that wait: a tenth of a core."""


@dataclass(frozen=True, slots=True)
class HeartbeatCaller:
    """The sender of a heartbeat, and which topics it may see."""

    caller: Caller
    may_describe: Callable[[str], bool]


def refused(code: ErrorCode, why: str | None = None) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=why or code.message, member_epoch=0, heartbeat_interval_ms=0
    )


def heartbeat(
    it: GroupStep, request: ConsumerGroupHeartbeatRequest, sender: HeartbeatCaller
) -> ConsumerGroupHeartbeatResponse:
    """Returns the answer. A refusal leaves the group as it was."""
    try:
        _check(request, sender.caller.version)
        if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
            return _leave(it, request)
        return _stay(it, request, sender)
    except MemberRefused as refusal:
        return refused(refusal.code, refusal.why)


def refusal_of_first(
    it: GroupStep, request: ConsumerGroupHeartbeatRequest, sender: HeartbeatCaller
) -> ConsumerGroupHeartbeatResponse | None:
    """The answer to a join that `it.group`, which is new and empty, would not take; it writes nothing."""
    try:
        _check(request, sender.caller.version)
        metadata = _metadata(None, request, sender.caller)
        it.check_room(request.member_id, None, metadata)
        if metadata.subscribed_topic_regex:
            _resolved(it, metadata.subscribed_topic_regex, sender)
    except MemberRefused as refusal:
        return refused(refusal.code, refusal.why)
    return None


def _check(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Raises `MemberRefused` for a request that contradicts itself."""
    epoch = request.member_epoch
    joins = epoch == JOIN_EPOCH
    says_what = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    for wrong, why in (
        (epoch < STATIC_LEAVE_EPOCH, f"member epoch {epoch}"),
        (not request.member_id and (not joins or version >= MEMBER_ID_FROM), "the member id is empty"),
        (request.instance_id == "", "the instance id is empty"),
        (request.rack_id == "", "the rack id is empty"),
        (
            epoch == STATIC_LEAVE_EPOCH and request.instance_id is None,
            "a member without an instance id does not return",
        ),
        (joins and request.rebalance_timeout_ms < 0, "a member that joins names its rebalance timeout"),
        (joins and request.topic_partitions != (), "a member that joins owns no partitions, and says so"),
        (joins and not says_what, "a member that joins says what it subscribes to"),
    ):
        if wrong:
            raise MemberRefused(ErrorCode.INVALID_REQUEST, why)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        why = f"no assignor is named {request.server_assignor}; there are {', '.join(ASSIGNORS)}"
        raise MemberRefused(ErrorCode.UNSUPPORTED_ASSIGNOR, why)


def _leave(it: GroupStep, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    member = _holder(it, request)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        if request.instance_id is None or request.instance_id not in it.group.static_members:
            raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        it.stop_revocation(member.member_id)
        current = member.current
        gone = CurrentAssignment(epoch=STATIC_LEAVE_EPOCH, previous_epoch=current.epoch, assigned=current.assigned)
        it.write_current(member.member_id, gone)  # it has nothing left to revoke, and waits for nothing
    else:
        group_changes.remove(it, [member.member_id])
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=member.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=0,
    )


def _holder(it: GroupStep, request: ConsumerGroupHeartbeatRequest) -> ModernMember:
    """The member that a request comes from. Raises `MemberRefused`."""
    if request.instance_id is not None:
        holder = it.group.static_members.get(request.instance_id)
        if holder is None:
            raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
        if holder != request.member_id:
            raise MemberRefused(ErrorCode.FENCED_INSTANCE_ID)
    member = it.group.members.get(request.member_id)
    if member is None or member.metadata is None:
        raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _stay(
    it: GroupStep, request: ConsumerGroupHeartbeatRequest, sender: HeartbeatCaller
) -> ConsumerGroupHeartbeatResponse:
    group, owned = it.group, _owned(request)
    joins = request.member_epoch == JOIN_EPOCH
    member_id = request.member_id
    replaced: ModernMember | None = None
    if joins:
        member_id = member_id or it.step.new_id()
        replaced = _replaced(it, request, member_id)
        known = replaced or group.members.get(member_id)
    else:
        known = _holder(it, request)
        _check_epoch(known, request.member_epoch, owned)
    before = None if known is None else known.metadata
    metadata = _metadata(before, request, sender.caller)
    it.check_room(member_id, known, metadata)
    expression = metadata.subscribed_topic_regex or ""
    resolved = _resolved(it, expression, sender) if expression else None  # may be refused: before any record

    if replaced is not None:
        group_changes.take_over(it, replaced, member_id, metadata)
    elif metadata != before:
        it.write_member(member_id, metadata)
    if replaced is None and joins and known is not None and known.gone_for_now:
        it.write_current(member_id, CurrentAssignment(assigned=known.current.assigned))
    changed = before is None or subscription_of(before) != subscription_of(metadata)
    if resolved is not None:
        it.write_expression(expression, resolved)
    if changed:
        it.forget_unused_expressions()
    moved = settle(it, member_id, owned, changed=changed)
    it.restart_session(member_id)

    current = group.members[member_id].current
    asks_for_all = request.rebalance_timeout_ms >= 0 and owned is not None and _says_what(request)
    tells = joins or asks_for_all or moved or request.member_epoch != current.epoch
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=_heartbeat_interval_ms(it, current),
        assignment=told(current.assigned) if tells else None,
    )


def _heartbeat_interval_ms(it: GroupStep, current: CurrentAssignment) -> int:
    """Nobody tells a member that what it waits for is there: its next heartbeat asks. So members of a group whose next
    target is delayed, and those that wait for partitions of others, are asked for one sooner than usual."""
    group, usual_ms = it.group, it.own.consumer_heartbeat_interval_ms
    if group.epoch != group.assignment_epoch:
        soon_ms = group_changes.assignment_interval_ms(it)
    elif current.state == ReconciliationState.UNRELEASED_PARTITIONS:
        soon_ms = WAITING_HEARTBEAT_MS
    else:
        return usual_ms
    all_in_turn_ms = 1_000 * len(group.members) // WAITING_HEARTBEATS_PER_SECOND
    return min(usual_ms, max(soon_ms, all_in_turn_ms, 1))


def _says_what(request: ConsumerGroupHeartbeatRequest) -> bool:
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _replaced(it: GroupStep, request: ConsumerGroupHeartbeatRequest, member_id: str) -> ModernMember | None:
    """The static member that a joining one takes the place of. Raises `MemberRefused`."""
    if request.instance_id is None:
        return None
    holder = it.group.static_members.get(request.instance_id)
    if holder is None or holder == member_id:
        return None
    member = it.group.members[holder]
    if not member.gone_for_now and member.classic is None:  # classic ones do not say that they will be back
        raise MemberRefused(ErrorCode.UNRELEASED_INSTANCE_ID)
    return member


def _check_epoch(member: ModernMember, epoch: int, owned: Partitions | None) -> None:
    """A member may be one epoch behind, where it lost the answer, if it owns nothing that it should not. Raises
    `MemberRefused`."""
    current = member.current
    if epoch == current.epoch:
        return
    lost_answer = epoch < current.epoch and epoch == current.previous_epoch
    if not lost_answer or owned is None or not contains(current.assigned, owned):
        why = f"the member's epoch is {current.epoch}, not {epoch}: it must give up its partitions and join again"
        raise MemberRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)


def _metadata(
    before: ConsumerGroupMemberMetadataValue | None, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerGroupMemberMetadataValue:
    """A member's metadata with what a request says anew."""
    known = before or ConsumerGroupMemberMetadataValue(
        client_id=caller.client_id, client_host=caller.client_host, subscribed_topic_names=()
    )
    names, expression = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        known,
        classic_member_metadata=None,
        client_id=caller.client_id,
        client_host=caller.client_host,
        instance_id=request.instance_id or known.instance_id,
        rack_id=request.rack_id or known.rack_id,
        rebalance_timeout_ms=known.rebalance_timeout_ms
        if request.rebalance_timeout_ms < 0
        else request.rebalance_timeout_ms,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=known.subscribed_topic_regex if expression is None else expression or None,
        server_assignor=request.server_assignor or known.server_assignor,
    )


def subscription_of(metadata: ConsumerGroupMemberMetadataValue) -> tuple[object, ...]:
    return metadata.subscribed_topic_names, metadata.subscribed_topic_regex, metadata.server_assignor


def _resolved(it: GroupStep, expression: str, sender: HeartbeatCaller) -> ConsumerGroupRegularExpressionValue | None:
    """The topics that an expression stands for now; None: as the group knows it. Raises `MemberRefused`."""
    known = it.group.expressions.get(expression)
    if known is not None and not it.group.expression_is_due(expression, it.step.now.monotonic_ms, EXPRESSION_CHECK_MS):
        return None
    topics = matching(expression, it.topics.every(), sender.may_describe)
    it.group.expressions_checked_ms[expression] = it.step.now.monotonic_ms
    if known is not None and known.topics == topics:
        return None
    return ConsumerGroupRegularExpressionValue(topics=topics, version=0, timestamp=it.step.now.wall_ms)


def settle(it: GroupStep, member_id: str, owned: Partitions | None, *, changed: bool) -> bool:
    """Bring the group to the epoch of its members and topics, and one member a step closer to its target. Returns
    whether the member's partitions have changed."""
    it.follow_topics(changed=changed)
    group = it.group
    at_once = group.members[member_id].classic is not None  # it is told its partitions in this generation, or never
    if group.epoch > group.assignment_epoch and (at_once or not group_changes.is_delayed(it)):
        assign(it, at_once=at_once or group.assignment_epoch == group.first_epoch)
    return _reconcile(it, member_id, owned)


def _reconcile(it: GroupStep, member_id: str, owned: Partitions | None) -> bool:
    """Whether the member's partitions have changed."""
    group, member = it.group, it.group.members[member_id]
    before = member.current
    after = reconcile(
        before,
        group.assignment_epoch,
        group.target(member_id),
        owned,
        lambda topic_id, index: group.owner(topic_id, index) in (None, member_id),
    )
    if after is before:
        return False
    it.write_current(member_id, after)
    it.time_revocation(member_id)
    return after.assigned != before.assigned


def _owned(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    return None if request.topic_partitions is None else partitions_of(request.topic_partitions)
