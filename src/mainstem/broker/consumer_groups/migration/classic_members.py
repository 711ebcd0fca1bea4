"""Answers members of the classic protocol in a group whose partitions the coordinator assigns (KIP-848).

To such a member the group looks like a classic one in which somebody else leads. Its generation is its member epoch.
A heartbeat tells it to join again (REBALANCE_IN_PROGRESS) when it has something to give up or to get; its join says
what it has, and is one step toward its target; its sync fetches what it has now. Cooperative members keep what they
name in their joins, the others name nothing, since they have given up everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState
from mainstem.broker.consumer_groups.members.consumer_group import rebalance_timeout_ms
from mainstem.broker.consumer_groups.migration.embedded import assignment_bytes, partitions_in, subscription_in
from mainstem.broker.consumer_groups.modern import group_changes
from mainstem.broker.consumer_groups.modern.group_changes import GroupStep
from mainstem.broker.consumer_groups.modern.heartbeat import settle, subscription_of
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup, ModernMember
from mainstem.broker.consumer_groups.rebalancing.joining import MEMBER_ID_REQUIRED_FROM, MEMBER_NAME_LENGTH_MAX
from mainstem.broker.consumer_groups.rebalancing.rebalance import refused_join, refused_sync
from mainstem.broker.consumer_groups.step import Caller
from mainstem.broker.errors import MemberRefused
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
)
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription
from mainstem.protocol.messages.group_membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)


def join(it: GroupStep, request: JoinGroupRequest, caller: Caller) -> JoinGroupResponse:
    """Returns the answer, at once: nobody waits for others. A refusal leaves the group as it was."""
    try:
        return _join(it, request, caller)
    except MemberRefused as refusal:
        return refused_join(request.member_id, refusal.code)


def _join(it: GroupStep, request: JoinGroupRequest, caller: Caller) -> JoinGroupResponse:
    group, member_id, instance_id = it.group, request.member_id, request.group_instance_id
    holder = None if instance_id is None else group.static_members.get(instance_id)
    if member_id and instance_id is not None and holder != member_id:
        raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID if holder is None else ErrorCode.FENCED_INSTANCE_ID)
    subscription = _subscription(group, group.members.get(member_id or holder or ""), request)
    if not member_id:
        name = caller.client_id if instance_id is None else instance_id
        member_id = f"{name[:MEMBER_NAME_LENGTH_MAX]}-{it.step.new_id()}"
    known = group.members.get(holder or member_id)
    metadata = _metadata(it, request, caller, subscription)
    it.check_room(member_id, known, metadata)
    if not request.member_id and instance_id is None and caller.version >= MEMBER_ID_REQUIRED_FROM:
        return refused_join(member_id, ErrorCode.MEMBER_ID_REQUIRED)  # any id is let in: none needs to be remembered

    before = None if known is None else known.metadata
    if known is not None and known.member_id != member_id:
        group_changes.take_over(it, known, member_id, metadata)
    elif metadata != before:
        it.write_member(member_id, metadata)
    changed = before is None or subscription_of(before) != subscription_of(metadata)
    if changed:
        it.forget_unused_expressions()
    return joined(it, member_id, changed=changed)


def joined(it: GroupStep, member_id: str, *, changed: bool = False) -> JoinGroupResponse:
    """Take a member that joins one step closer to its target. Returns the answer to its join."""
    classic = it.group.members[member_id].classic
    assert classic is not None, f"member {member_id!r} of {it.group.group_id!r} is not a classic one"
    protocol = classic.supported_protocols[0]
    subscription = subscription_in(protocol.metadata)
    owned = () if subscription is None else subscription.owned_partitions
    settle(it, member_id, partitions_in(owned, it.topics), changed=changed)
    it.restart_session(member_id)
    it.await_fetch(member_id)
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=it.group.members[member_id].current.epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol.name,
        leader="",
        member_id=member_id,
        members=(),
    )


def _subscription(
    group: ModernGroup, known: ModernMember | None, request: JoinGroupRequest
) -> ConsumerProtocolSubscription:
    """A joining member as it describes itself. Raises `MemberRefused` for one that is no consumer, or that has no
    protocol in common with the group's other classic members."""
    names = [protocol.name for protocol in request.protocols]
    if request.protocol_type != PROTOCOL_TYPE or not names:
        raise MemberRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not group.supports_classic(names, besides=known):
        raise MemberRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    subscription = subscription_in(request.protocols[0].metadata)
    if subscription is None:
        raise MemberRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return subscription


def _metadata(
    it: GroupStep, request: JoinGroupRequest, caller: Caller, subscription: ConsumerProtocolSubscription
) -> ConsumerGroupMemberMetadataValue:
    given_ms = rebalance_timeout_ms(request.rebalance_timeout_ms, request.session_timeout_ms)
    return ConsumerGroupMemberMetadataValue(
        instance_id=request.group_instance_id,
        rack_id=subscription.rack_id or None,
        client_id=caller.client_id,
        client_host=caller.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=min(given_ms, it.step.config.rebalance_timeout_ms_max),
        classic_member_metadata=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=tuple(
                ClassicProtocol(name=protocol.name, metadata=protocol.metadata) for protocol in request.protocols
            ),
        ),
    )


def sync(it: GroupStep, request: SyncGroupRequest) -> SyncGroupResponse:
    """The partitions that a member has now."""
    try:
        member, classic = _holder(it.group, request.member_id, request.group_instance_id, request.generation_id)
    except MemberRefused as refusal:
        return refused_sync(refusal.code)
    names = [protocol.name for protocol in classic.supported_protocols]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, *names):
        return refused_sync(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    it.restart_session(member.member_id)
    current = member.current
    if it.group.epoch > current.epoch and current.state != ReconciliationState.UNREVOKED_PARTITIONS:
        it.await_join(member.member_id)
        return refused_sync(ErrorCode.REBALANCE_IN_PROGRESS)
    it.stop_await(member.member_id)
    metadata = classic.supported_protocols[0].metadata
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=names[0],
        assignment=assignment_bytes(current.assigned, it.topics, metadata),
    )


def heartbeat(it: GroupStep, request: HeartbeatRequest) -> ErrorCode:
    """Returns the answer's error code, by which a member learns that it must join again."""
    try:
        member, _ = _holder(it.group, request.member_id, request.group_instance_id, request.generation_id)
    except MemberRefused as refusal:
        return refusal.code
    it.restart_session(member.member_id)
    it.follow_topics(changed=False)
    if not _must_join(it.group, member):
        it.stop_await_join(member.member_id)  # it was told to, did not hear it, and needs it no more
        return ErrorCode.NONE
    it.await_join(member.member_id)
    return ErrorCode.REBALANCE_IN_PROGRESS


def _must_join(group: ModernGroup, member: ModernMember) -> bool:
    """Whether a member has something to give up or to get."""
    current = member.current
    if current.epoch < group.epoch or current.state == ReconciliationState.UNREVOKED_PARTITIONS:
        return True
    return current.state == ReconciliationState.UNRELEASED_PARTITIONS and all(
        group.owner(topic_id, index) in (None, member.member_id)
        for topic_id, indexes in group.target(member.member_id).items()
        for index in indexes
    )


def _holder(
    group: ModernGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ModernMember, ClassicMemberMetadata]:
    """The classic member that a request comes from. Raises `MemberRefused`."""
    if instance_id is not None and group.static_members.get(instance_id, member_id) != member_id:
        raise MemberRefused(ErrorCode.FENCED_INSTANCE_ID)
    member = group.members.get(member_id)
    if member is None or member.classic is None:
        raise MemberRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    if generation != member.current.epoch:
        raise MemberRefused(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def leave(it: GroupStep, identities: Sequence[MemberIdentity]) -> tuple[MemberResponse, ...]:
    """Classic members leave by their ids; an administrator removes static members of either protocol by their instance
    ids."""
    answers: list[MemberResponse] = []
    leaving: list[str] = []
    for identity in identities:
        instance_id = identity.group_instance_id
        code, member_id = ErrorCode.NONE, identity.member_id
        if instance_id is not None:
            holder = it.group.static_members.get(instance_id)
            if holder is not None and member_id not in ("", holder):
                code = ErrorCode.FENCED_INSTANCE_ID
            member_id = holder or ""
        member = it.group.members.get(member_id)
        unknown = member is None or (instance_id is None and member.classic is None) or member_id in leaving
        if code is ErrorCode.NONE and unknown:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is ErrorCode.NONE:
            leaving.append(member_id)
        answers.append(MemberResponse(member_id=identity.member_id, group_instance_id=instance_id, error_code=code))
    if leaving:
        group_changes.remove(it, leaving)
    return tuple(answers)
