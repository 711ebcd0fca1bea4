"""DescribeLogDirs: sizes of partitions by log directory."""

from __future__ import annotations

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import array, boolean, int16, int32, int64, message, nested, string, wire


@nested
class DescribableLogDirTopic:
    topic: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@message(api_key=35, versions="1-5", flexible="2+", elements_max=250_000)
class DescribeLogDirsRequest:
    topics: tuple[DescribableLogDirTopic, ...] | None = wire(array(DescribableLogDirTopic), nullable="0+")


@nested
class DescribeLogDirsPartition:
    partition_index: int = wire(int32)
    partition_size: int = wire(int64)
    offset_lag: int = wire(int64)
    is_future_key: bool = wire(boolean)


@nested
class DescribeLogDirsTopic:
    name: str = wire(string)
    partitions: tuple[DescribeLogDirsPartition, ...] | EncodedArray = wire(array(DescribeLogDirsPartition))


@nested
class DescribeLogDirsResult:
    error_code: int = wire(int16)
    log_dir: str = wire(string)
    topics: tuple[DescribeLogDirsTopic, ...] | EncodedArray = wire(array(DescribeLogDirsTopic))
    total_bytes: int = wire(int64, "4+", default=-1, ignorable=True)
    usable_bytes: int = wire(int64, "4+", default=-1, ignorable=True)
    is_cordoned: bool = wire(boolean, "5+", default=False, ignorable=True)


@message(api_key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16, "3+", default=0, ignorable=True)
    results: tuple[DescribeLogDirsResult, ...] = wire(array(DescribeLogDirsResult))
