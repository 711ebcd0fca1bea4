"""Produce: batches for partitions. Topics are named up to version 12 and identified by id from 13.

The hot path does not come here: the kernel reads Produce bodies in place. These declarations serve the
clients, the tests and the rare paths.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    int16,
    int32,
    int64,
    message,
    nested,
    records,
    string,
    struct,
    uuid,
    wire,
)


@nested
class PartitionProduceData:
    index: int = wire(int32)
    records: Buffer | tuple[Buffer, ...] | None = wire(records, nullable="0+")


@nested
class TopicProduceData:
    name: str = wire(string, "0-12", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "13+", default=ZERO_UUID, ignorable=True)
    partition_data: tuple[PartitionProduceData, ...] = wire(array(PartitionProduceData))


@message(api_key=0, versions="3-13", flexible="9+", elements_max=100_000)
class ProduceRequest:
    transactional_id: str | None = wire(string, "3+", nullable="3+", default=None)
    acks: int = wire(int16)
    timeout_ms: int = wire(int32)
    topic_data: tuple[TopicProduceData, ...] = wire(array(TopicProduceData))


@nested
class BatchIndexAndErrorMessage:
    batch_index: int = wire(int32, "8+")
    batch_index_error_message: str | None = wire(string, "8+", nullable="8+", default=None)


@nested
class LeaderIdAndEpoch:
    leader_id: int = wire(int32, "10+", default=-1)
    leader_epoch: int = wire(int32, "10+", default=-1)


@nested
class PartitionProduceResponse:
    index: int = wire(int32)
    error_code: int = wire(int16)
    base_offset: int = wire(int64)
    log_append_time_ms: int = wire(int64, "2+", default=-1, ignorable=True)
    log_start_offset: int = wire(int64, "5+", default=-1, ignorable=True)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = wire(
        array(BatchIndexAndErrorMessage), "8+", default=(), ignorable=True
    )
    error_message: str | None = wire(string, "8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = wire(
        struct(LeaderIdAndEpoch), "10+", tag=0, default=LeaderIdAndEpoch(), ignorable=True
    )


@nested
class TopicProduceResponse:
    name: str = wire(string, "0-12", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "13+", default=ZERO_UUID, ignorable=True)
    partition_responses: tuple[PartitionProduceResponse, ...] = wire(array(PartitionProduceResponse))


@nested
class NodeEndpoint:
    node_id: int = wire(int32, "10+")
    host: str = wire(string, "10+")
    port: int = wire(int32, "10+")
    rack: str | None = wire(string, "10+", nullable="10+", default=None)


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    responses: tuple[TopicProduceResponse, ...] = wire(array(TopicProduceResponse))
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    node_endpoints: tuple[NodeEndpoint, ...] = wire(array(NodeEndpoint), "10+", tag=0, default=(), ignorable=True)
