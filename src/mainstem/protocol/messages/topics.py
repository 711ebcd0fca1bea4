"""Topics come, grow and go.

CreateTopics: new topics with partitions, replicas and configs; -1 means the cluster's default.
CreatePartitions: raise the number of partitions of topics to `count`.
DeleteTopics: by name up to version 5, by name or id from 6.
"""

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


@nested
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...] = wire(array(int32))


@nested
class CreatePartitionsTopic:
    name: str = wire(string)
    count: int = wire(int32)
    assignments: tuple[CreatePartitionsAssignment, ...] | None = wire(array(CreatePartitionsAssignment), nullable="0+")


@message(api_key=37, versions="0-3", flexible="2+", elements_max=250_000)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...] = wire(array(CreatePartitionsTopic))
    timeout_ms: int = wire(int32)
    validate_only: bool = wire(boolean)


@nested
class CreatePartitionsTopicResult:
    name: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable="0+", default=None)


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: int = wire(int32, default=0)
    results: tuple[CreatePartitionsTopicResult, ...] = wire(array(CreatePartitionsTopicResult))


@nested
class DeleteTopicState:
    name: str | None = wire(string, "6+", nullable="6+", default=None)
    topic_id: UUID = wire(uuid, "6+", default=ZERO_UUID)


@message(api_key=20, versions="1-6", flexible="4+", elements_max=250_000)
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicState, ...] = wire(array(DeleteTopicState), "6+", default=())
    topic_names: tuple[str, ...] = wire(array(string), "0-5", default=(), ignorable=True)
    timeout_ms: int = wire(int32)


@nested
class DeletableTopicResult:
    name: str | None = wire(string, nullable="6+")
    topic_id: UUID = wire(uuid, "6+", default=ZERO_UUID, ignorable=True)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, "5+", nullable="5+", default=None, ignorable=True)


@message(api_key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: int = wire(int32, "1+", default=0, ignorable=True)
    responses: tuple[DeletableTopicResult, ...] = wire(array(DeletableTopicResult))
