"""OffsetForLeaderEpoch: where an epoch ended, by which a client detects truncation."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, int64, message, nested, string, wire


@nested
class OffsetForLeaderPartition:
    partition: int = wire(int32)
    current_leader_epoch: int = wire(int32, "2+", default=-1, ignorable=True)
    leader_epoch: int = wire(int32)


@nested
class OffsetForLeaderTopic:
    topic: str = wire(string)
    partitions: tuple[OffsetForLeaderPartition, ...] = wire(array(OffsetForLeaderPartition))


@message(api_key=23, versions="2-4", flexible="4+", elements_max=250_000)
class OffsetForLeaderEpochRequest:
    replica_id: int = wire(int32, "3+", default=-2, ignorable=True)
    topics: tuple[OffsetForLeaderTopic, ...] = wire(array(OffsetForLeaderTopic))


@nested
class EpochEndOffset:
    error_code: int = wire(int16)
    partition: int = wire(int32)
    leader_epoch: int = wire(int32, "1+", default=-1, ignorable=True)
    end_offset: int = wire(int64, default=-1)


@nested
class OffsetForLeaderTopicResult:
    topic: str = wire(string)
    partitions: tuple[EpochEndOffset, ...] = wire(array(EpochEndOffset))


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = wire(int32, "2+", default=0, ignorable=True)
    topics: tuple[OffsetForLeaderTopicResult, ...] = wire(array(OffsetForLeaderTopicResult))
