"""ListOffsets: the offset for a timestamp, or for one of the special timestamps below."""

from __future__ import annotations

from mainstem.protocol.schema import array, int8, int16, int32, int64, message, nested, string, wire

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
"""From version 7: the offset of the record with the greatest timestamp."""
EARLIEST_LOCAL_TIMESTAMP = -4
"""From version 8: the earliest offset on local storage, where storage is tiered."""
LATEST_TIERED_TIMESTAMP = -5
"""From version 9: the latest offset that was moved to remote storage."""
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
"""From version 11: the earliest offset not yet moved to remote storage."""


@nested
class ListOffsetsPartition:
    partition_index: int = wire(int32)
    current_leader_epoch: int = wire(int32, "4+", default=-1, ignorable=True)
    timestamp: int = wire(int64)


@nested
class ListOffsetsTopic:
    name: str = wire(string)
    partitions: tuple[ListOffsetsPartition, ...] = wire(array(ListOffsetsPartition))


@message(api_key=2, versions="1-11", flexible="6+", elements_max=250_000)
class ListOffsetsRequest:
    replica_id: int = wire(int32)
    isolation_level: int = wire(int8, "2+", default=0)
    topics: tuple[ListOffsetsTopic, ...] = wire(array(ListOffsetsTopic))
    timeout_ms: int = wire(int32, "10+", default=0, ignorable=True)


@nested
class ListOffsetsPartitionResponse:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    timestamp: int = wire(int64, "1+", default=-1)
    offset: int = wire(int64, "1+", default=-1)
    leader_epoch: int = wire(int32, "4+", default=-1, ignorable=True)


@nested
class ListOffsetsTopicResponse:
    name: str = wire(string)
    partitions: tuple[ListOffsetsPartitionResponse, ...] = wire(array(ListOffsetsPartitionResponse))


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: int = wire(int32, "2+", default=0, ignorable=True)
    topics: tuple[ListOffsetsTopicResponse, ...] = wire(array(ListOffsetsTopicResponse))
