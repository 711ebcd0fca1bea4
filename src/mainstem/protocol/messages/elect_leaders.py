"""ElectLeaders: have partitions be led by the replicas that are preferred (KIP-183, KIP-460)."""

from __future__ import annotations

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import array, int8, int16, int32, message, nested, string, wire

PREFERRED, UNCLEAN = 0, 1
"""Types of elections."""


@nested
class ElectLeadersTopicPartitions:
    topic: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@message(api_key=43, versions="0-2", flexible="2+", elements_max=250_000)
class ElectLeadersRequest:
    election_type: int = wire(int8, "1+", default=PREFERRED)
    topic_partitions: tuple[ElectLeadersTopicPartitions, ...] | None = wire(
        array(ElectLeadersTopicPartitions), nullable="0+"
    )
    timeout_ms: int = wire(int32, default=60_000)


@nested
class ElectedPartitionResult:
    partition_id: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@nested
class ReplicaElectionResult:
    topic: str = wire(string)
    partition_result: tuple[ElectedPartitionResult, ...] | EncodedArray = wire(array(ElectedPartitionResult))


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: int = wire(int32, default=0)
    error_code: int = wire(int16, "1+", default=0)
    replica_election_results: tuple[ReplicaElectionResult, ...] | EncodedArray = wire(
        array(ReplicaElectionResult), default=()
    )
