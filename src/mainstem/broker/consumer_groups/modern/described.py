"""Describes groups to administrators, and says whether a member's epoch allows it to commit and fetch offsets."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from mainstem.broker.consumer_groups.epochs.assigned_partitions import Partitions, described_assignment
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.long_work import Slices, in_pieces
from mainstem.broker.consumer_groups.modern.assignors import chosen
from mainstem.broker.consumer_groups.modern.modern_group import ModernGroup
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_group_heartbeat import (
    MEMBER_TYPE_CLASSIC,
    MEMBER_TYPE_CONSUMER,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from mainstem.protocol.messages.consumer_group_records import ConsumerGroupMemberMetadataValue
from mainstem.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from mainstem.protocol.messages.group_administration import ListedGroup
from mainstem.protocol.messages.offset_commit import OffsetCommitRequest
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup

MEMBER_EPOCHS_FROM = 9
"""The version of OffsetCommit from which it names member epochs."""


def listed(group: ModernGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id, protocol_type=PROTOCOL_TYPE, group_state=group.state.value, group_type="consumer"
    )


class _MemberNow(NamedTuple):
    """A member as it is when its group is described; all of that is replaced, and never changed."""

    member_id: str
    metadata: ConsumerGroupMemberMetadataValue | None
    current: CurrentAssignment
    target: Partitions


def described(group: ModernGroup, topics: CurrentTopics) -> Slices[DescribedConsumerGroup]:
    """The group as it is when this begins."""
    now = [
        _MemberNow(member.member_id, member.metadata, member.current, group.target(member.member_id))
        for member in group.members.values()
    ]
    whole = DescribedConsumerGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=chosen(Counter(one.metadata.server_assignor for one in now if one.metadata is not None)),
        members=(),
    )
    members: list[DescribedConsumer] = []
    for some in in_pieces(now):
        members += [_member(group, member, topics) for member in some]
        yield len(some)
    return replace(whole, members=tuple(members))


def not_described(group_id: str, code: ErrorCode, why: str | None = None) -> DescribedConsumerGroup:
    return DescribedConsumerGroup(
        error_code=code,
        error_message=why or code.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def _member(group: ModernGroup, member: _MemberNow, topics: CurrentTopics) -> DescribedConsumer:
    metadata = member.metadata
    assert metadata is not None, f"member {member.member_id!r} of {group.group_id!r} has no metadata"
    return DescribedConsumer(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        subscribed_topic_regex=metadata.subscribed_topic_regex,
        assignment=described_assignment(member.current.assigned, topics),
        target_assignment=described_assignment(member.target, topics),
        member_type=MEMBER_TYPE_CONSUMER if metadata.classic_member_metadata is None else MEMBER_TYPE_CLASSIC,
    )


def commit_error(group: ModernGroup, request: OffsetCommitRequest, version: int) -> ErrorCode:
    """Whether a member, or an administrator while there are none, may commit."""
    epoch = request.generation_id_or_member_epoch
    if epoch < 0 and group.empty:
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is not None:
        if group.static_members.get(request.group_instance_id or "", member.member_id) != member.member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if epoch == member.current.epoch else ErrorCode.ILLEGAL_GENERATION
    if version < MEMBER_EPOCHS_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    return ErrorCode.NONE if epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH


def fetch_error(group: ModernGroup, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Whether the sender, a member if it says so, may fetch offsets."""
    if request.member_id is None and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH
