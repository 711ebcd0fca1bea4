"""The records of `__consumer_offsets` about consumer groups whose partitions the coordinator assigns (KIP-848), in
Kafka's own format.

The version in front of a key is the kind of the record. A null value deletes what the key names.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.messages.record_kinds import RecordKinds
from mainstem.protocol.schema import (
    array,
    binary,
    int8,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    uuid,
    wire,
)


@message(versions="3")
class ConsumerGroupMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: int = wire(int32)
    metadata_hash: int = wire(int64, tag=0, default=0)
    """Of the topics that the members subscribe to, as of this epoch. Zero: not known."""


@message(versions="5")
class ConsumerGroupMemberMetadataKey:
    group: str = wire(string)
    member_id: str = wire(string)


@nested
class ClassicProtocol:
    name: str = wire(string)
    metadata: bytes = wire(binary)


@nested
class ClassicMemberMetadata:
    """Of a member that speaks the classic protocol in such a consumer group."""

    session_timeout_ms: int = wire(int32)
    supported_protocols: tuple[ClassicProtocol, ...] = wire(array(ClassicProtocol))


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    subscribed_topic_names: tuple[str, ...] = wire(array(string))
    subscribed_topic_regex: str | None = wire(string, nullable="0+", default=None)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    server_assignor: str | None = wire(string, nullable="0+", default=None)
    classic_member_metadata: ClassicMemberMetadata | None = wire(
        struct(ClassicMemberMetadata), nullable="0+", tag=0, default=None
    )


@message(versions="6")
class ConsumerGroupTargetAssignmentMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(int32)


@nested
class RecordedTopicPartitions:
    topic_id: UUID = wire(uuid)
    partitions: tuple[int, ...] = wire(array(int32))


@message(versions="7")
class ConsumerGroupTargetAssignmentMemberKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


@message(versions="8")
class ConsumerGroupCurrentMemberAssignmentKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    assigned_partitions: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))
    partitions_pending_revocation: tuple[RecordedTopicPartitions, ...] = wire(array(RecordedTopicPartitions))


@message(versions="16")
class ConsumerGroupRegularExpressionKey:
    group: str = wire(string)
    regular_expression: str = wire(string)


@message(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: tuple[str, ...] = wire(array(string))
    version: int = wire(int64)
    """Of the metadata by which the expression was resolved."""
    timestamp: int = wire(int64)


ModernKey = (
    ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
)
ModernValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)

MODERN_RECORDS: RecordKinds[ModernKey, ModernValue] = RecordKinds(
    {
        ConsumerGroupMetadataKey: ConsumerGroupMetadataValue,
        ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadataValue,
        ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadataValue,
        ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMemberValue,
        ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignmentValue,
        ConsumerGroupRegularExpressionKey: ConsumerGroupRegularExpressionValue,
    }
)
