"""AlterReplicaLogDirs: have replicas of partitions lie in another directory of their node (KIP-113)."""

from __future__ import annotations

from mainstem.protocol.schema import array, int16, int32, message, nested, string, wire


@nested
class AlterReplicaLogDirTopic:
    name: str = wire(string)
    partitions: tuple[int, ...] = wire(array(int32))


@nested
class AlterReplicaLogDir:
    path: str = wire(string)
    topics: tuple[AlterReplicaLogDirTopic, ...] = wire(array(AlterReplicaLogDirTopic))


@message(api_key=34, versions="1-2", flexible="2+", elements_max=250_000)
class AlterReplicaLogDirsRequest:
    dirs: tuple[AlterReplicaLogDir, ...] = wire(array(AlterReplicaLogDir))


@nested
class AlterReplicaLogDirPartitionResult:
    partition_index: int = wire(int32)
    error_code: int = wire(int16)


@nested
class AlterReplicaLogDirTopicResult:
    topic_name: str = wire(string)
    partitions: tuple[AlterReplicaLogDirPartitionResult, ...] = wire(array(AlterReplicaLogDirPartitionResult))


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[AlterReplicaLogDirTopicResult, ...] = wire(array(AlterReplicaLogDirTopicResult))
