"""The records of `__consumer_offsets` about share groups (KIP-932), in Kafka's own format.

The version in front of a key is the kind of the record. A null value deletes what the key names. Kind 15 (which
partitions a group has begun to read) is not written: the state of a partition begins where it is read first.
"""

from __future__ import annotations

from mainstem.protocol.messages.consumer_group_records import RecordedTopicPartitions
from mainstem.protocol.messages.record_kinds import RecordKinds
from mainstem.protocol.schema import array, int8, int32, int64, message, string, wire


@message(versions="10")
class ShareGroupMemberMetadataKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    rack_id: str | None = wire(string, nullable="0+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: tuple[str, ...] = wire(array(string))


@message(versions="11")
class ShareGroupMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupMetadataValue:
    epoch: int = wire(int32)
    metadata_hash: int = wire(int64)
    """Of the topics that the members subscribe to, as of this epoch."""


@message(versions="12")
class ShareGroupTargetAssignmentMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(int32)


@message(versions="13")
class ShareGroupTargetAssignmentMemberKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


@message(versions="14")
class ShareGroupCurrentMemberAssignmentKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    assigned_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


ShareKey = (
    ShareGroupMemberMetadataKey
    | ShareGroupMetadataKey
    | ShareGroupTargetAssignmentMetadataKey
    | ShareGroupTargetAssignmentMemberKey
    | ShareGroupCurrentMemberAssignmentKey
)
ShareValue = (
    ShareGroupMemberMetadataValue
    | ShareGroupMetadataValue
    | ShareGroupTargetAssignmentMetadataValue
    | ShareGroupTargetAssignmentMemberValue
    | ShareGroupCurrentMemberAssignmentValue
)

SHARE_RECORDS: RecordKinds[ShareKey, ShareValue] = RecordKinds(
    {
        ShareGroupMemberMetadataKey: ShareGroupMemberMetadataValue,
        ShareGroupMetadataKey: ShareGroupMetadataValue,
        ShareGroupTargetAssignmentMetadataKey: ShareGroupTargetAssignmentMetadataValue,
        ShareGroupTargetAssignmentMemberKey: ShareGroupTargetAssignmentMemberValue,
        ShareGroupCurrentMemberAssignmentKey: ShareGroupCurrentMemberAssignmentValue,
    }
)
