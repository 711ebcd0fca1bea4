"""More questions of the matrix of access rules: what clients have asked since topics have ids, groups have epochs and
transactions their second version. Each names what rules are about: topics, groups, transactional ids.

As with the others (`acl_questions.py`) asking changes nothing that another question would see. Members that join are of
groups of their own, which prefixes of rules match, and leave with the next question.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from bench.access.question import ABSENT, TOPICS, Question
from mainstem.protocol.messages.client_telemetry import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from mainstem.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from mainstem.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from mainstem.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from mainstem.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.group_membership import FindCoordinatorRequest
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.list_config_resources import ListConfigResourcesRequest
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.messages.producer_transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from mainstem.protocol.messages.share_fetch import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffset,
    AlterShareOffsetsTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)
from mainstem.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from mainstem.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTopicInfo,
    StreamsTopology,
)
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from mainstem.protocol.messages.transaction_administration import (
    DescribeProducersRequest,
    DescribeProducersTopic,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from mainstem.protocol.records import NewRecord, build_batch

UNKNOWN_ID = UUID(int=0xACDC)
"""Of no topic."""
MEMBER = str(UUID(int=0xBEE))
BROKER_LOGGER_CONFIG, METRICS_CONFIG, GROUP_CONFIG = 8, 16, 32
_WAIT_MS = 5_000
_JOINS, _LEAVES = 0, -1


def newer_questions(ids: Mapping[str, UUID]) -> Iterator[Question]:
    """`ids`: of the topics, at the node that is asked."""
    for name, topic_id in {**{name: ids[name] for name in TOPICS[:2]}, "unknown": UNKNOWN_ID}.items():
        yield from _by_id(name, topic_id)
    for group in (TOPICS[0], ABSENT):
        yield from _shared(group, ids)
        yield from _configs_of_group(group)
    yield from _members()
    for name in (TOPICS[0], ABSENT):
        yield from _transactional(name)
    yield from _of_topics()
    yield from _of_cluster(ids)


def _by_id(name: str, topic_id: UUID) -> Iterator[Question]:
    batch = bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=None, value=b"value")]).data)
    yield Question(f"Metadata of id {name}", MetadataRequest(
        topics=(MetadataRequestTopic(topic_id=topic_id, name=None),), allow_auto_topic_creation=False),
        12)  # fmt: skip
    yield Question(f"Produce to id {name}", ProduceRequest(acks=-1, timeout_ms=_WAIT_MS, topic_data=(
        TopicProduceData(name="", topic_id=topic_id, partition_data=(PartitionProduceData(index=0, records=batch),)),)),
        13)  # fmt: skip
    yield Question(f"Fetch of id {name}", FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(
        topic="", topic_id=topic_id, partitions=(
            FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),)),)),
        16)  # fmt: skip
    committed = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    yield Question(f"OffsetCommit of id {name}", OffsetCommitRequest(group_id=TOPICS[0], topics=(
        OffsetCommitRequestTopic(topic_id=topic_id, partitions=(committed,)),)),
        10)  # fmt: skip
    yield Question(f"OffsetFetch of id {name}", OffsetFetchRequest(groups=(OffsetFetchRequestGroup(
        group_id=TOPICS[0], topics=(OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=(0,)),)),)),
        10)  # fmt: skip
    if topic_id == UNKNOWN_ID:
        yield Question("DeleteTopics of id unknown", DeleteTopicsRequest(
            topics=(DeleteTopicState(topic_id=topic_id),), timeout_ms=_WAIT_MS),
            6)  # fmt: skip


def _shared(group: str, ids: Mapping[str, UUID]) -> Iterator[Question]:
    for name in (*TOPICS[:2], ABSENT):
        what = f"{name} of {group}"
        topic_id = ids.get(name, UNKNOWN_ID)
        yield Question(f"ShareAcknowledge {what}", ShareAcknowledgeRequest(
            group_id=group, member_id=MEMBER, share_session_epoch=7, topics=(AcknowledgeTopic(
                topic_id=topic_id, partitions=(
                    AcknowledgePartition(partition_index=0, acknowledgement_batches=()),)),)),
            1)  # fmt: skip
        yield Question(f"ShareFetch {what}", ShareFetchRequest(
            group_id=group, member_id=MEMBER, share_session_epoch=7, max_wait_ms=0, min_bytes=0, max_records=1,
            batch_size=1, topics=(ShareFetchTopic(topic_id=topic_id, partitions=(
                ShareFetchPartition(partition_index=0, acknowledgement_batches=()),)),), forgotten_topics_data=()),
            1)  # fmt: skip
    topics = (*TOPICS[:2], ABSENT)
    yield Question(f"DescribeShareGroupOffsets topics of {group}", DescribeShareGroupOffsetsRequest(groups=(
        DescribeShareOffsetsGroup(group_id=group, topics=tuple(
            DescribeShareOffsetsTopic(topic_name=name, partitions=(0,)) for name in topics)),)),
        1)  # fmt: skip
    yield Question(f"DescribeShareGroupOffsets all of {group}", DescribeShareGroupOffsetsRequest(
        groups=(DescribeShareOffsetsGroup(group_id=group, topics=None),)),
        1)  # fmt: skip
    yield Question(f"AlterShareGroupOffsets topics of {group}", AlterShareGroupOffsetsRequest(
        group_id=group, topics=tuple(AlterShareOffsetsTopic(topic_name=name, partitions=(
            AlterShareOffset(partition_index=0, start_offset=0),)) for name in topics)),
        0)  # fmt: skip
    yield Question(f"DeleteShareGroupOffsets topics of {group}", DeleteShareGroupOffsetsRequest(
        group_id=group, topics=tuple(DeleteShareOffsetsTopic(topic_name=name) for name in topics)),
        0)  # fmt: skip


def _configs_of_group(name: str) -> Iterator[Question]:
    yield from _configs(GROUP_CONFIG, name, "group", "consumer.session.timeout.ms", "50000")


def _configs(kind: int, name: str, of: str, key: str, value: str) -> Iterator[Question]:
    yield Question(f"DescribeConfigs of {of} {name}", DescribeConfigsRequest(resources=(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=(key,)),)),
        4)  # fmt: skip
    yield Question(f"IncrementalAlterConfigs of {of} {name}", IncrementalAlterConfigsRequest(
        validate_only=True, resources=(AlterConfigsResource(resource_type=kind, resource_name=name, configs=(
            AlterableConfig(name=key, config_operation=0, value=value),)),)),
        1)  # fmt: skip


def _members() -> Iterator[Question]:
    """Members that join with topics, and leave."""
    for topic in (*TOPICS[:2], ABSENT):
        joining: dict[str, Any] = {"member_id": MEMBER, "member_epoch": _JOINS}
        leaving: dict[str, Any] = {"member_id": MEMBER, "member_epoch": _LEAVES}
        consumer, shared, streams = (f"{TOPICS[0]}-{kind}" for kind in ("consumer", "share", "streams"))
        yield Question(f"ConsumerGroupHeartbeat joins {topic}", ConsumerGroupHeartbeatRequest(
            group_id=consumer, rebalance_timeout_ms=60_000, topic_partitions=(), subscribed_topic_names=(topic,),
            **joining),
            1)  # fmt: skip
        yield Question(f"ConsumerGroupHeartbeat leaves {topic}", ConsumerGroupHeartbeatRequest(
            group_id=consumer, **leaving),
            1)  # fmt: skip
        yield Question(f"ShareGroupHeartbeat joins {topic}", ShareGroupHeartbeatRequest(
            group_id=shared, subscribed_topic_names=(topic,), **joining),
            1)  # fmt: skip
        yield Question(f"ShareGroupHeartbeat leaves {topic}", ShareGroupHeartbeatRequest(group_id=shared, **leaving), 1)
        yield Question(f"StreamsGroupHeartbeat joins {topic}", StreamsGroupHeartbeatRequest(
            group_id=streams, endpoint_information_epoch=0, rebalance_timeout_ms=60_000, process_id="process",
            topology=_topology(topic), active_tasks=(), standby_tasks=(), warmup_tasks=(), client_tags=(), **joining),
            0)  # fmt: skip
        yield Question(f"StreamsGroupHeartbeat leaves {topic}", StreamsGroupHeartbeatRequest(
            group_id=streams, endpoint_information_epoch=0, **leaving),
            0)  # fmt: skip


def _topology(topic: str) -> StreamsTopology:
    """Reads a topic, and keeps its state in another one, which is there already."""
    kept = StreamsTopicInfo(name=TOPICS[2], partitions=0, replication_factor=0, topic_configs=())
    return StreamsTopology(epoch=1, subtopologies=(StreamsSubtopology(
        subtopology_id="0", source_topics=(topic,), source_topic_regex=(), state_changelog_topics=(kept,),
        repartition_sink_topics=(), repartition_source_topics=(), copartition_groups=()),))  # fmt: skip


def _transactional(name: str) -> Iterator[Question]:
    """About a transactional id of which nobody has made a producer: whoever may ask is told so."""
    topics = (TOPICS[0], ABSENT)
    partitions = tuple(AddPartitionsToTxnTopic(name=topic, partitions=(0,)) for topic in topics)
    yield Question(f"FindCoordinator transaction {name}", FindCoordinatorRequest(key_type=1, coordinator_keys=(name,)),
                   6)  # fmt: skip
    yield Question(f"InitProducerId {name}", InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=1_000_000_000),  # more than a node takes: nothing is made
        5)  # fmt: skip
    yield Question(f"AddPartitionsToTxn {name}", AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name, v3_and_below_producer_id=1, v3_and_below_topics=partitions),
        3)  # fmt: skip
    yield Question(f"AddPartitionsToTxn verifies {name}", AddPartitionsToTxnRequest(transactions=(
        AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=1, producer_epoch=0, verify_only=True, topics=partitions),)),
        5)  # fmt: skip
    for group in (TOPICS[1], ABSENT):
        yield Question(f"AddOffsetsToTxn {name} {group}", AddOffsetsToTxnRequest(
            transactional_id=name, producer_id=1, producer_epoch=0, group_id=group),
            4)  # fmt: skip
    yield Question(f"TxnOffsetCommit {name}", TxnOffsetCommitRequest(
        transactional_id=name, group_id=ABSENT, producer_id=1, producer_epoch=0, generation_id=3, member_id="nobody",
        topics=tuple(TxnOffsetCommitRequestTopic(name=topic, partitions=(TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=1, committed_metadata=""),)) for topic in topics)),
        4)  # fmt: skip
    for version in (3, 5):
        yield Question(f"EndTxn v{version} {name}", EndTxnRequest(
            transactional_id=name, producer_id=1, producer_epoch=0, committed=False),
            version)  # fmt: skip
    yield Question(f"DescribeTransactions {name}", DescribeTransactionsRequest(transactional_ids=(name,)), 0)
    batch = bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=None, value=b"value")]).data)
    yield Question(f"Produce in transaction {name}", ProduceRequest(
        transactional_id=name, acks=-1, timeout_ms=_WAIT_MS, topic_data=(TopicProduceData(
            name=TOPICS[2], partition_data=(PartitionProduceData(index=0, records=batch),)),)),
        11)  # fmt: skip


def _of_topics() -> Iterator[Question]:
    topics = (*TOPICS, ABSENT)
    yield Question("DescribeProducers topics", DescribeProducersRequest(topics=tuple(
        DescribeProducersTopic(name=name, partition_indexes=(0,)) for name in topics)),
        0)  # fmt: skip
    yield Question("DescribeTopicPartitions topics", DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in topics)),
        0)  # fmt: skip
    yield Question("DescribeLogDirs topics", DescribeLogDirsRequest(
        topics=tuple(DescribableLogDirTopic(topic=name, partitions=(0,)) for name in TOPICS)),
        4)  # fmt: skip
    yield Question("CreateTopics with configs", CreateTopicsRequest(timeout_ms=_WAIT_MS, validate_only=True, topics=(
        CreatableTopic(name=ABSENT, num_partitions=1, replication_factor=1, assignments=(),
                       configs=(CreatableTopicConfig(name="retention.ms", value="7200000"),)),)),
        7)  # fmt: skip
    yield Question("WriteTxnMarkers topics", WriteTxnMarkersRequest(markers=(WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=False, coordinator_epoch=0, topics=(
            WritableTxnMarkerTopic(name=ABSENT, partition_indexes=(0,)),)),)),
        1)  # fmt: skip


def _of_cluster(ids: Mapping[str, UUID]) -> Iterator[Question]:
    yield Question("FindCoordinator share", FindCoordinatorRequest(
        key_type=2, coordinator_keys=(f"{ABSENT}:{as_kafka_writes(ids[TOPICS[0]])}:0",)),
        6)  # fmt: skip
    yield from _configs(METRICS_CONFIG, ABSENT, "client metrics", "interval.ms", "60000")
    yield Question("DescribeConfigs of loggers", DescribeConfigsRequest(resources=(
        DescribeConfigsResource(resource_type=BROKER_LOGGER_CONFIG, resource_name="1", configuration_keys=()),)),
        4)  # fmt: skip
    yield Question("ListConfigResources all", ListConfigResourcesRequest(), 1)
    yield Question("ListConfigResources v0", ListConfigResourcesRequest(), 0)
    yield Question("ListTransactions of pattern", ListTransactionsRequest(
        state_filters=(), producer_id_filters=(), transactional_id_pattern="acl.*"),
        2)  # fmt: skip
    yield Question("GetTelemetrySubscriptions", GetTelemetrySubscriptionsRequest(client_instance_id=UUID(int=0)), 0)
    yield Question("PushTelemetry", PushTelemetryRequest(
        client_instance_id=UUID(int=5), subscription_id=7, terminating=False, compression_type=0, metrics=b""),
        0)  # fmt: skip


def as_kafka_writes(topic_id: UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
