"""Answers ShareGroupHeartbeat: members join, stay, change what they subscribe to, and leave. Each change is a
record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from mainstem.broker.consumer_groups.modern.heartbeat import TOPICS_CHECK_MS
from mainstem.broker.consumer_groups.modern.modern_group import Partitions, rows_of
from mainstem.broker.consumer_groups.modern.refusal import MemberRefused
from mainstem.broker.consumer_groups.modern.subscribed_topics import CurrentTopics, hash_of
from mainstem.broker.consumer_groups.shared.share_group import (
    ShareGroup,
    SharingMember,
    current_of,
    keys_of,
    sharing_bytes,
)
from mainstem.broker.consumer_groups.shared.simple_assignor import assign_simply
from mainstem.broker.consumer_groups.step import Caller, ShareRecord, Step
from mainstem.broker.consumer_groups.timers import TimerKey, TimerKind
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from mainstem.protocol.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from mainstem.protocol.messages.share_groups import (
    ShareAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareTopicPartitions,
)


@dataclass(frozen=True, slots=True)
class ShareStep:
    """One event on its way through one share group, with the topics there are."""

    step: Step
    group: ShareGroup
    topics: CurrentTopics

    def topics_hash(self) -> int:
        """Of the topics that members subscribe to, as they are now."""
        return hash_of(self.topics.known(self.group.subscribed_names()))

    def begin_epoch(self) -> None:
        key = ShareGroupMetadataKey(group=self.group.group_id)
        value = ShareGroupMetadataValue(epoch=self.group.epoch + 1, metadata_hash=self.topics_hash())
        self.step.write(ShareRecord(key, value))

    def restart_session(self, member_id: str) -> None:
        deadline_ms = self.step.now.monotonic_ms + self.step.config.consumer_session_timeout_ms
        self.step.timers.set(TimerKey(TimerKind.SESSION, self.group.group_id, member_id), deadline_ms)


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
        it.step.timers.cancel(TimerKey(TimerKind.SESSION, it.group.group_id, member_id))
        for key in keys_of(it.group.group_id, member_id):
            it.step.write(ShareRecord(key, None))
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
        if request.member_epoch not in (known.epoch, known.previous_epoch):
            why = f"the member's epoch is {known.epoch}, not {request.member_epoch}: it must join again"
            raise MemberRefused(ErrorCode.FENCED_MEMBER_EPOCH, why)
    before = None if known is None else known.metadata
    metadata = _metadata(before, request, caller)
    _check_room(it, member_id, known, metadata)
    if metadata != before:
        key = ShareGroupMemberMetadataKey(group=group.group_id, member_id=member_id)
        it.step.write(ShareRecord(key, metadata))
    changed = before is None or before.subscribed_topic_names != metadata.subscribed_topic_names
    _follow_topics(it, changed=changed)
    if group.epoch > group.assignment_epoch:
        _assign(it)
    moved = _catch_up(it, member_id)
    it.restart_session(member_id)
    member = group.members[member_id]
    tells = joins or moved or request.member_epoch != member.epoch or request.subscribed_topic_names is not None
    return ShareGroupHeartbeatResponse(
        error_code=ErrorCode.NONE,
        member_id=member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=it.step.config.consumer_heartbeat_interval_ms,
        assignment=_told(member.assigned) if tells else None,
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


def _check_room(
    it: ShareStep, member_id: str, known: SharingMember | None, metadata: ShareGroupMemberMetadataValue
) -> None:
    """Raises `MemberRefused` where the group, a record or the node's memory cannot take the member."""
    config = it.step.config
    if known is None and len(it.group.members) >= config.group_size_max:
        raise MemberRefused(ErrorCode.GROUP_MAX_SIZE_REACHED)
    size = sharing_bytes(member_id, metadata)
    if size > config.group_metadata_bytes_max:
        why = f"the member's metadata take {size} bytes; {config.group_metadata_bytes_max} are the most"
        raise MemberRefused(ErrorCode.INVALID_REQUEST, why)
    if not it.group.has_room(metadata.client_host, size - (known.charged if known is not None else 0)):
        raise MemberRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _follow_topics(it: ShareStep, *, changed: bool) -> None:
    """A new epoch, if members or subscriptions have `changed`, or the topics that they subscribe to."""
    group, now_ms = it.group, it.step.now.monotonic_ms
    checked_ms = group.topics_checked_ms
    if not changed and checked_ms is not None and now_ms - checked_ms < TOPICS_CHECK_MS:
        return
    group.topics_checked_ms = now_ms
    if changed or it.topics_hash() != group.metadata_hash:
        it.begin_epoch()


def _assign(it: ShareStep) -> None:
    """Make the target assignment of the group's epoch."""
    group = it.group
    topics = {topic.name: topic for topic in it.topics.known(group.subscribed_names())}
    sizes = {topic.topic_id: topic.partitions for topic in topics.values()}
    subscribed: dict[str, frozenset[UUID]] = {
        member_id: frozenset(topics[name].topic_id for name in member.metadata.subscribed_topic_names if name in topics)
        for member_id, member in group.members.items()
        if member.metadata is not None
    }
    for member_id, partitions in assign_simply(subscribed, sizes).items():
        if group.targets.get(member_id) != partitions:
            key = ShareGroupTargetAssignmentMemberKey(group=group.group_id, member_id=member_id)
            value = ShareGroupTargetAssignmentMemberValue(topic_partitions=rows_of(partitions))
            it.step.write(ShareRecord(key, value))
    it.step.write(
        ShareRecord(
            ShareGroupTargetAssignmentMetadataKey(group=group.group_id),
            ShareGroupTargetAssignmentMetadataValue(assignment_epoch=group.epoch),
        )
    )
    it.step.counts.rebalances += 1


def _catch_up(it: ShareStep, member_id: str) -> bool:
    """Bring a member to its target; returns whether its partitions have changed."""
    group, member = it.group, it.group.members[member_id]
    target = group.target(member_id)
    if member.epoch == group.assignment_epoch and member.assigned == target:
        return False
    moved = member.assigned != target
    key = ShareGroupCurrentMemberAssignmentKey(group=group.group_id, member_id=member_id)
    it.step.write(ShareRecord(key, current_of(group.assignment_epoch, member.epoch, target)))
    return moved


def _told(assigned: Partitions) -> ShareAssignment:
    return ShareAssignment(
        topic_partitions=tuple(
            ShareTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(assigned[topic_id])))
            for topic_id in sorted(assigned)
        )
    )
