"""How far share groups are, as those see and change it who look after them.

DescribeShareGroupOffsets: the first offset that is not done, per partition, and from version 1 on how much is left.
AlterShareGroupOffsets: have a group without members go on from other offsets.
DeleteShareGroupOffsets: have it forget topics.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import array, int16, int32, int64, message, nested, string, uuid, wire


@nested
class DescribeShareOffsetsTopic:
    topic_name: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class DescribeShareOffsetsGroup:
    group_id: str = wire(string)
    topics: tuple[DescribeShareOffsetsTopic, ...] | None = wire(array(DescribeShareOffsetsTopic), nullable="0+")


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    groups: tuple[DescribeShareOffsetsGroup, ...] = wire(array(DescribeShareOffsetsGroup))


@nested
class DescribedShareOffset:
    partition_index: int = wire(int32)
    start_offset: int = wire(int64)
    leader_epoch: int = wire(int32)
    lag: int = wire(int64, "1+", default=-1, ignorable=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@nested
class DescribedShareOffsetsTopic:
    topic_name: str = wire(string)
    topic_id: UUID = wire(uuid)
    partitions: tuple[DescribedShareOffset, ...] = wire(array(DescribedShareOffset))


@nested
class DescribedShareOffsetsGroup:
    group_id: str = wire(string)
    topics: tuple[DescribedShareOffsetsTopic, ...] = wire(array(DescribedShareOffsetsTopic))
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    groups: tuple[DescribedShareOffsetsGroup, ...] = wire(array(DescribedShareOffsetsGroup))


@nested
class AlterShareOffset:
    partition_index: int = wire(int32)
    start_offset: int = wire(int64)


@nested
class AlterShareOffsetsTopic:
    topic_name: str = wire(string)
    partitions: tuple[AlterShareOffset, ...] = wire(array(AlterShareOffset))


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    group_id: str = wire(string)
    topics: tuple[AlterShareOffsetsTopic, ...] = wire(array(AlterShareOffsetsTopic))


@nested
class AlteredShareOffset:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@nested
class AlteredShareOffsetsTopic:
    topic_name: str = wire(string)
    topic_id: UUID = wire(uuid)
    partitions: tuple[AlteredShareOffset, ...] = wire(array(AlteredShareOffset))


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    responses: tuple[AlteredShareOffsetsTopic, ...] = wire(array(AlteredShareOffsetsTopic))


@nested
class DeleteShareOffsetsTopic:
    topic_name: str = wire(string)


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    group_id: str = wire(string)
    topics: tuple[DeleteShareOffsetsTopic, ...] = wire(array(DeleteShareOffsetsTopic))


@nested
class DeletedShareOffsetsTopic:
    topic_name: str = wire(string)
    topic_id: UUID = wire(uuid)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)
    responses: tuple[DeletedShareOffsetsTopic, ...] = wire(array(DeletedShareOffsetsTopic))
