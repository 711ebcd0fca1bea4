"""CreatePartitions: raise the number of partitions of topics to `count`."""

from __future__ import annotations

from mainstem.protocol.schema import array, boolean, int16, int32, message, nested, string, wire


@nested
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...] = wire(array(int32))


@nested
class CreatePartitionsTopic:
    name: str = wire(string)
    count: int = wire(int32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = wire(array(CreatePartitionsAssignment), nullable="0+")


@message(api_key=37, versions="0-3", flexible="2+", elements_max=250_000)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...] = wire(array(CreatePartitionsTopic))
    timeout_ms: int = wire(int32)
    validate_only: bool = wire(boolean)


@nested
class CreatePartitionsTopicResult:
    name: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = wire(array(CreatePartitionsTopicResult))
