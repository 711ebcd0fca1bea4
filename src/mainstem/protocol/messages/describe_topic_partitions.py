"""DescribeTopicPartitions: topics with their partitions, in pieces that a cursor joins."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.messages.metadata import AUTHORIZED_OPERATIONS_UNKNOWN
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    int16,
    int32,
    message,
    nested,
    string,
    struct,
    uuid,
    wire,
)


@nested
class TopicRequest:
    name: str = wire(string)


@nested
class Cursor:
    """The partition that the next answer begins with."""

    topic_name: str = wire(string)
    partition_index: int = wire(int32)


@message(api_key=75, versions="0", flexible="0+", elements_max=250_000)
class DescribeTopicPartitionsRequest:
    topics: tuple[TopicRequest, ...] = wire(array(TopicRequest))
    response_partition_limit: int = wire(int32, default=2000)
    cursor: Cursor | None = wire(struct(Cursor), nullable="0+", default=None)


@nested
class DescribeTopicPartitionsResponsePartition:
    error_code: int = wire(int16)
    partition_index: int = wire(int32)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32, default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = wire(array(int32))
    isr_nodes: tuple[int, ...] = wire(array(int32))
    eligible_leader_replicas: tuple[int, ...] | None = wire(array(int32), nullable="0+", default=None, ignorable=True)
    last_known_elr: tuple[int, ...] | None = wire(array(int32), nullable="0+", default=None, ignorable=True)
    offline_replicas: tuple[int, ...] = wire(array(int32), ignorable=True)


@nested
class DescribeTopicPartitionsResponseTopic:
    error_code: int = wire(int16)
    name: str | None = wire(string, nullable="0+")
    topic_id: UUID = wire(uuid, default=ZERO_UUID, ignorable=True)
    is_internal: bool = wire(boolean, default=False, ignorable=True)
    partitions: tuple[DescribeTopicPartitionsResponsePartition, ...] = wire(
        array(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = wire(int32, default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = wire(int32, default=0, ignorable=True)
    topics: tuple[DescribeTopicPartitionsResponseTopic, ...] = wire(array(DescribeTopicPartitionsResponseTopic))
    next_cursor: Cursor | None = wire(struct(Cursor), nullable="0+", default=None, ignorable=True)
