"""CreateTopics: new topics with partitions, replicas and configs; -1 means the cluster's default."""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    int8,
    int16,
    int32,
    message,
    nested,
    string,
    uuid,
    wire,
)


@nested
class CreatableReplicaAssignment:
    partition_index: int = wire(int32)
    broker_ids: tuple[int, ...] = wire(array(int32))


@nested
class CreatableTopicConfig:
    name: str = wire(string)
    value: str | None = wire(string, nullable="0+")


@nested
class CreatableTopic:
    name: str = wire(string)
    num_partitions: int = wire(int32)
    replication_factor: int = wire(int16)
    assignments: tuple[CreatableReplicaAssignment, ...] = wire(array(CreatableReplicaAssignment))
    configs: tuple[CreatableTopicConfig, ...] = wire(array(CreatableTopicConfig))


@message(api_key=19, versions="2-7", flexible="5+", elements_max=500_000)
class CreateTopicsRequest:
    topics: tuple[CreatableTopic, ...] = wire(array(CreatableTopic))
    timeout_ms: int = wire(int32, default=60_000)
    validate_only: bool = wire(boolean, "1+", default=False)


@nested
class CreatableTopicConfigs:
    name: str = wire(string, "5+")
    value: str | None = wire(string, "5+", nullable="5+")
    read_only: bool = wire(boolean, "5+")
    config_source: int = wire(int8, "5+", default=-1, ignorable=True)
    is_sensitive: bool = wire(boolean, "5+")


@nested
class CreatableTopicResult:
    name: str = wire(string)
    topic_id: UUID = wire(uuid, "7+", default=ZERO_UUID, ignorable=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "1+", nullable="0+", default=None, ignorable=True)
    topic_config_error_code: int = wire(int16, "5+", tag=0, default=0, ignorable=True)
    num_partitions: int = wire(int32, "5+", default=-1, ignorable=True)
    replication_factor: int = wire(int16, "5+", default=-1, ignorable=True)
    configs: tuple[CreatableTopicConfigs, ...] | EncodedArray | None = wire(
        array(CreatableTopicConfigs), "5+", nullable="5+", default=(), ignorable=True
    )


@message(api_key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: int = wire(int32, "2+", default=0, ignorable=True)
    topics: tuple[CreatableTopicResult, ...] | EncodedArray = wire(array(CreatableTopicResult))
