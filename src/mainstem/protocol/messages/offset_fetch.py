"""OffsetFetch: committed positions, of one group up to version 7 and of several from 8.

Null topics ask for all (from version 2). Topics are identified by id from version 10.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    nested,
    string,
    uuid,
    wire,
)


@nested
class OffsetFetchRequestTopic:
    name: str = wire(string, "0-7")
    partition_indexes: tuple[int, ...] = wire(array(int32), "0-7")


@nested
class OffsetFetchRequestTopics:
    name: str = wire(string, "8-9", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    partition_indexes: tuple[int, ...] = wire(array(int32), "8+")


@nested
class OffsetFetchRequestGroup:
    group_id: str = wire(string, "8+")
    member_id: str | None = wire(string, "9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = wire(int32, "9+", default=-1, ignorable=True)
    topics: tuple[OffsetFetchRequestTopics, ...] | None = wire(array(OffsetFetchRequestTopics), "8+", nullable="8+")


@message(api_key=9, versions="1-10", flexible="6+", elements_max=250_000)
class OffsetFetchRequest:
    group_id: str = wire(string, "0-7", default="")
    topics: tuple[OffsetFetchRequestTopic, ...] | None = wire(
        array(OffsetFetchRequestTopic), "0-7", nullable="2-7", default=()
    )
    groups: tuple[OffsetFetchRequestGroup, ...] = wire(array(OffsetFetchRequestGroup), "8+", default=())
    require_stable: bool = wire(boolean, "7+", default=False)


@nested
class OffsetFetchResponsePartition:
    partition_index: int = wire(int32, "0-7")
    committed_offset: int = wire(int64, "0-7")
    committed_leader_epoch: int = wire(int32, "5-7", default=-1, ignorable=True)
    metadata: str | None = wire(string, "0-7", nullable="0-7")
    error_code: int = wire(int16, "0-7")


@nested
class OffsetFetchResponseTopic:
    name: str = wire(string, "0-7")
    partitions: tuple[OffsetFetchResponsePartition, ...] = wire(array(OffsetFetchResponsePartition), "0-7")


@nested
class OffsetFetchResponsePartitions:
    partition_index: int = wire(int32, "8+")
    committed_offset: int = wire(int64, "8+")
    committed_leader_epoch: int = wire(int32, "8+", default=-1, ignorable=True)
    metadata: str | None = wire(string, "8+", nullable="8+")
    error_code: int = wire(int16, "8+")


@nested
class OffsetFetchResponseTopics:
    name: str = wire(string, "8-9", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetFetchResponsePartitions, ...] = wire(array(OffsetFetchResponsePartitions), "8+")


@nested
class OffsetFetchResponseGroup:
    group_id: str = wire(string, "8+")
    topics: tuple[OffsetFetchResponseTopics, ...] = wire(array(OffsetFetchResponseTopics), "8+")
    error_code: int = wire(int16, "8+", default=0)


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: int = wire(int32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetFetchResponseTopic, ...] = wire(array(OffsetFetchResponseTopic), "0-7", default=())
    error_code: int = wire(int16, "2-7", default=0, ignorable=True)
    groups: tuple[OffsetFetchResponseGroup, ...] = wire(array(OffsetFetchResponseGroup), "8+", default=())
