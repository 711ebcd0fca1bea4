"""The questions of the matrix of access rules to a node: every API that a node authorizes, of topics and groups that
are there and that are not.

Asking changes nothing that another question would see: what would be made or deleted is not there, or is only
validated. An answer is told by its error codes, the names it lists and the operations it says are allowed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from bench.access.newer_questions import newer_questions
from bench.access.question import ABSENT, TOPICS, Question
from bench.access.token_questions import Token, token_questions
from mainstem.protocol.messages.acls import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from mainstem.protocol.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from mainstem.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    ReplacedConfig,
    ReplacedConfigsResource,
)
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
)
from mainstem.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest
from mainstem.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from mainstem.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
)
from mainstem.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from mainstem.protocol.messages.elect_leaders import ElectLeadersRequest
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.group_administration import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from mainstem.protocol.messages.group_membership import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.list_config_resources import CLIENT_METRICS, ListConfigResourcesRequest
from mainstem.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from mainstem.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.messages.producer_transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    DescribeClientQuotasRequest,
    QuotaEntityPart,
    QuotaOperation,
)
from mainstem.protocol.messages.raft_voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from mainstem.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramDeletion,
    ScramUserName,
)
from mainstem.protocol.messages.share_fetch import ShareAcknowledgeRequest, ShareFetchRequest
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from mainstem.protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    WriteShareGroupStateRequest,
)
from mainstem.protocol.messages.share_groups import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest
from mainstem.protocol.messages.streams_groups import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from mainstem.protocol.messages.transaction_administration import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    WriteTxnMarkersRequest,
)
from mainstem.protocol.messages.unregister_broker import UnregisterBrokerRequest
from mainstem.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from mainstem.protocol.records import NewRecord, build_batch

TOPIC_CONFIG, BROKER_CONFIG = 2, 4
_WAIT_MS = 5_000


def questions(ids: Mapping[str, UUID], tokens: Mapping[str, Token]) -> Iterator[Question]:
    """`ids`: of the topics, at the node that is asked; `tokens`: by owner, there as well."""
    for name in (*TOPICS, ABSENT):
        yield from _of_topic(name)
        yield from _of_group(name)
    for name in TOPICS[:2]:
        for group in (*TOPICS[:2], ABSENT):
            yield from _of_both(group, name)
    yield from _of_cluster()
    yield from newer_questions(ids)
    yield from token_questions(tokens)


def _of_topic(name: str) -> Iterator[Question]:
    batch = bytes(build_batch([NewRecord(timestamp=time.time_ns() // 1_000_000, key=None, value=b"value")]).data)
    named = (MetadataRequestTopic(name=name),)
    yield Question(f"Metadata {name}", MetadataRequest(
        topics=named, allow_auto_topic_creation=False, include_topic_authorized_operations=True),
        9)  # fmt: skip
    yield Question(f"DescribeTopicPartitions {name}", DescribeTopicPartitionsRequest(
        topics=(TopicRequest(name=name),)),
        0)  # fmt: skip
    yield Question(f"Produce {name}", ProduceRequest(acks=-1, timeout_ms=_WAIT_MS, topic_data=(
        TopicProduceData(name=name, partition_data=(PartitionProduceData(index=0, records=batch),)),)),
        9)  # fmt: skip
    yield Question(f"Fetch {name}", FetchRequest(max_wait_ms=0, min_bytes=0, topics=(
        FetchTopic(topic=name, partitions=(FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1),)),),
        ),
        11)  # fmt: skip
    yield Question(f"ListOffsets {name}", ListOffsetsRequest(replica_id=-1, topics=(
        ListOffsetsTopic(name=name, partitions=(ListOffsetsPartition(partition_index=0, timestamp=-2),)),)),
        6)  # fmt: skip
    yield Question(f"OffsetForLeaderEpoch {name}", OffsetForLeaderEpochRequest(replica_id=-1, topics=(
        OffsetForLeaderTopic(topic=name, partitions=(OffsetForLeaderPartition(partition=0, leader_epoch=0),)),)),
        4)  # fmt: skip
    yield Question(f"DeleteRecords {name}", DeleteRecordsRequest(timeout_ms=_WAIT_MS, topics=(
        DeleteRecordsTopic(name=name, partitions=(DeleteRecordsPartition(partition_index=0, offset=0),)),)),
        2)  # fmt: skip
    yield Question(f"CreatePartitions {name}", CreatePartitionsRequest(timeout_ms=_WAIT_MS, validate_only=True, topics=(
        CreatePartitionsTopic(name=name, count=3, assignments=None),)),
        3)  # fmt: skip
    yield Question(f"CreateTopics {name}", CreateTopicsRequest(timeout_ms=_WAIT_MS, validate_only=True, topics=(
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()),)),
        7)  # fmt: skip
    yield from _of_configs(TOPIC_CONFIG, name, "retention.ms")
    if name == ABSENT:
        yield Question(f"DeleteTopics {name}", DeleteTopicsRequest(
            topics=(DeleteTopicState(name=name),), timeout_ms=_WAIT_MS),
        6)  # fmt: skip


def _of_configs(kind: int, name: str, key: str) -> Iterator[Question]:
    yield Question(f"DescribeConfigs {name}", DescribeConfigsRequest(resources=(
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=(key,)),)),
        4)  # fmt: skip
    if kind == TOPIC_CONFIG:
        yield Question(f"AlterConfigs {name}", AlterConfigsRequest(validate_only=True, resources=(
            ReplacedConfigsResource(resource_type=kind, resource_name=name,
                                    configs=(ReplacedConfig(name=key, value="7200000"),)),)),
        2)  # fmt: skip
        yield Question(f"IncrementalAlterConfigs {name}", IncrementalAlterConfigsRequest(validate_only=True, resources=(
            AlterConfigsResource(resource_type=kind, resource_name=name, configs=(
                AlterableConfig(name=key, config_operation=0, value="7200000"),)),)),
        1)  # fmt: skip


def _of_group(name: str) -> Iterator[Question]:
    yield Question(f"FindCoordinator {name}", FindCoordinatorRequest(key_type=0, coordinator_keys=(name,)), 4)
    yield Question(f"DescribeGroups {name}", DescribeGroupsRequest(
        groups=(name,), include_authorized_operations=True),
        5)  # fmt: skip
    yield Question(f"ConsumerGroupDescribe {name}", ConsumerGroupDescribeRequest(
        group_ids=(name,), include_authorized_operations=True),
        1)  # fmt: skip
    yield Question(f"ConsumerGroupHeartbeat {name}", ConsumerGroupHeartbeatRequest(
        group_id=name, member_id="nobody", member_epoch=7),
        1)  # fmt: skip
    yield Question(f"ShareGroupDescribe {name}", ShareGroupDescribeRequest(
        group_ids=(name,), include_authorized_operations=True),
        1)  # fmt: skip
    yield Question(f"ShareGroupHeartbeat {name}", ShareGroupHeartbeatRequest(
        group_id=name, member_id="nobody", member_epoch=7),
        1)  # fmt: skip
    yield Question(f"StreamsGroupDescribe {name}", StreamsGroupDescribeRequest(
        group_ids=(name,), include_authorized_operations=True),
        0)  # fmt: skip
    yield Question(f"StreamsGroupHeartbeat {name}", StreamsGroupHeartbeatRequest(
        group_id=name, member_id="nobody", member_epoch=7, endpoint_information_epoch=0),
        0)  # fmt: skip
    yield Question(f"ShareFetch {name}", ShareFetchRequest(
        group_id=name, member_id="nobody", share_session_epoch=7, max_wait_ms=0, min_bytes=0, max_records=1,
        batch_size=1, topics=(), forgotten_topics_data=()),
        1)  # fmt: skip
    yield Question(f"ShareAcknowledge {name}", ShareAcknowledgeRequest(
        group_id=name, member_id="nobody", share_session_epoch=7, topics=()),
        1)  # fmt: skip
    yield Question(f"DescribeShareGroupOffsets {name}", DescribeShareGroupOffsetsRequest(
        groups=(DescribeShareOffsetsGroup(group_id=name, topics=()),)),
        1)  # fmt: skip
    yield Question(f"AlterShareGroupOffsets {name}", AlterShareGroupOffsetsRequest(group_id=name, topics=()), 0)
    yield Question(f"DeleteShareGroupOffsets {name}", DeleteShareGroupOffsetsRequest(group_id=name, topics=()), 0)
    yield Question(f"JoinGroup {name}", JoinGroupRequest(
        group_id=name, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="nobody",
        protocol_type="consumer", protocols=(JoinGroupRequestProtocol(name="range", metadata=b""),)),
        6)  # fmt: skip
    yield Question(f"SyncGroup {name}", SyncGroupRequest(
        group_id=name, generation_id=1, member_id="nobody", assignments=()),
        4)  # fmt: skip
    yield Question(f"Heartbeat {name}", HeartbeatRequest(group_id=name, generation_id=1, member_id="nobody"), 4)
    yield Question(f"LeaveGroup {name}", LeaveGroupRequest(
        group_id=name, members=(MemberIdentity(member_id="nobody"),)),
        4)  # fmt: skip
    yield Question(f"OffsetFetch all of {name}", OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=name, topics=None),)),
        8)  # fmt: skip
    if name == ABSENT:
        yield Question(f"DeleteGroups {name}", DeleteGroupsRequest(groups_names=(name,)), 2)


def _of_both(group: str, topic: str) -> Iterator[Question]:
    what = f"{topic} of {group}"
    if group != ABSENT:
        yield Question(f"OffsetCommit {what}", commit(group, topic), 8)
    yield Question(f"OffsetFetch {what}", OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=(
        OffsetFetchRequestTopics(name=topic, partition_indexes=(0,)),)),)),
        8)  # fmt: skip
    yield Question(f"OffsetDelete {what}", OffsetDeleteRequest(group_id=group, topics=(
        OffsetDeleteRequestTopic(name=topic, partitions=(OffsetDeleteRequestPartition(partition_index=9),)),)),
        0)  # fmt: skip


def commit(group: str, topic: str) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    return OffsetCommitRequest(group_id=group, topics=(OffsetCommitRequestTopic(name=topic, partitions=(partition,)),))


def _of_transactions() -> Iterator[Question]:
    """About an id that nobody has: whoever may ask is told so."""
    name = "nobody"
    yield Question("FindCoordinator transaction", FindCoordinatorRequest(key_type=1, coordinator_keys=(name,)), 4)
    yield Question("AddOffsetsToTxn", AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=1, producer_epoch=0, group_id="nobody"),
        3)  # fmt: skip
    yield Question("AddPartitionsToTxn", AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name, v3_and_below_producer_id=1, v3_and_below_topics=(
            AddPartitionsToTxnTopic(name=ABSENT, partitions=(0,)),)),
        3)  # fmt: skip
    yield Question("TxnOffsetCommit", TxnOffsetCommitRequest(
        transactional_id=name, group_id="nobody", producer_id=1, producer_epoch=0, topics=(
            TxnOffsetCommitRequestTopic(name=ABSENT, partitions=(
                TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=""),)),)),
        3)  # fmt: skip
    yield Question("EndTxn", EndTxnRequest(
        transactional_id=name, producer_id=1, producer_epoch=0, committed=False),
        3)  # fmt: skip
    yield Question("WriteTxnMarkers", WriteTxnMarkersRequest(markers=()), 1)
    yield Question("DescribeProducers", DescribeProducersRequest(topics=()), 0)
    yield Question("DescribeTransactions", DescribeTransactionsRequest(transactional_ids=(name,)), 0)
    yield Question("ListTransactions", ListTransactionsRequest(state_filters=(), producer_id_filters=()), 1)


def _of_cluster() -> Iterator[Question]:
    for kind in (
        InitializeShareGroupStateRequest,
        ReadShareGroupStateRequest,
        WriteShareGroupStateRequest,
        DeleteShareGroupStateRequest,
        ReadShareGroupStateSummaryRequest,
    ):
        yield Question(kind.__name__.removesuffix("Request"), kind(group_id="nobody", topics=()), 0)
    yield Question("Metadata all", MetadataRequest(topics=None, include_topic_authorized_operations=True), 9)
    yield Question("Metadata cluster", MetadataRequest(topics=(), include_cluster_authorized_operations=True), 9)
    yield Question("DescribeCluster", DescribeClusterRequest(include_cluster_authorized_operations=True), 1)
    yield Question("DescribeTopicPartitions all", DescribeTopicPartitionsRequest(topics=()), 0)
    yield Question("DescribeQuorum", DescribeQuorumRequest(topics=(DescribeQuorumRequestTopic(
        topic_name="__cluster_metadata", partitions=(DescribeQuorumRequestPartition(partition_index=0),)),)),
        1)  # fmt: skip
    yield Question("UpdateFeatures", UpdateFeaturesRequest(validate_only=True, feature_updates=(
        FeatureUpdateKey(feature="group.version", max_version_level=1),)), 2)  # fmt: skip
    yield Question("UnregisterBroker", UnregisterBrokerRequest(broker_id=99), 0)
    yield Question("AddRaftVoter", AddRaftVoterRequest(
        cluster_id=None, timeout_ms=_WAIT_MS, voter_id=99, voter_directory_id=UUID(int=1), listeners=()),
        0)  # fmt: skip
    yield Question("RemoveRaftVoter", RemoveRaftVoterRequest(
        cluster_id=None, voter_id=99, voter_directory_id=UUID(int=1)), 0)  # fmt: skip
    yield Question("AlterReplicaLogDirs", AlterReplicaLogDirsRequest(dirs=()), 2)
    yield Question("ListConfigResources", ListConfigResourcesRequest(resource_types=(CLIENT_METRICS,)), 1)
    yield Question("AlterPartitionReassignments", AlterPartitionReassignmentsRequest(topics=()), 0)
    yield Question("ListPartitionReassignments", ListPartitionReassignmentsRequest(), 0)
    yield Question("ElectLeaders", ElectLeadersRequest(topic_partitions=()), 2)
    yield Question("ListGroups", ListGroupsRequest(), 4)
    yield Question("InitProducerId", InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000), 4)
    yield Question("DescribeLogDirs", DescribeLogDirsRequest(topics=()), 4)
    yield from _of_transactions()
    yield from _of_configs(BROKER_CONFIG, "1", "log.retention.ms")
    yield Question("DescribeClientQuotas", DescribeClientQuotasRequest(components=(), strict=False), 1)
    entity = (QuotaEntityPart(entity_type="user", entity_name="nobody"),)
    ops = (QuotaOperation(key="producer_byte_rate", value=1e6, remove=False),)
    yield Question("AlterClientQuotas", AlterClientQuotasRequest(
        entries=(AlteredQuotas(entity=entity, ops=ops),), validate_only=True),
        1)  # fmt: skip
    yield Question("DescribeUserScramCredentials", DescribeUserScramCredentialsRequest(
        users=(ScramUserName(name="nobody"),)),
        0)  # fmt: skip
    yield Question("AlterUserScramCredentials", AlterUserScramCredentialsRequest(
        deletions=(ScramDeletion(name="nobody", mechanism=2),), upsertions=()),
        0)  # fmt: skip
    yield Question("DescribeAcls", DescribeAclsRequest(
        resource_type_filter=5, resource_name_filter="nothing", pattern_type_filter=3, principal_filter=None,
        host_filter=None, operation=1, permission_type=1),
        3)  # fmt: skip
    yield Question("CreateAcls", CreateAclsRequest(creations=(AclCreation(
        resource_type=5, resource_name="nothing", resource_pattern_type=3, principal="User:nobody", host="*",
        operation=8, permission_type=3),)),
        3)  # fmt: skip
    yield Question("DeleteAcls", DeleteAclsRequest(filters=(DeleteAclsFilter(
        resource_type_filter=5, resource_name_filter="nothing", pattern_type_filter=3, principal_filter="User:nobody",
        host_filter="*", operation=8, permission_type=3),)),
        3)  # fmt: skip


_TOLD = ("error_code", "partition_error_code", "acknowledge_error_code", "topic_config_error_code", "status_code",
         "topic_name", "transactional_id", "name", "topic", "group_id", "key", "topic_authorized_operations",
         "cluster_authorized_operations", "authorized_operations", "group_state", "principal_name")  # fmt: skip
"""Fields of responses that authorization decides about. So is `user`, where it is described: Kafka does not name a user
in a refusal."""


OF_REFUSALS = {"AddRaftVoter", "GetTelemetrySubscriptions", "PushTelemetry"}
"""Questions to which a node that lets them pass answers something that has nothing to do with access: Mainstem does not
serve the first (docs/api.md), and how soon a client may push again is a matter of time. Only refusals are compared."""

_REFUSED = {"29", "30", "31", "53", "65"}
"""Kafka's codes for those who may not."""

_NAMES = ("name", "topic", "topic_name", "group_id", "transactional_id", "key")
"""Fields by which the parts of an answer are told apart."""


def compared(name: str, answer: list[str]) -> list[str]:
    """The part of an answer that has to be the same."""
    if name not in OF_REFUSALS:
        return answer
    return [line for line in answer if line.rpartition("=")[2] in _REFUSED]


def told(answer: Any) -> list[str]:
    """The content of an answer, in an order that does not depend on the node. Left out are internal topics, which each
    system has its own of, and how often the same is said: a node has as many log directories as it likes."""
    return sorted(set(_told(answer, "")))


def _told(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, tuple | list):
        for item in value:
            name = next((getattr(item, field) for field in _NAMES
                         if isinstance(getattr(item, field, None), str)), "")  # fmt: skip
            if not name.startswith("__"):
                yield from _told(item, f"{path}[{name}]")
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            if field.name in _TOLD or (field.name == "user" and not getattr(value, "error_code", 0)):
                yield f"{path}.{field.name}={part}"
            elif field.name not in ("brokers", "configs"):
                yield from _told(part, f"{path}.{field.name}")
