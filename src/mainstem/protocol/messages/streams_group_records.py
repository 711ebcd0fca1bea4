"""The records of `__consumer_offsets` about streams groups (KIP-1071), in Kafka's own format.

The version in front of a key is the kind of the record. A null value deletes what the key names. Kind 18 (the
partitions of an application's topics) is of releases before Kafka's first with streams groups, and is not written.
"""

from __future__ import annotations

from mainstem.protocol.messages.record_kinds import RecordKinds
from mainstem.protocol.messages.streams_groups import (
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTaskIds,
)
from mainstem.protocol.schema import (
    array,
    int8,
    int32,
    int64,
    message,
    nested,
    string,
    struct,
    wire,
)


@message(versions="17")
class StreamsGroupMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class StreamsGroupMetadataValue:
    epoch: int = wire(int32)
    metadata_hash: int = wire(int64)
    """Of the topics that the topology names, as of this epoch."""
    validated_topology_epoch: int = wire(int32, tag=0, default=-1)
    """The epoch of the topology whose topics were all there, in the right numbers; -1: they were not."""
    last_assignment_configs: tuple[StreamsKeyValue, ...] | None = wire(
        array(StreamsKeyValue), nullable="0+", tag=1, default=None
    )
    """The settings of the assignor, as of this epoch."""


@message(versions="19")
class StreamsGroupMemberMetadataKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    instance_id: str | None = wire(string, nullable="0+", default=None)
    rack_id: str | None = wire(string, nullable="0+", default=None)
    client_id: str = wire(string)
    client_host: str = wire(string)
    rebalance_timeout_ms: int = wire(int32, default=-1)
    topology_epoch: int = wire(int32)
    process_id: str = wire(string)
    user_endpoint: StreamsEndpoint | None = wire(struct(StreamsEndpoint), nullable="0+", default=None)
    client_tags: tuple[StreamsKeyValue, ...] = wire(array(StreamsKeyValue))


@message(versions="20")
class StreamsGroupTargetAssignmentMetadataKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    assignment_epoch: int = wire(int32)
    assignment_timestamp: int = wire(int64, tag=0, default=0)


@message(versions="21")
class StreamsGroupTargetAssignmentMemberKey:
    group: str = wire(string)
    member_id: str = wire(string)


@message(versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    active_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))
    standby_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))
    warmup_tasks: tuple[StreamsTaskIds, ...] = wire(array(StreamsTaskIds))


@message(versions="22")
class StreamsGroupCurrentMemberAssignmentKey:
    group: str = wire(string)
    member_id: str = wire(string)


@nested
class RecordedTaskIds:
    subtopology_id: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))
    assignment_epochs: tuple[int, ...] | None = wire(array(int32), nullable="0+", tag=0, default=None)
    """The member epoch at which the member got each task, in the order of the partitions."""


@message(versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    member_epoch: int = wire(int32)
    previous_member_epoch: int = wire(int32)
    state: int = wire(int8)
    active_tasks: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))
    standby_tasks: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))
    warmup_tasks: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))
    active_tasks_pending_revocation: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))
    standby_tasks_pending_revocation: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))
    warmup_tasks_pending_revocation: tuple[RecordedTaskIds, ...] = wire(array(RecordedTaskIds))


@message(versions="23")
class StreamsGroupTopologyKey:
    group: str = wire(string)


@message(versions="0", flexible="0+")
class StreamsGroupTopologyValue:
    epoch: int = wire(int32)
    subtopologies: tuple[StreamsSubtopology, ...] = wire(array(StreamsSubtopology))


StreamsKey = (
    StreamsGroupMetadataKey
    | StreamsGroupMemberMetadataKey
    | StreamsGroupTargetAssignmentMetadataKey
    | StreamsGroupTargetAssignmentMemberKey
    | StreamsGroupCurrentMemberAssignmentKey
    | StreamsGroupTopologyKey
)
StreamsValue = (
    StreamsGroupMetadataValue
    | StreamsGroupMemberMetadataValue
    | StreamsGroupTargetAssignmentMetadataValue
    | StreamsGroupTargetAssignmentMemberValue
    | StreamsGroupCurrentMemberAssignmentValue
    | StreamsGroupTopologyValue
)

STREAMS_RECORDS: RecordKinds[StreamsKey, StreamsValue] = RecordKinds(
    {
        StreamsGroupMetadataKey: StreamsGroupMetadataValue,
        StreamsGroupMemberMetadataKey: StreamsGroupMemberMetadataValue,
        StreamsGroupTargetAssignmentMetadataKey: StreamsGroupTargetAssignmentMetadataValue,
        StreamsGroupTargetAssignmentMemberKey: StreamsGroupTargetAssignmentMemberValue,
        StreamsGroupCurrentMemberAssignmentKey: StreamsGroupCurrentMemberAssignmentValue,
        StreamsGroupTopologyKey: StreamsGroupTopologyValue,
    }
)
