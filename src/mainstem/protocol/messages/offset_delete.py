"""OffsetDelete: forget a group's offsets of partitions it is not subscribed to."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


@nested
class OffsetDeleteRequestPartition:
    partition_index: int = wire(int32)


@nested
class OffsetDeleteRequestTopic:
    name: str = wire(string)
    partitions: tuple[OffsetDeleteRequestPartition, ...] = wire(array(OffsetDeleteRequestPartition))


@message(api_key=47, versions="0")
class OffsetDeleteRequest:
    group_id: str = wire(string)
    topics: tuple[OffsetDeleteRequestTopic, ...] = wire(array(OffsetDeleteRequestTopic))


@nested
class OffsetDeleteResponsePartition:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@nested
class OffsetDeleteResponseTopic:
    name: str = wire(string)
    partitions: tuple[OffsetDeleteResponsePartition, ...] = wire(array(OffsetDeleteResponsePartition))


@message(api_key=47, versions="0")
class OffsetDeleteResponse:
    error_code: int = wire(int16)
    throttle_time_ms: int = wire(int32, default=0, ignorable=True)
    topics: tuple[OffsetDeleteResponseTopic, ...] = wire(array(OffsetDeleteResponseTopic))
