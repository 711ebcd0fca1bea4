"""Operations that clients may not do are refused, API by API: behind a real server, in every version, with Kafka's
error codes.

Clients here are User:ANONYMOUS. Each case says what a request takes; without any of it the client learns nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from tests.broker.harness import Serving, batch, serving
from tests.fakes.access.acls import MemoryAcls
from tests.harness.patience import PATIENCE_SECONDS
from tests.server.raw_client import RawClient

from mainstem.broker.config import BrokerConfig
from mainstem.broker.dispatch.access_table import ACCESS, Inside, Open
from mainstem.broker.dispatch.guard import guarded
from mainstem.broker.dispatch.read_only_routes import READ_ONLY_ROUTES
from mainstem.broker.dispatch.routes import ROUTES
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages import (
    API_MESSAGES,
    configs,
    delete_records,
    fetch,
    group_administration,
    group_membership,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    quotas,
    sasl,
    share_fetch,
    share_group_offsets,
    share_group_state,
    share_groups,
    streams_groups,
    topics,
)
from mainstem.protocol.messages import acls as acl_messages
from mainstem.protocol.messages import consumer_group_heartbeat as consumer_groups
from mainstem.protocol.messages import describe_log_dirs as log_dirs
from mainstem.protocol.messages import describe_quorum as quorum
from mainstem.protocol.messages import describe_topic_partitions as topic_partitions
from mainstem.protocol.messages import list_config_resources as config_resources
from mainstem.protocol.messages import offset_for_leader_epoch as epochs
from mainstem.protocol.messages import producer_transactions as txns
from mainstem.protocol.messages import transaction_administration as txn_tools
from mainstem.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest
from mainstem.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersTopicPartitions
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from mainstem.protocol.messages.raft_voters import AddRaftVoterRequest, RemoveRaftVoterRequest
from mainstem.protocol.messages.unregister_broker import UnregisterBrokerRequest
from mainstem.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from mainstem.security.acls.acl import (
    ANY_PRINCIPAL,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceKind,
)

TOPIC, GROUP, CLUSTER = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
TRANSACTIONAL_ID = ResourceKind.TRANSACTIONAL_ID
WAIT_MS = int(PATIENCE_SECONDS * 1000)
ME = "User:ANONYMOUS"
ALWAYS_BY_ID = frozenset({78})
"""APIs that name topics by id in all versions: an id is no name that somebody guesses."""
REFUSALS = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def rule(
    operation: Operation, kind: ResourceKind = TOPIC, name: str = "t", permission: Permission = Permission.ALLOW
) -> Acl:
    name = CLUSTER_NAME if kind is CLUSTER else name
    return Acl(kind, name, PatternType.LITERAL, ME, "*", operation, permission)


ALTER = rule(Operation.ALTER)
READ = rule(Operation.READ)
WRITE = rule(Operation.WRITE)
DESCRIBE = rule(Operation.DESCRIBE)
READ_GROUP = rule(Operation.READ, GROUP, "g")
READ_NEW_GROUP = rule(Operation.READ, GROUP, "new")
DESCRIBE_GROUP = rule(Operation.DESCRIBE, GROUP, "g")
DESCRIBE_CLUSTER = rule(Operation.DESCRIBE, CLUSTER)
WRITE_TRANSACTIONS = rule(Operation.WRITE, TRANSACTIONAL_ID, "x")
DESCRIBE_TRANSACTIONS = rule(Operation.DESCRIBE, TRANSACTIONAL_ID, "x")
CLUSTER_ACTION = rule(Operation.CLUSTER_ACTION, CLUSTER)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))


# requests, by (version, id of topic t)


def producing(version: int, topic_id: UUID, acks: int = -1, name: str = "t") -> produce.ProduceRequest:
    partition = produce.PartitionProduceData(index=0, records=batch(b"v"))
    topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=(partition,))
    return produce.ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(topic,))


def fetching(version: int, topic_id: UUID, wait_ms: int = 0, offset: int = 0, **fields: Any) -> fetch.FetchRequest:
    partition = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
    topic = fetch.FetchTopic(topic="t", topic_id=topic_id, partitions=(partition,))
    return fetch.FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=(topic,), **fields)


def listing(version: int, topic_id: UUID) -> list_offsets.ListOffsetsRequest:
    partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = list_offsets.ListOffsetsTopic(name="t", partitions=(partition,))
    return list_offsets.ListOffsetsRequest(replica_id=-1, topics=(topic,))


def describing(version: int, topic_id: UUID, *names: str, **fields: Any) -> metadata.MetadataRequest:
    asked = tuple(metadata.MetadataRequestTopic(name=name) for name in names or ("t",))
    return metadata.MetadataRequest(topics=asked, **fields)


def committing(version: int, topic_id: UUID) -> offset_commit.OffsetCommitRequest:
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=None
    )
    topic = offset_commit.OffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=(partition,))
    return offset_commit.OffsetCommitRequest(group_id="g", topics=(topic,))


def fetching_offsets(version: int, topic_id: UUID, *, everything: bool = False) -> offset_fetch.OffsetFetchRequest:
    if version < 8:
        one = offset_fetch.OffsetFetchRequestTopic(name="t", partition_indexes=(0,))
        return offset_fetch.OffsetFetchRequest(group_id="g", topics=None if everything else (one,))
    many = offset_fetch.OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=(0,))
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None if everything else (many,))
    return offset_fetch.OffsetFetchRequest(groups=(group,))


def finding(version: int, topic_id: UUID) -> group_membership.FindCoordinatorRequest:
    if version < 4:
        return group_membership.FindCoordinatorRequest(key="g")
    return group_membership.FindCoordinatorRequest(coordinator_keys=("g",))


def finding_transactions(version: int, topic_id: UUID) -> group_membership.FindCoordinatorRequest:
    if version < 4:
        return group_membership.FindCoordinatorRequest(key="x", key_type=1)
    return group_membership.FindCoordinatorRequest(key_type=1, coordinator_keys=("x",))


def adding(version: int, topic_id: UUID) -> txns.AddPartitionsToTxnRequest:
    topics = (txns.AddPartitionsToTxnTopic(name="t", partitions=(0,)),)
    if version < 4:
        return txns.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_topics=topics
        )
    transaction = txns.AddPartitionsToTxnTransaction(
        transactional_id="x", producer_id=1, producer_epoch=0, topics=topics
    )
    return txns.AddPartitionsToTxnRequest(transactions=(transaction,))


def marking(version: int, topic_id: UUID) -> txn_tools.WriteTxnMarkersRequest:
    marker = txn_tools.WritableTxnMarker(
        producer_id=1,
        producer_epoch=0,
        transaction_result=False,
        topics=(txn_tools.WritableTxnMarkerTopic(name="t", partition_indexes=(0,)),),
        coordinator_epoch=0,
    )
    return txn_tools.WriteTxnMarkersRequest(markers=(marker,))


def committing_in_transaction(version: int, topic_id: UUID) -> txns.TxnOffsetCommitRequest:
    partition = txns.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
    return txns.TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        topics=(txns.TxnOffsetCommitRequestTopic(name="t", partitions=(partition,)),),
    )


def joining(version: int, topic_id: UUID) -> group_membership.JoinGroupRequest:
    return group_membership.JoinGroupRequest(
        group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer", protocols=()
    )


def beating(version: int, topic_id: UUID) -> consumer_groups.ConsumerGroupHeartbeatRequest:
    return consumer_groups.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )


def sharing(version: int, topic_id: UUID) -> share_groups.ShareGroupHeartbeatRequest:
    return share_groups.ShareGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=("t",)
    )


def streaming(version: int, topic_id: UUID) -> streams_groups.StreamsGroupHeartbeatRequest:
    part = streams_groups.StreamsSubtopology(
        subtopology_id="0", source_topics=("t",), source_topic_regex=(), state_changelog_topics=(),
        repartition_sink_topics=(), repartition_source_topics=(), copartition_groups=(),
    )  # fmt: skip
    return streams_groups.StreamsGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, endpoint_information_epoch=0, rebalance_timeout_ms=1000,
        topology=streams_groups.StreamsTopology(epoch=0, subtopologies=(part,)), active_tasks=(), standby_tasks=(),
        warmup_tasks=(), process_id="p",
    )  # fmt: skip


def state_read(topic_id: UUID) -> tuple[share_group_state.StateReadTopic, ...]:
    partition = share_group_state.StateReadPartition(partition=9, leader_epoch=0)
    return (share_group_state.StateReadTopic(topic_id=topic_id, partitions=(partition,)),)


def share_fetching(version: int, topic_id: UUID) -> share_fetch.ShareFetchRequest:
    partition = share_fetch.ShareFetchPartition(partition_index=0, acknowledgement_batches=())
    topic = share_fetch.ShareFetchTopic(topic_id=topic_id, partitions=(partition,))
    return share_fetch.ShareFetchRequest(
        group_id="g", member_id="m", share_session_epoch=0, max_wait_ms=0, min_bytes=1, max_records=1, batch_size=1,
        topics=(topic,), forgotten_topics_data=(),
    )  # fmt: skip


def leaving(version: int, topic_id: UUID) -> group_membership.LeaveGroupRequest:
    if version < 3:
        return group_membership.LeaveGroupRequest(group_id="g", member_id="m")
    members = (group_membership.MemberIdentity(member_id="m"),)
    return group_membership.LeaveGroupRequest(group_id="g", members=members)


def deleting_records(version: int, topic_id: UUID) -> delete_records.DeleteRecordsRequest:
    partition = delete_records.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = delete_records.DeleteRecordsTopic(name="t", partitions=(partition,))
    return delete_records.DeleteRecordsRequest(topics=(topic,), timeout_ms=1000)


def ending_epochs(version: int, topic_id: UUID) -> epochs.OffsetForLeaderEpochRequest:
    partition = epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    return epochs.OffsetForLeaderEpochRequest(topics=(epochs.OffsetForLeaderTopic(topic="t", partitions=(partition,)),))


def creating(version: int, topic_id: UUID, *names: str) -> topics.CreateTopicsRequest:
    new = tuple(
        topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in names or ("t",)
    )
    return topics.CreateTopicsRequest(topics=new)


def deleting(version: int, topic_id: UUID) -> topics.DeleteTopicsRequest:
    if version < 6:
        return topics.DeleteTopicsRequest(topic_names=("t",), timeout_ms=1000)
    return topics.DeleteTopicsRequest(topics=(topics.DeleteTopicState(name="t"),), timeout_ms=1000)


def growing(version: int, topic_id: UUID) -> topics.CreatePartitionsRequest:
    topic = topics.CreatePartitionsTopic(name="t", count=2, assignments=None)
    return topics.CreatePartitionsRequest(topics=(topic,), timeout_ms=1000, validate_only=True)


def describing_configs(kind: int, name: str) -> Callable[[int, UUID], configs.DescribeConfigsRequest]:
    resource = configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    return lambda version, topic_id: configs.DescribeConfigsRequest(resources=(resource,))


def altering(kind: int, name: str) -> Callable[[int, UUID], configs.AlterConfigsRequest]:
    resource = configs.ReplacedConfigsResource(resource_type=kind, resource_name=name, configs=())
    return lambda version, topic_id: configs.AlterConfigsRequest(resources=(resource,), validate_only=True)


def altering_some(kind: int, name: str) -> Callable[[int, UUID], configs.IncrementalAlterConfigsRequest]:
    resource = configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=())
    return lambda version, topic_id: configs.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=True)


def deleting_offsets(version: int, topic_id: UUID) -> offset_delete.OffsetDeleteRequest:
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    topic = offset_delete.OffsetDeleteRequestTopic(name="t", partitions=(partition,))
    return offset_delete.OffsetDeleteRequest(group_id="g", topics=(topic,))


def altering_users(version: int, topic_id: UUID) -> sasl.AlterUserScramCredentialsRequest:
    more = sasl.ScramUpsertion(name="u", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
    return sasl.AlterUserScramCredentialsRequest(deletions=(), upsertions=(more,))


def electing(version: int, topic_id: UUID) -> ElectLeadersRequest:
    return ElectLeadersRequest(topic_partitions=(ElectLeadersTopicPartitions(topic="t", partitions=(0,)),))


NO_FILTER: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "principal_filter": None, "host_filter": None,
    "operation": 1, "permission_type": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    api_key: int
    request: Callable[[int, UUID], Any]
    needs: tuple[Acl, ...]
    """All that the request takes, the check that comes first in front."""
    versions: range | None = None

    def in_versions(self) -> range:
        api = API_MESSAGES[self.api_key]
        return self.versions or range(api.version_min, api.version_max + 1)


CASES = [
    Case(0, producing, (WRITE,)),
    Case(1, fetching, (READ,)),
    Case(2, listing, (DESCRIBE,)),
    Case(3, describing, (DESCRIBE,)),
    Case(8, committing, (READ_GROUP, READ)),
    Case(9, fetching_offsets, (DESCRIBE_GROUP, DESCRIBE)),
    Case(10, finding, (DESCRIBE_GROUP,)),
    Case(11, joining, (READ_GROUP,)),
    Case(12, lambda version, _: group_membership.HeartbeatRequest(group_id="g", generation_id=0, member_id="m"),
         (READ_GROUP,)),
    Case(13, leaving, (READ_GROUP,)),
    Case(14, lambda version, _: group_membership.SyncGroupRequest(
        group_id="g", generation_id=0, member_id="m", assignments=()), (READ_GROUP,)),
    Case(15, lambda version, _: group_administration.DescribeGroupsRequest(groups=("g",)), (DESCRIBE_GROUP,)),
    Case(19, creating, (rule(Operation.CREATE),)),
    Case(20, deleting, (rule(Operation.DELETE),)),
    Case(21, deleting_records, (rule(Operation.DELETE),)),
    Case(22, lambda version, _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
         (rule(Operation.IDEMPOTENT_WRITE, CLUSTER),)),
    Case(22, lambda version, _: InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1),
         (WRITE_TRANSACTIONS,)),
    Case(10, finding_transactions, (DESCRIBE_TRANSACTIONS,), range(1, 7)),
    Case(24, adding, (WRITE_TRANSACTIONS, WRITE), range(4)),
    Case(24, adding, (CLUSTER_ACTION,), range(4, 6)),
    Case(25, lambda version, _: txns.AddOffsetsToTxnRequest(
        transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"), (WRITE_TRANSACTIONS, READ_GROUP)),
    Case(26, lambda version, _: txns.EndTxnRequest(
        transactional_id="x", producer_id=1, producer_epoch=0, committed=True), (WRITE_TRANSACTIONS,)),
    Case(27, marking, (rule(Operation.ALTER, CLUSTER),)),
    Case(27, marking, (CLUSTER_ACTION,)),
    Case(28, committing_in_transaction, (WRITE_TRANSACTIONS, READ_GROUP, READ)),
    Case(61, lambda version, _: txn_tools.DescribeProducersRequest(topics=(
        txn_tools.DescribeProducersTopic(name="t", partition_indexes=(0,)),)), (READ,)),
    Case(65, lambda version, _: txn_tools.DescribeTransactionsRequest(transactional_ids=("x",)),
         (DESCRIBE_TRANSACTIONS,)),
    Case(23, ending_epochs, (DESCRIBE,)),
    Case(29, lambda version, _: acl_messages.DescribeAclsRequest(**NO_FILTER), (DESCRIBE_CLUSTER,)),
    Case(30, lambda version, _: acl_messages.CreateAclsRequest(creations=(acl_messages.AclCreation(
        resource_type=2, resource_name="x", principal="User:x", host="*", operation=3, permission_type=3),)),
        (rule(Operation.ALTER, CLUSTER),)),
    Case(31, lambda version, _: acl_messages.DeleteAclsRequest(filters=(acl_messages.DeleteAclsFilter(
        **{**NO_FILTER, "principal_filter": "User:x"}),)), (rule(Operation.ALTER, CLUSTER),)),
    Case(32, describing_configs(2, "t"), (rule(Operation.DESCRIBE_CONFIGS),)),
    Case(32, describing_configs(4, "1"), (rule(Operation.DESCRIBE_CONFIGS, CLUSTER),)),
    Case(33, altering(2, "t"), (rule(Operation.ALTER_CONFIGS),)),
    Case(33, altering(4, "1"), (rule(Operation.ALTER_CONFIGS, CLUSTER),)),
    Case(35, lambda version, _: log_dirs.DescribeLogDirsRequest(topics=None), (DESCRIBE_CLUSTER,)),
    Case(37, growing, (ALTER,)),
    Case(42, lambda version, _: group_administration.DeleteGroupsRequest(groups_names=("g",)),
         (rule(Operation.DELETE, GROUP, "g"),)),
    Case(68, beating, (READ_GROUP, DESCRIBE)),
    Case(69, lambda version, _: consumer_groups.ConsumerGroupDescribeRequest(
        group_ids=("g",), include_authorized_operations=False), (DESCRIBE_GROUP,)),
    Case(76, sharing, (READ_GROUP, DESCRIBE)),
    Case(77, lambda version, _: share_groups.ShareGroupDescribeRequest(
        group_ids=("g",), include_authorized_operations=False), (DESCRIBE_GROUP,)),
    Case(78, share_fetching, (READ_GROUP, READ)),
    Case(88, streaming, (READ_GROUP, DESCRIBE)),
    Case(89, lambda version, _: streams_groups.StreamsGroupDescribeRequest(
        group_ids=("g",), include_authorized_operations=False), (DESCRIBE_GROUP,)),
    Case(79, lambda version, _: share_fetch.ShareAcknowledgeRequest(
        group_id="g", member_id="m", share_session_epoch=1, topics=()), (READ_GROUP,)),
    Case(83, lambda version, topic_id: share_group_state.InitializeShareGroupStateRequest(
        group_id="g", topics=(share_group_state.InitializedTopic(topic_id=topic_id, partitions=(
            share_group_state.InitializedPartition(partition=9, state_epoch=0, start_offset=0),)),)),
        (CLUSTER_ACTION,)),
    Case(84, lambda version, topic_id: share_group_state.ReadShareGroupStateRequest(
        group_id="g", topics=state_read(topic_id)), (CLUSTER_ACTION,)),
    Case(85, lambda version, topic_id: share_group_state.WriteShareGroupStateRequest(
        group_id="g", topics=(share_group_state.WrittenTopic(topic_id=topic_id, partitions=(
            share_group_state.WrittenPartition(
                partition=9, state_epoch=0, leader_epoch=0, start_offset=0, state_batches=()),)),)), (CLUSTER_ACTION,)),
    Case(86, lambda version, topic_id: share_group_state.DeleteShareGroupStateRequest(
        group_id="g", topics=(share_group_state.ForgottenStateTopic(topic_id=topic_id, partitions=(
            share_group_state.ForgottenStatePartition(partition=9),)),)), (CLUSTER_ACTION,)),
    Case(87, lambda version, topic_id: share_group_state.ReadShareGroupStateSummaryRequest(
        group_id="g", topics=state_read(topic_id)), (CLUSTER_ACTION,)),
    Case(90, lambda version, _: share_group_offsets.DescribeShareGroupOffsetsRequest(
        groups=(share_group_offsets.DescribeShareOffsetsGroup(group_id="g", topics=(
            share_group_offsets.DescribeShareOffsetsTopic(topic_name="t", partitions=(9,)),)),)),
        (DESCRIBE_GROUP, DESCRIBE)),
    Case(91, lambda version, _: share_group_offsets.AlterShareGroupOffsetsRequest(
        group_id="new", topics=(share_group_offsets.AlterShareOffsetsTopic(topic_name="t", partitions=(
            share_group_offsets.AlterShareOffset(partition_index=9, start_offset=0),)),)), (READ_NEW_GROUP, READ)),
    Case(92, lambda version, _: share_group_offsets.DeleteShareGroupOffsetsRequest(
        group_id="g", topics=(share_group_offsets.DeleteShareOffsetsTopic(topic_name="t"),)),
        (rule(Operation.DELETE, GROUP, "g"), READ)),
    Case(44, altering_some(2, "t"), (rule(Operation.ALTER_CONFIGS),)),
    Case(44, altering_some(8, "1"), (rule(Operation.ALTER_CONFIGS, CLUSTER),)),
    Case(48, lambda version, _: quotas.DescribeClientQuotasRequest(components=(), strict=False),
         (rule(Operation.DESCRIBE_CONFIGS, CLUSTER),)),
    Case(49, lambda version, _: quotas.AlterClientQuotasRequest(entries=(quotas.AlteredQuotas(
        entity=(quotas.QuotaEntityPart(entity_type="user", entity_name="u"),), ops=()),), validate_only=True),
         (rule(Operation.ALTER_CONFIGS, CLUSTER),)),
    Case(50, lambda version, _: sasl.DescribeUserScramCredentialsRequest(
        users=(sasl.ScramUserName(name="u"),)), (DESCRIBE_CLUSTER,)),
    Case(51, altering_users, (rule(Operation.ALTER, CLUSTER),)),
    Case(43, electing, (rule(Operation.ALTER, CLUSTER),)),
    Case(45, lambda version, _: AlterPartitionReassignmentsRequest(topics=()), (rule(Operation.ALTER, CLUSTER),)),
    Case(46, lambda version, _: ListPartitionReassignmentsRequest(), (DESCRIBE_CLUSTER,)),
    Case(34, lambda version, _: AlterReplicaLogDirsRequest(dirs=(AlterReplicaLogDir(
        path="/d", topics=(AlterReplicaLogDirTopic(name="t", partitions=(0,)),)),)), (rule(Operation.ALTER, CLUSTER),)),
    Case(57, lambda version, _: UpdateFeaturesRequest(feature_updates=(FeatureUpdateKey(
        feature="f", max_version_level=1),)), (rule(Operation.ALTER, CLUSTER),)),
    Case(64, lambda version, _: UnregisterBrokerRequest(broker_id=9), (rule(Operation.ALTER, CLUSTER),)),
    Case(80, lambda version, _: AddRaftVoterRequest(cluster_id=None, timeout_ms=1, voter_id=2, voter_directory_id=
        UUID(int=1), listeners=()), (rule(Operation.ALTER, CLUSTER),)),
    Case(81, lambda version, _: RemoveRaftVoterRequest(cluster_id=None, voter_id=2, voter_directory_id=UUID(int=1)),
         (rule(Operation.ALTER, CLUSTER),)),
    Case(55, lambda version, _: quorum.DescribeQuorumRequest(topics=()), (DESCRIBE_CLUSTER,)),
    Case(74, lambda version, _: config_resources.ListConfigResourcesRequest(),
         (rule(Operation.DESCRIBE_CONFIGS, CLUSTER),)),
    Case(75, lambda version, _: topic_partitions.DescribeTopicPartitionsRequest(
        topics=(topic_partitions.TopicRequest(name="t"),)), (DESCRIBE,)),
    Case(47, deleting_offsets, (rule(Operation.DELETE, GROUP, "g"), READ)),
]  # fmt: skip

ASKED_APART = {16, 17, 18, 36, 38, 39, 40, 41, 60, 66, 71, 72}
"""The APIs that refuse nobody: ListGroups and ListTransactions show less, ApiVersions, DescribeCluster, the two of
telemetry and the two of SASL answer everybody. Those of delegation tokens refuse clients of a listener without TLS or
SASL before they look at any rule."""


def codes(message: Any) -> Iterator[int]:
    """All error codes in a response."""
    if dataclasses.is_dataclass(message):
        for field in dataclasses.fields(message):
            value = getattr(message, field.name)
            if field.name.endswith("error_code"):
                yield value
            else:
                yield from codes(value)
    elif isinstance(message, tuple | list):
        for item in message:
            yield from codes(item)


LOADING = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}


async def called(client: RawClient, request: Any, version: int) -> Any:
    """The response of a consumer group's coordinator, once it has loaded the group."""
    while True:
        response = await client.call(request, version)
        if not set(codes(response)) & LOADING:
            return response
        await asyncio.sleep(0.01)


async def committed(client: RawClient, acls: MemoryAcls) -> None:
    """Have the group exist, with an offset of topic t."""
    more = [need for need in (READ_GROUP, READ) if need not in acls.table]
    for need in more:
        acls.table.add(need)
    assert set(codes(await called(client, committing(8, UUID(int=0)), 8))) == {ErrorCode.NONE}
    for need in more:
        acls.table.remove(need)


async def asked(node: Serving, client: RawClient, case: Case, version: int) -> set[int]:
    topic = node.metadata.topic("t")
    topic_id = UUID(int=1) if topic is None else topic.topic_id
    response = await called(client, case.request(version, topic_id), version)
    return set(codes(response)) - {ErrorCode.NONE}


def refused(case: Case, version: int, missing: Acl) -> set[int]:
    return {REFUSALS[missing.kind]}


# every API


def test_no_api_is_forgotten() -> None:
    assert {route.api.api_key for route in ROUTES} <= set(ACCESS)
    tested = {case.api_key for case in CASES}
    assert {route.api.api_key for route in ROUTES} == tested | ASKED_APART
    for routes in (ROUTES, READ_ONLY_ROUTES):
        for route, before in zip(guarded(routes), routes, strict=True):
            unguarded = isinstance(ACCESS[route.api.api_key], Open | Inside)
            assert (route == before) == unguarded


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{API_MESSAGES[case.api_key].name}-{case.needs[0].kind.name}")
def test_what_an_api_takes(case: Case) -> None:
    """Nothing is enough, nor is all but one of what the request takes; all of it is."""

    async def scenario() -> None:
        acls = MemoryAcls()
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            await committed(client, acls)
            for version in case.in_versions():
                assert await asked(node, client, case, version) == refused(case, version, case.needs[0]), version
                for missing in case.needs:
                    others = [need for need in case.needs if need != missing]
                    for need in others:
                        acls.table.add(need)
                    assert await asked(node, client, case, version) == refused(case, version, missing), version
                    for need in others:
                        acls.table.remove(need)
            for need in case.needs:
                acls.table.add(need)
            found = await asked(node, client, case, case.in_versions()[-1])
            assert not found & set(REFUSALS.values())
            await client.close()

    run(scenario())


def test_whether_a_topic_exists_is_not_told() -> None:
    """Clients that may not use a name get the same answers before there is a topic of that name as after."""

    async def scenario() -> None:
        by_name = [case for case in CASES if case.needs[-1].kind is TOPIC and case.api_key not in ALWAYS_BY_ID]
        acls = MemoryAcls(READ_GROUP, READ_NEW_GROUP, rule(Operation.DELETE, GROUP, "g"), WRITE_TRANSACTIONS)
        async with serving(acls=acls) as node:
            client = await node.connect()
            await node.topic("t")
            await committed(client, acls)
            node.metadata.drop_topic("t")
            last_by_name = {0: 12, 1: 12, 8: 9, 9: 9, 24: 3}
            answers = []
            for _ in range(2):
                answers.append([
                    await asked(node, client, case, last_by_name.get(case.api_key, case.in_versions()[-1]))
                    for case in by_name
                ])  # fmt: skip
                if node.metadata.topic("t") is None:
                    await node.topic("t")
            assert answers[0] == answers[1]
            assert answers[0] == [{ErrorCode.TOPIC_AUTHORIZATION_FAILED}] * len(by_name)
            await client.close()

    run(scenario())


def test_a_super_user_may_do_all() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(rule(Operation.ALL, permission=Permission.DENY))
        async with serving(acls=acls) as node:
            node.broker.authorizer = acls.authorizer(super_users=ME)
            await node.topic("t")
            client = await node.connect()
            for case in CASES:
                found = await asked(node, client, case, case.in_versions()[-1])
                assert not found & set(REFUSALS.values()), case
            await client.close()

    run(scenario())


# mixed requests


def test_the_allowed_part_of_a_request_is_done() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls(DESCRIBE)) as node:
            await node.topic("t")
            await node.topic("secret", 3)
            client = await node.connect()
            partitions = tuple(list_offsets.ListOffsetsPartition(partition_index=n, timestamp=-2) for n in range(3))
            both = tuple(
                list_offsets.ListOffsetsTopic(name=name, partitions=partitions[:count])
                for name, count in (("secret", 3), ("t", 1))
            )
            response = await client.call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=both), 6)
            found = {
                topic.name: [(it.partition_index, it.error_code, it.offset) for it in topic.partitions]
                for topic in response.topics
            }
            failed = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            assert found == {"t": [(0, ErrorCode.NONE, 0)], "secret": [(n, failed, -1) for n in range(3)]}
            await client.close()

    run(scenario())


def test_very_many_partitions_are_refused_in_parts() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls()) as node:
            client = await node.connect()
            partitions = tuple(list_offsets.ListOffsetsPartition(partition_index=n, timestamp=-2) for n in range(3000))
            topic = list_offsets.ListOffsetsTopic(name="t", partitions=partitions)
            response = await client.call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=(topic,)), 6)
            refused = [it for topic in response.topics for it in topic.partitions]
            assert [it.partition_index for it in refused] == list(range(3000))
            assert {it.error_code for it in refused} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
            await client.close()

    run(scenario())


# what is hidden


def shown(response: Any) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


def test_all_topics_are_those_that_may_be_described() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(DESCRIBE, rule(Operation.DESCRIBE, name="*", permission=Permission.ALLOW))
        async with serving(acls=acls) as node:
            for name in ("t", "secret"):
                await node.topic(name)
            client = await node.connect()
            everything = metadata.MetadataRequest(topics=None)
            assert set(shown(await client.call(everything, 12))) == {"t", "secret"}
            acls.table.remove(rule(Operation.DESCRIBE, name="*"))
            assert shown(await client.call(everything, 12)) == {"t": ErrorCode.NONE}
            assert shown(await client.call(metadata.MetadataRequest(topics=()), 0)) == {"t": ErrorCode.NONE}
            await client.close()

    run(scenario())


def test_metadata_by_id_hides_the_name() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls()) as node:
            topic = await node.topic("secret")
            client = await node.connect()
            by_id = metadata.MetadataRequestTopic(name=None, topic_id=topic.topic_id)
            (found,) = (await client.call(metadata.MetadataRequest(topics=(by_id,)), 12)).topics
            assert (found.name, found.topic_id) == (None, topic.topic_id)
            assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            state = topics.DeleteTopicState(topic_id=topic.topic_id)
            (gone,) = (await client.call(topics.DeleteTopicsRequest(topics=(state,), timeout_ms=1), 6)).responses
            assert (gone.name, gone.error_code) == (None, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            assert node.metadata.topic("secret") is not None
            await client.close()

    run(scenario())


@pytest.mark.parametrize("creates", [(), (rule(Operation.CREATE),), (rule(Operation.CREATE, CLUSTER),)])
def test_asking_for_a_topic_creates_it_only_for_those_who_may(creates: tuple[Acl, ...]) -> None:
    async def scenario() -> None:
        async with serving(BrokerConfig(auto_create_topics=True), acls=MemoryAcls(DESCRIBE, *creates)) as node:
            client = await node.connect()
            request = describing(12, UUID(int=0), allow_auto_topic_creation=True)
            (code,) = shown(await client.call(request, 12)).values()
            assert (code == ErrorCode.TOPIC_AUTHORIZATION_FAILED) == (not creates)
            assert (node.metadata.topic("t") is None) == (not creates)
            await client.close()

    run(scenario())


def test_created_topics_show_configs_to_those_who_may_see_them() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(rule(Operation.CREATE, CLUSTER), rule(Operation.DESCRIBE_CONFIGS, name="b"))
        async with serving(acls=acls) as node:
            client = await node.connect()
            response = await client.call(creating(7, UUID(int=0), "a", "b"), 7)
            a, b = sorted(response.topics, key=lambda it: it.name)
            assert (a.error_code, b.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
            assert (a.topic_config_error_code, a.configs, a.num_partitions) == (29, (), -1)
            assert (b.topic_config_error_code, b.num_partitions) == (0, 1)
            assert b.configs
            await client.close()

    run(scenario())


def test_groups_are_listed_for_those_who_may_describe_them() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(*(rule(Operation.READ, GROUP, name) for name in ("g", "h")), READ, DESCRIBE_CLUSTER)
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            for group in ("g", "h"):
                await client.call(finding(4, UUID(int=0)), 4)
                request = dataclasses.replace(committing(8, UUID(int=0)), group_id=group)
                assert set(codes(await called(client, request, 8))) == {ErrorCode.NONE}
            ask = group_administration.ListGroupsRequest()

            async def listed() -> set[str]:
                return {group.group_id for group in (await called(client, ask, 4)).groups}

            assert await listed() == {"g", "h"}
            acls.table.remove(DESCRIBE_CLUSTER)
            acls.table.remove(rule(Operation.READ, GROUP, "h"))
            assert await listed() == {"g"}
            await client.close()

    run(scenario())


@pytest.mark.parametrize("version", [2, 7, 9, 10])
def test_offsets_of_all_topics_are_those_that_may_be_described(version: int) -> None:
    async def scenario() -> None:
        acls = MemoryAcls(READ_GROUP, READ, rule(Operation.READ, name="secret"))
        async with serving(acls=acls) as node:
            client = await node.connect()
            for name in ("t", "secret"):
                await node.topic(name)
                topic = dataclasses.replace(committing(8, UUID(int=0)).topics[0], name=name)
                request = dataclasses.replace(committing(8, UUID(int=0)), topics=(topic,))
                assert set(codes(await called(client, request, 8))) == {ErrorCode.NONE}

            async def found() -> int:
                response = await called(client, fetching_offsets(version, UUID(int=0), everything=True), version)
                return len(response.topics or response.groups[0].topics)

            assert await found() == 2
            acls.table.remove(rule(Operation.READ, name="secret"))
            assert await found() == 1
            await client.close()

    run(scenario())


def test_what_is_unknown_is_told_to_those_who_may_describe_it() -> None:
    """Also by an API that takes more than that of a topic which is there."""

    async def scenario() -> None:
        async with serving(acls=MemoryAcls(DESCRIBE)) as node:
            client = await node.connect()
            request = deleting(5, UUID(int=0))
            (gone,) = (await client.call(request, 5)).responses
            assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await node.topic("t")
            (refusal,) = (await client.call(request, 5)).responses
            assert refusal.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await client.close()

    run(scenario())


def test_a_node_of_the_cluster_may_ask_for_the_ends_of_all_epochs() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls(rule(Operation.CLUSTER_ACTION, CLUSTER))) as node:
            await node.topic("t")
            client = await node.connect()
            (topic,) = (await client.call(ending_epochs(4, UUID(int=0)), 4)).topics
            assert {partition.error_code for partition in topic.partitions} == {ErrorCode.NONE}
            await client.close()

    run(scenario())


def test_users_whose_credentials_may_not_be_seen_are_refused_by_name() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls()) as node:
            client = await node.connect()
            asked_for = tuple(sasl.ScramUserName(name=name) for name in ("an", "bo"))
            response = await client.call(sasl.DescribeUserScramCredentialsRequest(users=asked_for), 0)
            assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            found = {result.user: result.error_code for result in response.results}
            assert found == dict.fromkeys(("an", "bo"), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            await client.close()

    run(scenario())


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def test_clients_are_told_what_they_may_do() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(WRITE, READ_GROUP, rule(Operation.ALTER_CONFIGS, CLUSTER))
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            request = describing(
                8, UUID(int=0), include_topic_authorized_operations=True, include_cluster_authorized_operations=True
            )
            response = await client.call(request, 8)
            assert response.topics[0].topic_authorized_operations == bits(Operation.WRITE, Operation.DESCRIBE)
            assert response.cluster_authorized_operations == 0, "it may not describe the cluster"
            acls.table.add(absent_readable := rule(Operation.READ, name="absent"))
            missing = (metadata.MetadataRequestTopic(name="absent"),)
            absent = dataclasses.replace(request, topics=missing, allow_auto_topic_creation=False)
            (topic,) = (await client.call(absent, 8)).topics
            assert topic.topic_authorized_operations == bits(Operation.READ, Operation.DESCRIBE)
            acls.table.remove(absent_readable)
            (topic,) = (await client.call(absent, 8)).topics
            assert topic.topic_authorized_operations == metadata.AUTHORIZED_OPERATIONS_UNKNOWN, "it is refused"
            ask = DescribeClusterRequest(include_cluster_authorized_operations=True)
            assert (await client.call(ask, 1)).cluster_authorized_operations == 0
            acls.table.add(DESCRIBE_CLUSTER)
            allowed = bits(Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
            assert (await client.call(ask, 1)).cluster_authorized_operations == allowed
            assert (await client.call(request, 8)).cluster_authorized_operations == allowed
            everything = metadata.MetadataRequest(topics=None, include_topic_authorized_operations=True)
            (topic,) = (await client.call(everything, 8)).topics
            assert topic.topic_authorized_operations == bits(Operation.WRITE, Operation.DESCRIBE)
            await committed(client, acls)
            ask_group = group_administration.DescribeGroupsRequest(groups=("g",), include_authorized_operations=True)
            (group,) = (await called(client, ask_group, 5)).groups
            assert group.authorized_operations == bits(Operation.READ, Operation.DESCRIBE)
            acls.table.add(rule(Operation.ALTER_CONFIGS, GROUP, "absent"))
            acls.table.add(rule(Operation.DESCRIBE, GROUP, "absent"))
            (group,) = (await called(client, dataclasses.replace(ask_group, groups=("absent",)), 5)).groups
            allowed = bits(Operation.DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)
            assert group.authorized_operations == allowed, "no group of that name has to be there"
            await client.close()

    run(scenario())


def test_whoever_may_write_to_some_topic_may_have_a_producer_id() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls(WRITE)) as node:
            client = await node.connect()
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
            assert (await client.call(request, 4)).error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


# rules that change on open connections


async def produced(client: RawClient, node: Serving, version: int = 9) -> int:
    topic = node.metadata.topic("t")
    assert topic is not None
    response = await client.call(producing(version, topic.topic_id), version)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


@pytest.mark.parametrize("version", [9, 13])
def test_rules_count_at_once_on_open_connections(version: int) -> None:
    async def scenario() -> None:
        acls = MemoryAcls(WRITE)
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            for _ in range(2):
                assert await produced(client, node, version) == ErrorCode.NONE
            acls.table.remove(WRITE)
            assert await produced(client, node, version) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            acls.table.add(WRITE)
            acls.unheard_seconds = 40
            assert await produced(client, node, version) == ErrorCode.TOPIC_AUTHORIZATION_FAILED, "rules are too old"
            acls.unheard_seconds = 0
            assert await produced(client, node, version) == ErrorCode.NONE
            await client.close()

    run(scenario())


def test_a_producer_without_acknowledgements_learns_of_it_by_the_end_of_its_connection() -> None:
    async def scenario() -> None:
        async with serving(acls=MemoryAcls()) as node:
            await node.topic("t")
            client = await node.connect()
            await client.request(producing(9, UUID(int=0), acks=0), 9)
            assert await client.closed_by_server()

    run(scenario())


def outcome(response: Any) -> tuple[int, int]:
    """The error and the bytes of the one partition of a Fetch response."""
    (partition,) = response.responses[0].partitions
    return partition.error_code, len(partition.records or b"")


@pytest.mark.parametrize("version", [11, 13])
def test_a_fetch_that_waits_gets_nothing_after_its_rule_is_revoked(version: int) -> None:
    async def scenario() -> None:
        acls = MemoryAcls(READ, WRITE)
        async with serving(acls=acls) as node:
            topic = await node.topic("t")
            reader, writer = await node.connect(), await node.connect()
            await reader.request(fetching(version, topic.topic_id, wait_ms=WAIT_MS), version)
            await produced(writer, node)
            assert outcome(await reader.response(1, version))[1] > 0
            await reader.request(fetching(version, topic.topic_id, WAIT_MS, offset=1), version)
            while not node.store.waiting:  # noqa: ASYNC110  # the fetch does not say that it waits
                await asyncio.sleep(0.001)
            acls.table.remove(READ)
            await produced(writer, node)
            response = await reader.response(1, version)
            assert outcome(response) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
            await reader.close()
            await writer.close()

    run(scenario())


def test_a_session_is_told_once_that_it_may_no_longer_read() -> None:
    async def scenario() -> None:
        acls = MemoryAcls(READ)
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            opened = await client.call(fetching(11, UUID(int=0), session_epoch=0), 11)
            assert opened.session_id
            acls.table.remove(READ)
            follow = fetch.FetchRequest(
                max_wait_ms=0, min_bytes=1, session_id=opened.session_id, session_epoch=1, topics=()
            )
            assert outcome(await client.call(follow, 11)) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)
            await client.close()

    run(scenario())


def test_rules_for_everybody_and_for_one_host() -> None:
    async def scenario() -> None:
        here = WRITE._replace(principal=ANY_PRINCIPAL, host="127.0.0.1")
        acls = MemoryAcls(here)
        async with serving(acls=acls) as node:
            await node.topic("t")
            client = await node.connect()
            assert await produced(client, node) == ErrorCode.NONE
            acls.table.remove(here)
            acls.table.add(here._replace(host="127.0.0.2"))
            assert await produced(client, node) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            await client.close()

    run(scenario())
