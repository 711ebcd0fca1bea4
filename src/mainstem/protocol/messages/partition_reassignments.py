"""AlterPartitionReassignments and ListPartitionReassignments: moves of replicas from node to node (KIP-455)."""

from __future__ import annotations

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


@nested
class ListedReassignmentTopic:
    name: str = wire(string)
    partition_indexes: tuple[int, ...] = wire(array(int32))


@message(api_key=46, versions="0", flexible="0+", elements_max=250_000)
class ListPartitionReassignmentsRequest:
    timeout_ms: int = wire(int32, default=60_000)
    topics: tuple[ListedReassignmentTopic, ...] | None = wire(
        array(ListedReassignmentTopic), nullable="0+", default=None
    )


@nested
class OngoingPartitionReassignment:
    partition_index: int = wire(int32)
    replicas: tuple[int, ...] = wire(array(int32))
    adding_replicas: tuple[int, ...] = wire(array(int32))
    removing_replicas: tuple[int, ...] = wire(array(int32))


@nested
class OngoingTopicReassignment:
    name: str = wire(string)
    partitions: tuple[OngoingPartitionReassignment, ...] | EncodedArray = wire(array(OngoingPartitionReassignment))


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    topics: tuple[OngoingTopicReassignment, ...] | EncodedArray = wire(array(OngoingTopicReassignment), default=())
