"""Answers ShareGroupHeartbeat: members join, stay, change what they subscribe to, and leave. Each change is a
record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from mainstem.broker.consumer_groups.epochs.assigned_partitions import told
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment
from mainstem.broker.consumer_groups.epochs.epoch_step import EpochStep
from mainstem.broker.consumer_groups.shared.share_group import ShareGroup, SharingMember
from mainstem.broker.consumer_groups.shared.simple_assignor import assign_simply
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.consumer_groups.timers import TimerKind
from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from mainstem.protocol.messages.share_group_records import ShareGroupMemberMetadataValue
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse


@dataclass(frozen=True, slots=True)
class ShareStep(EpochStep[ShareGroup]):
    """One event on its way through one share group."""

    def restart_session(self, member_id: str) -> None:
        timeout_ms = self.own.share_session_timeout_ms
        self.step.timers.set(self.timer(TimerKind.SESSION, member_id), self.step.now.monotonic_ms + timeout_ms)


def refused_share(code: ErrorCode, why: str | None = None) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(
        error_code=code, error_message=why or code.message, member_epoch=0, heartbeat_interval_ms=0
    )


def share_heartbeat(it: ShareStep, request: ShareGroupHeartbeatRequest, caller: Caller) -> ShareGroupHeartbeatResponse:
    """Returns the answer. A refusal leaves the group as it was."""
    try:
        _check(request)
        if request.member_epoch == LEAVE_EPOCH:
            member = _known(it, request.member_id)
            remove_sharing(it, [member.member_id])
            return ShareGroupHeartbeatResponse(
                error_code=ErrorCode.NONE,
                member_id=member.member_id,
                member_epoch=LEAVE_EPOCH,
                heartbeat_interval_ms=0,
            )
        return _stay(it, request, caller)
    except MemberRefused as refusal:
        return refused_share(refusal.code, refusal.why)


def remove_sharing(it: ShareStep, member_ids: Iterable[str]) -> None:
    """Members are gone: the next heartbeat of any other shares their partitions out."""
    for member_id in member_ids:
        it.step.timers.cancel(it.timer(TimerKind.SESSION, member_id))
        it.forget_member(member_id)
    it.begin_epoch()


def sharing_session_over(it: ShareStep, member_id: str) -> None:
    """No heartbeat of a member came for its session timeout."""
    if member_id in it.group.members:
        it.step.counts.sessions_expired += 1
        remove_sharing(it, [member_id])


def _check(request: ShareGroupHeartbeatRequest) -> None:
    """Raises `MemberRefused` for a request that contradicts itself."""
    joins = request.member_epoch == JOIN_EPOCH
    for wrong, why in (
        (request.member_epoch < LEAVE_EPOCH, f"member epoch {request.member_epoch}"),
        (not request.member_id, "the member id is empty"),
        (request.rack_id == "", "the rack id is empty"),
        (joins and not request.subscribed_topic_names, "a member that joins says what it subscribes to"),
    ):
        if wrong:
            raise MemberRefused(ErrorCode.INVALID_REQUEST, why)


def _known(it: ShareStep, member_id: str) -> SharingMember:
    member = it.group.members.get(member_id)
    if member is None or member.metadata is None:
        raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _stay(it: ShareStep, request: ShareGroupHeartbeatRequest, caller: Caller) -> ShareGroupHeartbeatResponse:
    group, member_id = it.group, request.member_id
    joins = request.member_epoch == JOIN_EPOCH
    known = group.members.get(member_id) if joins else _known(it, member_id)
    if not joins:
        assert known is not None
        if request.member_epoch not in (known.current.epoch, known.current.previous_epoch):
            why = f"the member's epoch is {known.current.epoch}, not {request.member_epoch}: it must join again"
            raise MemberRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)
    before = None if known is None else known.metadata
    metadata = _metadata(before, request, caller)
    it.check_room(member_id, known, metadata)
    if metadata != before:
        it.write_member(member_id, metadata)
    changed = before is None or before.subscribed_topic_names != metadata.subscribed_topic_names
    it.follow_topics(changed=changed)
    if group.epoch > group.assignment_epoch:
        _assign(it)
    moved = _catch_up(it, member_id)
    it.restart_session(member_id)
    current = group.members[member_id].current
    tells = joins or moved or request.member_epoch != current.epoch or request.subscribed_topic_names is not None
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=member_id,
        member_epoch=current.epoch,
        heartbeat_interval_ms=it.own.share_heartbeat_interval_ms,
        assignment=told(current.assigned) if tells else None,
    )


def _metadata(
    before: ShareGroupMemberMetadataValue | None, request: ShareGroupHeartbeatRequest, caller: Caller
) -> ShareGroupMemberMetadataValue:
    """A member's metadata with what a request says anew."""
    known = before or ShareGroupMemberMetadataValue(
        client_id=caller.client_id, client_host=caller.client_host, subscribed_topic_names=()
    )
    names = request.subscribed_topic_names
    return replace(
        known,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rack_id=request.rack_id or known.rack_id,
        subscribed_topic_names=known.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )


def _assign(it: ShareStep) -> None:
    """Make the target assignment of the group's epoch."""
    topics = it.subscribed_topics()
    sizes = {topic.topic_id: topic.partitions for topic in topics.values()}
    subscribed: dict[str, frozenset[UUID]] = {
        member_id: frozenset(topics[name].topic_id for name in member.metadata.subscribed_topic_names if name in topics)
        for member_id, member in it.group.members.items()
        if member.metadata is not None
    }
    it.write_targets(assign_simply(subscribed, sizes))


def _catch_up(it: ShareStep, member_id: str) -> bool:
    """Bring a member to its target; returns whether its partitions have changed."""
    group, current = it.group, it.group.members[member_id].current
    target = group.target(member_id)
    if current.epoch == group.assignment_epoch and current.assigned == target:
        return False
    reached = CurrentAssignment(epoch=group.assignment_epoch, previous_epoch=current.epoch, assigned=target)
    it.write_current(member_id, reached)
    return current.assigned != target
