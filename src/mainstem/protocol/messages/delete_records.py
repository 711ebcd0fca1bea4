"""DeleteRecords: move log start offsets up; offset -1 means the high watermark."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, int64, message, nested, string, wire


@nested
class DeleteRecordsPartition:
    partition_index: int = wire(int32)
    offset: int = wire(int64)


@nested
class DeleteRecordsTopic:
    name: str = wire(string)
    partitions: tuple[DeleteRecordsPartition, ...] = wire(array(DeleteRecordsPartition))


@message(api_key=21, versions="0-2", flexible="2+", elements_max=250_000)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...] = wire(array(DeleteRecordsTopic))
    timeout_ms: int = wire(int32)


@nested
class DeleteRecordsPartitionResult:
    partition_index: int = wire(int32)
    low_watermark: int = wire(int64)
    error_code: int = wire(int16)


@nested
class DeleteRecordsTopicResult:
    name: str = wire(string)
    partitions: tuple[DeleteRecordsPartitionResult, ...] = wire(array(DeleteRecordsPartitionResult))


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    topics: tuple[DeleteRecordsTopicResult, ...] = wire(array(DeleteRecordsTopicResult))
