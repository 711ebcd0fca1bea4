"""Metadata: brokers, topics and partition leaders.

Version 0 asks for all topics with an empty list, later ones with null. Topic ids exist from version 10;
a topic may be asked for by id alone from version 12.
"""

from __future__ import annotations

from uuid import UUID

from mainstem.protocol.encoded_array import EncodedArray
from mainstem.protocol.schema import (
    ZERO_UUID,
    array,
    boolean,
    int16,
    int32,
    message,
    nested,
    string,
    uuid,
    wire,
)

AUTHORIZED_OPERATIONS_UNKNOWN = -(2**31)
"""Means "not asked for" in the authorized-operations fields of several responses."""


@nested
class MetadataRequestTopic:
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    name: str | None = wire(string, nullable="10+")


@message(api_key=3, versions="0-13", flexible="9+", elements_max=250_000)
class MetadataRequest:
    topics: tuple[MetadataRequestTopic, ...] | None = wire(array(MetadataRequestTopic), nullable="1+")
    allow_auto_topic_creation: bool = wire(boolean, "4+", default=True)
    include_cluster_authorized_operations: bool = wire(boolean, "8-10", default=False)
    include_topic_authorized_operations: bool = wire(boolean, "8+", default=False)


@nested
class MetadataResponseBroker:
    node_id: int = wire(int32)
    host: str = wire(string)
    port: int = wire(int32)
    rack: str | None = wire(string, "1+", nullable="1+", default=None, ignorable=True)


@nested
class MetadataResponsePartition:
    error_code: int = wire(int16)
    partition_index: int = wire(int32)
    leader_id: int = wire(int32)
    leader_epoch: int = wire(int32, "7+", default=-1, ignorable=True)
    replica_nodes: tuple[int, ...] = wire(array(int32))
    isr_nodes: tuple[int, ...] = wire(array(int32))
    offline_replicas: tuple[int, ...] = wire(array(int32), "5+", default=(), ignorable=True)


@nested
class MetadataResponseTopic:
    error_code: int = wire(int16)
    name: str | None = wire(string, nullable="12+")
    topic_id: UUID = wire(uuid, "10+", default=ZERO_UUID, ignorable=True)
    is_internal: bool = wire(boolean, "1+", default=False, ignorable=True)
    partitions: tuple[MetadataResponsePartition, ...] | EncodedArray = wire(array(MetadataResponsePartition))
    topic_authorized_operations: int = wire(int32, "8+", default=AUTHORIZED_OPERATIONS_UNKNOWN)


@message(api_key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: int = wire(int32, "3+", default=0, ignorable=True)
    brokers: tuple[MetadataResponseBroker, ...] = wire(array(MetadataResponseBroker))
    cluster_id: str | None = wire(string, "2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = wire(int32, "1+", default=-1, ignorable=True)
    topics: tuple[MetadataResponseTopic, ...] | EncodedArray = wire(array(MetadataResponseTopic))
    cluster_authorized_operations: int = wire(int32, "8-10", default=AUTHORIZED_OPERATIONS_UNKNOWN)
    error_code: int = wire(int16, "13+", default=0, ignorable=True)
