"""A share group as a noun. Nobody owns a partition alone, so that a member is at the group's epoch as soon as it hears
of its target.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from mainstem.broker.consumer_groups.epochs.assigned_partitions import partitions_of, rows_of
from mainstem.broker.consumer_groups.epochs.epoch_group import EpochRecords
from mainstem.broker.consumer_groups.epochs.epoch_member import CurrentAssignment, EpochMember, member_bytes
from mainstem.broker.consumer_groups.epochs.partition_group import PartitionGroup
from mainstem.broker.consumer_groups.step import ShareRecord
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_group_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)


class ShareGroupState(enum.Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"


class FoundedShareGroup(NamedTuple):
    """A share group that has no members; or why there is none."""

    error: ErrorCode
    epoch: int


@dataclass(slots=True)
class SharingMember(EpochMember[ShareGroupMemberMetadataValue, CurrentAssignment]):
    """A member of a share group."""


RECORDS = EpochRecords(
    record=ShareRecord,
    epoch_key=ShareGroupMetadataKey,
    epoch=ShareGroupMetadataValue,
    member_key=ShareGroupMemberMetadataKey,
    target_epoch_key=ShareGroupTargetAssignmentMetadataKey,
    target_epoch=ShareGroupTargetAssignmentMetadataValue,
    target_key=ShareGroupTargetAssignmentMemberKey,
    target=ShareGroupTargetAssignmentMemberValue,
    current_key=ShareGroupCurrentMemberAssignmentKey,
)


class ShareGroup(PartitionGroup[SharingMember]):
    """One share group. A new one is empty, and the log does not know it."""

    records = RECORDS

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # --- what the log says ---------------------------------------------------------------------------

    def bytes_of(self, member_id: str, metadata: ShareGroupMemberMetadataValue) -> int:
        texts = (metadata.rack_id, metadata.client_id, metadata.client_host)
        return member_bytes(member_id, texts, metadata.subscribed_topic_names)

    def current_value(self, current: CurrentAssignment) -> ShareGroupCurrentMemberAssignmentValue:
        return ShareGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=int(current.state),
            assigned_partitions=rows_of(current.assigned),
        )

    def _current(self, value: ShareGroupCurrentMemberAssignmentValue) -> CurrentAssignment:
        return CurrentAssignment(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=partitions_of(value.assigned_partitions),
        )

    def _new_member(self, member_id: str) -> SharingMember:
        return SharingMember(member_id, CurrentAssignment())
