"""DescribeQuorum: who leads the metadata quorum, who votes in it, and how far each of its nodes is (KIP-595)."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.schema import ZERO_UUID, array, int16, int32, int64, message, nested, string, uint16, uuid, wire


@nested
class DescribeQuorumRequestPartition:
    partition_index: int = wire(int32)


@nested
class DescribeQuorumRequestTopic:
    topic_name: str = wire(string)
    partitions: tuple[DescribeQuorumRequestPartition, ...] = wire(array(DescribeQuorumRequestPartition))


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: tuple[DescribeQuorumRequestTopic, ...] = wire(array(DescribeQuorumRequestTopic))


@nested
class QuorumReplicaState:
    replica_id: int = wire(int32)
    replica_directory_id: UUID = wire(uuid, "2+", default=ZERO_UUID, ignorable=True)
    log_end_offset: int = wire(int64)
    last_fetch_timestamp: int = wire(int64, "1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = wire(int64, "1+", default=-1, ignorable=True)


@nested
class DescribeQuorumResponsePartition:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "2+", nullable="2+", default=None, ignorable=True)
    leader_id: int = wire(int32, default=-1)
    leader_epoch: int = wire(int32, default=-1)
    high_watermark: int = wire(int64, default=-1)
    current_voters: tuple[QuorumReplicaState, ...] = wire(array(QuorumReplicaState), default=())
    observers: tuple[QuorumReplicaState, ...] = wire(array(QuorumReplicaState), default=())


@nested
class DescribeQuorumResponseTopic:
    topic_name: str = wire(string)
    partitions: tuple[DescribeQuorumResponsePartition, ...] = wire(array(DescribeQuorumResponsePartition))


@nested
class QuorumListener:
    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)


@nested
class QuorumNode:
    node_id: int = wire(int32)
    listeners: tuple[QuorumListener, ...] = wire(array(QuorumListener))


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "2+", nullable="2+", default=None, ignorable=True)
    topics: tuple[DescribeQuorumResponseTopic, ...] = wire(array(DescribeQuorumResponseTopic), default=())
    nodes: tuple[QuorumNode, ...] = wire(array(QuorumNode), "2+", default=(), ignorable=True)
