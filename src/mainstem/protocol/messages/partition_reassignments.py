"""AlterPartitionReassignments and ListPartitionReassignments: moves of replicas from node to node (KIP-455)."""

from __future__ import annotations

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import array, boolean, int16, int32, message, nested, string, wire


@nested
class ReassignablePartition:
    partition_index: int = wire(int32)
    replicas: tuple[int, ...] | None = wire(array(int32), nullable="0+", default=None)


@nested
class ReassignableTopic:
    name: str = wire(string)
    partitions: tuple[ReassignablePartition, ...] = wire(array(ReassignablePartition))


@message(api_key=45, versions="0-1", flexible="0+", elements_max=250_000)
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = wire(int32, default=60_000)
    allow_replication_factor_change: bool = wire(boolean, "1+", default=True)
    topics: tuple[ReassignableTopic, ...] = wire(array(ReassignableTopic))


@nested
class ReassignablePartitionResponse:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@nested
class ReassignableTopicResponse:
    name: str = wire(string)
    partitions: tuple[ReassignablePartitionResponse, ...] = wire(array(ReassignablePartitionResponse))


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    allow_replication_factor_change: bool = wire(boolean, "1+", default=True, ignorable=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    responses: tuple[ReassignableTopicResponse, ...] = wire(array(ReassignableTopicResponse), default=())


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
