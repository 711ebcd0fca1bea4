"""Describes share groups to administrators."""

from __future__ import annotations

from mainstem.broker.consumer_groups.epochs.assigned_partitions import described_assignment
from mainstem.broker.consumer_groups.epochs.subscribed_topics import CurrentTopics
from mainstem.broker.consumer_groups.shared.share_group import ShareGroup, SharingMember
from mainstem.broker.consumer_groups.shared.simple_assignor import ASSIGNOR
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.group_administration import ListedGroup
from mainstem.protocol.messages.share_groups import (
    DescribedShareGroup,
    DescribedShareMember,
)

PROTOCOL_TYPE = "share"


def listed_share(group: ShareGroup) -> ListedGroup:
    return ListedGroup(
        group_id=group.group_id, protocol_type=PROTOCOL_TYPE, group_state=group.state.value, group_type="share"
    )


def described_share(group: ShareGroup, topics: CurrentTopics) -> DescribedShareGroup:
    return DescribedShareGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=tuple(_member(group, member, topics) for member in group.members.values()),
    )


def share_not_described(group_id: str, code: ErrorCode, why: str | None = None) -> DescribedShareGroup:
    return DescribedShareGroup(
        error_code=code,
        error_message=why or code.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )


def _member(group: ShareGroup, member: SharingMember, topics: CurrentTopics) -> DescribedShareMember:
    metadata = member.metadata
    assert metadata is not None, f"member {member.member_id!r} of {group.group_id!r} has no metadata"
    return DescribedShareMember(
        member_id=member.member_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=metadata.subscribed_topic_names,
        assignment=described_assignment(member.current.assigned, topics),
    )
