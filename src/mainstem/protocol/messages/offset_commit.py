"""OffsetCommit: a group's positions. Topics are identified by id from version 10."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
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
class OffsetCommitRequestPartition:
    partition_index: int = wire(int32)
    committed_offset: int = wire(int64)
    committed_leader_epoch: int = wire(int32, "6+", default=-1, ignorable=True)
    committed_metadata: str | None = wire(string, nullable="0+")


@nested
class OffsetCommitRequestTopic:
    name: str = wire(string, "0-9", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitRequestPartition, ...] = wire(array(OffsetCommitRequestPartition))


@message(api_key=8, versions="2-10", flexible="8+", elements_max=250_000)
class OffsetCommitRequest:
    group_id: str = wire(string)
    generation_id_or_member_epoch: int = wire(int32, "1+", default=-1, ignorable=True)
    member_id: str = wire(string, "1+", default="", ignorable=True)
    group_instance_id: str | None = wire(string, "7+", nullable="7+", default=None)
    retention_time_ms: int = wire(int64, "2-4", default=-1, ignorable=True)
    topics: tuple[OffsetCommitRequestTopic, ...] = wire(array(OffsetCommitRequestTopic))


@nested
class OffsetCommitResponsePartition:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@nested
class OffsetCommitResponseTopic:
    name: str = wire(string, "0-9", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[OffsetCommitResponsePartition, ...] = wire(array(OffsetCommitResponsePartition))


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int = wire(int32, "3+", default=0, ignorable=True)
    topics: tuple[OffsetCommitResponseTopic, ...] = wire(array(OffsetCommitResponseTopic))
