"""Fetch: batches of partitions, with incremental sessions from version 7.

Topics are named up to version 12 and identified by id from 13. The replica's identity moved from
`replica_id` into the tagged `replica_state` in version 15; consumers leave both at -1.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.model import Buffer
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    int8,
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

READ_COMMITTED = 1
"""The isolation level of readers that take committed transactions alone."""


@nested
class ReplicaState:
    replica_id: int = wire(int32, "15+", default=-1)
    replica_epoch: int = wire(int64, "15+", default=-1)


@nested
class FetchPartition:
    partition: int = wire(int32)
    current_leader_epoch: int = wire(int32, "9+", default=-1, ignorable=True)
    fetch_offset: int = wire(int64)
    last_fetched_epoch: int = wire(int32, "12+", default=-1)
    log_start_offset: int = wire(int64, "5+", default=-1, ignorable=True)
    partition_max_bytes: int = wire(int32)
    replica_directory_id: UUID = wire(uuid, "17+", tag=0, default=ZERO_UUID, ignorable=True)
    high_watermark: int = wire(int64, "18+", tag=1, default=2**63 - 1, ignorable=True)


@nested
class FetchTopic:
    topic: str = wire(string, "0-12", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[FetchPartition, ...] = wire(array(FetchPartition))


@nested
class ForgottenTopic:
    topic: str = wire(string, "7-12", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[int, ...] = wire(array(int32), "7+")


@message(api_key=1, versions="4-18", flexible="12+", elements_max=125_000)
class FetchRequest:
    cluster_id: str | None = wire(string, "12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = wire(int32, "0-14", default=-1)
    replica_state: ReplicaState = wire(struct(ReplicaState), "15+", tag=1, default=ReplicaState())
    max_wait_ms: int = wire(int32)
    min_bytes: int = wire(int32)
    max_bytes: int = wire(int32, "3+", default=0x7FFFFFFF, ignorable=True)
    isolation_level: int = wire(int8, "4+", default=0, ignorable=True)
    session_id: int = wire(int32, "7+", default=0, ignorable=True)
    session_epoch: int = wire(int32, "7+", default=-1, ignorable=True)
    topics: tuple[FetchTopic, ...] = wire(array(FetchTopic))
    forgotten_topics_data: tuple[ForgottenTopic, ...] = wire(array(ForgottenTopic), "7+", default=())
    rack_id: str = wire(string, "11+", default="", ignorable=True)


@nested
class EpochEndOffset:
    epoch: int = wire(int32, "12+", default=-1)
    end_offset: int = wire(int64, "12+", default=-1)


@nested
class LeaderIdAndEpoch:
    leader_id: int = wire(int32, "12+", default=-1)
    leader_epoch: int = wire(int32, "12+", default=-1)


@nested
class SnapshotId:
    end_offset: int = wire(int64, default=-1)
    epoch: int = wire(int32, default=-1)


@nested
class AbortedTransaction:
    producer_id: int = wire(int64, "4+")
    first_offset: int = wire(int64, "4+")


@nested
class PartitionData:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    high_watermark: int = wire(int64)
    last_stable_offset: int = wire(int64, "4+", default=-1, ignorable=True)
    log_start_offset: int = wire(int64, "5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = wire(struct(EpochEndOffset), "12+", tag=0, default=EpochEndOffset())
    current_leader: LeaderIdAndEpoch = wire(
        struct(LeaderIdAndEpoch), "12+", tag=1, default=LeaderIdAndEpoch(), ignorable=True
    )
    snapshot_id: SnapshotId = wire(struct(SnapshotId), "12+", tag=2, default=SnapshotId())
    aborted_transactions: tuple[AbortedTransaction, ...] | None = wire(
        array(AbortedTransaction), "4+", nullable="4+", default=None, ignorable=True
    )
    preferred_read_replica: int = wire(int32, "11+", default=-1)
    records: Buffer | tuple[Buffer, ...] | None = wire(records, nullable="0+")


@nested
class FetchableTopicResponse:
    topic: str = wire(string, "0-12", default="", ignorable=True)
    topic_id: UUID = wire(uuid, "13+", default=ZERO_UUID, ignorable=True)
    partitions: tuple[PartitionData, ...] = wire(array(PartitionData))


@nested
class NodeEndpoint:
    node_id: int = wire(int32, "16+")
    host: str = wire(string, "16+")
    port: int = wire(int32, "16+")
    rack: str | None = wire(string, "16+", nullable="16+", default=None)


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    error_code: int = wire(int16, "7+", default=0, ignorable=True)
    session_id: int = wire(int32, "7+", default=0)
    responses: tuple[FetchableTopicResponse, ...] = wire(array(FetchableTopicResponse))
    node_endpoints: tuple[NodeEndpoint, ...] = wire(array(NodeEndpoint), "16+", tag=0, default=(), ignorable=True)
