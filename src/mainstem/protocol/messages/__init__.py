"""The messages of every API the protocol room knows, one module per API or per family of small ones, and their
registry.

Names and fields are Kafka's, fields in snake case; nested structures live beside the message they belong to. Being
declared here does not mean being served: routes choose from `API_MESSAGES` what the node advertises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mainstem.protocol.messages.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from mainstem.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from mainstem.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from mainstem.protocol.messages.client_telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from mainstem.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from mainstem.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from mainstem.protocol.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from mainstem.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from mainstem.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from mainstem.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from mainstem.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from mainstem.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from mainstem.protocol.messages.fetch import FetchRequest, FetchResponse
from mainstem.protocol.messages.group_administration import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from mainstem.protocol.messages.group_membership import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from mainstem.protocol.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from mainstem.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataResponse
from mainstem.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from mainstem.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from mainstem.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from mainstem.protocol.messages.partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from mainstem.protocol.messages.produce import ProduceRequest, ProduceResponse
from mainstem.protocol.messages.producer_transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from mainstem.protocol.messages.raft_voters import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from mainstem.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from mainstem.protocol.messages.share_fetch import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from mainstem.protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from mainstem.protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from mainstem.protocol.messages.share_groups import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from mainstem.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from mainstem.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from mainstem.protocol.messages.transaction_administration import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from mainstem.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from mainstem.protocol.messages.update_features import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from mainstem.protocol.schema import declaration_of


@dataclass(frozen=True, slots=True)
class ApiDeclaration:
    """One API: its messages and the versions that may be advertised."""

    api_key: int
    name: str
    request: type[Any]
    response: type[Any]
    version_min: int
    version_max: int
    flexible_from: int | None
    """The first version with compact lengths, tagged fields and newer headers; None if there is none."""

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from


def _declare(name: str, request: type[Any], response: type[Any], version_max: int | None = None) -> ApiDeclaration:
    asked, answered = declaration_of(request), declaration_of(response)
    assert asked.versions == answered.versions, f"{name}: request and response have different versions"
    assert asked.flexible == answered.flexible, f"{name}: request and response turn flexible apart"
    assert asked.api_key is not None, f"{name}: no API key"
    assert asked.api_key == answered.api_key, f"{name}: API keys differ"
    flexible = asked.flexible
    return ApiDeclaration(
        api_key=asked.api_key,
        name=name,
        request=request,
        response=response,
        version_min=asked.versions.first,
        version_max=asked.versions.last if version_max is None else version_max,
        flexible_from=flexible.first if flexible.first <= flexible.last else None,
    )


API_MESSAGES: Mapping[int, ApiDeclaration] = MappingProxyType(
    {
        api.api_key: api
        for api in (
            _declare("Produce", ProduceRequest, ProduceResponse),
            _declare("Fetch", FetchRequest, FetchResponse),
            _declare("ListOffsets", ListOffsetsRequest, ListOffsetsResponse),
            _declare("Metadata", MetadataRequest, MetadataResponse),
            _declare("OffsetCommit", OffsetCommitRequest, OffsetCommitResponse),
            _declare("OffsetFetch", OffsetFetchRequest, OffsetFetchResponse),
            _declare("FindCoordinator", FindCoordinatorRequest, FindCoordinatorResponse),
            _declare("JoinGroup", JoinGroupRequest, JoinGroupResponse),
            _declare("Heartbeat", HeartbeatRequest, HeartbeatResponse),
            _declare("LeaveGroup", LeaveGroupRequest, LeaveGroupResponse),
            _declare("SyncGroup", SyncGroupRequest, SyncGroupResponse),
            _declare("DescribeGroups", DescribeGroupsRequest, DescribeGroupsResponse),
            _declare("ListGroups", ListGroupsRequest, ListGroupsResponse),
            _declare("SaslHandshake", SaslHandshakeRequest, SaslHandshakeResponse),
            _declare("ApiVersions", ApiVersionsRequest, ApiVersionsResponse),
            _declare("CreateTopics", CreateTopicsRequest, CreateTopicsResponse),
            _declare("DeleteTopics", DeleteTopicsRequest, DeleteTopicsResponse),
            _declare("DeleteRecords", DeleteRecordsRequest, DeleteRecordsResponse),
            # Version 6 (two-phase commit) is declared but unreleased: never advertised.
            _declare("InitProducerId", InitProducerIdRequest, InitProducerIdResponse, version_max=5),
            _declare("OffsetForLeaderEpoch", OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
            _declare("AddPartitionsToTxn", AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
            _declare("AddOffsetsToTxn", AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
            _declare("EndTxn", EndTxnRequest, EndTxnResponse),
            _declare("WriteTxnMarkers", WriteTxnMarkersRequest, WriteTxnMarkersResponse),
            _declare("TxnOffsetCommit", TxnOffsetCommitRequest, TxnOffsetCommitResponse),
            _declare("DescribeAcls", DescribeAclsRequest, DescribeAclsResponse),
            _declare("CreateAcls", CreateAclsRequest, CreateAclsResponse),
            _declare("DeleteAcls", DeleteAclsRequest, DeleteAclsResponse),
            _declare("DescribeConfigs", DescribeConfigsRequest, DescribeConfigsResponse),
            _declare("AlterConfigs", AlterConfigsRequest, AlterConfigsResponse),
            _declare("AlterReplicaLogDirs", AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
            _declare("DescribeLogDirs", DescribeLogDirsRequest, DescribeLogDirsResponse),
            _declare("SaslAuthenticate", SaslAuthenticateRequest, SaslAuthenticateResponse),
            _declare("CreatePartitions", CreatePartitionsRequest, CreatePartitionsResponse),
            _declare("CreateDelegationToken", CreateDelegationTokenRequest, CreateDelegationTokenResponse),
            _declare("RenewDelegationToken", RenewDelegationTokenRequest, RenewDelegationTokenResponse),
            _declare("ExpireDelegationToken", ExpireDelegationTokenRequest, ExpireDelegationTokenResponse),
            _declare("DescribeDelegationToken", DescribeDelegationTokenRequest, DescribeDelegationTokenResponse),
            _declare("DeleteGroups", DeleteGroupsRequest, DeleteGroupsResponse),
            _declare("ElectLeaders", ElectLeadersRequest, ElectLeadersResponse),
            _declare("IncrementalAlterConfigs", IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
            _declare(
                "AlterPartitionReassignments", AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
            ),
            _declare(
                "ListPartitionReassignments", ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse
            ),
            _declare("OffsetDelete", OffsetDeleteRequest, OffsetDeleteResponse),
            _declare("DescribeClientQuotas", DescribeClientQuotasRequest, DescribeClientQuotasResponse),
            _declare("AlterClientQuotas", AlterClientQuotasRequest, AlterClientQuotasResponse),
            _declare(
                "DescribeUserScramCredentials",
                DescribeUserScramCredentialsRequest,
                DescribeUserScramCredentialsResponse,
            ),
            _declare("AlterUserScramCredentials", AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
            _declare("DescribeQuorum", DescribeQuorumRequest, DescribeQuorumResponse),
            _declare("UpdateFeatures", UpdateFeaturesRequest, UpdateFeaturesResponse),
            _declare("DescribeCluster", DescribeClusterRequest, DescribeClusterResponse),
            _declare("DescribeProducers", DescribeProducersRequest, DescribeProducersResponse),
            _declare("DescribeTransactions", DescribeTransactionsRequest, DescribeTransactionsResponse),
            _declare("ListTransactions", ListTransactionsRequest, ListTransactionsResponse),
            _declare("UnregisterBroker", UnregisterBrokerRequest, UnregisterBrokerResponse),
            _declare("ConsumerGroupHeartbeat", ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
            _declare("ConsumerGroupDescribe", ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
            _declare("GetTelemetrySubscriptions", GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
            _declare("PushTelemetry", PushTelemetryRequest, PushTelemetryResponse),
            _declare("ListConfigResources", ListConfigResourcesRequest, ListConfigResourcesResponse),
            _declare("DescribeTopicPartitions", DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
            _declare("AddRaftVoter", AddRaftVoterRequest, AddRaftVoterResponse),
            _declare("RemoveRaftVoter", RemoveRaftVoterRequest, RemoveRaftVoterResponse),
            _declare("ShareGroupHeartbeat", ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
            _declare("ShareGroupDescribe", ShareGroupDescribeRequest, ShareGroupDescribeResponse),
            _declare("ShareFetch", ShareFetchRequest, ShareFetchResponse),
            _declare("ShareAcknowledge", ShareAcknowledgeRequest, ShareAcknowledgeResponse),
            _declare("InitializeShareGroupState", InitializeShareGroupStateRequest, InitializeShareGroupStateResponse),
            _declare("ReadShareGroupState", ReadShareGroupStateRequest, ReadShareGroupStateResponse),
            _declare("WriteShareGroupState", WriteShareGroupStateRequest, WriteShareGroupStateResponse),
            _declare("DeleteShareGroupState", DeleteShareGroupStateRequest, DeleteShareGroupStateResponse),
            _declare(
                "ReadShareGroupStateSummary", ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse
            ),
            _declare("DescribeShareGroupOffsets", DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
            _declare("AlterShareGroupOffsets", AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
            _declare("DeleteShareGroupOffsets", DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
            _declare("StreamsGroupHeartbeat", StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse),
            _declare("StreamsGroupDescribe", StreamsGroupDescribeRequest, StreamsGroupDescribeResponse),
        )
    }
)
"""Every declared API by its key."""

__all__ = [
    "API_MESSAGES",
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AddRaftVoterRequest",
    "AddRaftVoterResponse",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "AlterShareGroupOffsetsRequest",
    "AlterShareGroupOffsetsResponse",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "ApiDeclaration",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "ConsumerGroupHeartbeatRequest",
    "ConsumerGroupHeartbeatResponse",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreateDelegationTokenRequest",
    "CreateDelegationTokenResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteShareGroupOffsetsRequest",
    "DeleteShareGroupOffsetsResponse",
    "DeleteShareGroupStateRequest",
    "DeleteShareGroupStateResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeShareGroupOffsetsRequest",
    "DescribeShareGroupOffsetsResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "ExpireDelegationTokenRequest",
    "ExpireDelegationTokenResponse",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "GetTelemetrySubscriptionsRequest",
    "GetTelemetrySubscriptionsResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "InitializeShareGroupStateRequest",
    "InitializeShareGroupStateResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "PushTelemetryRequest",
    "PushTelemetryResponse",
    "ReadShareGroupStateRequest",
    "ReadShareGroupStateResponse",
    "ReadShareGroupStateSummaryRequest",
    "ReadShareGroupStateSummaryResponse",
    "RemoveRaftVoterRequest",
    "RemoveRaftVoterResponse",
    "RenewDelegationTokenRequest",
    "RenewDelegationTokenResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "ShareAcknowledgeRequest",
    "ShareAcknowledgeResponse",
    "ShareFetchRequest",
    "ShareFetchResponse",
    "ShareGroupDescribeRequest",
    "ShareGroupDescribeResponse",
    "ShareGroupHeartbeatRequest",
    "ShareGroupHeartbeatResponse",
    "StreamsGroupDescribeRequest",
    "StreamsGroupDescribeResponse",
    "StreamsGroupHeartbeatRequest",
    "StreamsGroupHeartbeatResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
    "WriteShareGroupStateRequest",
    "WriteShareGroupStateResponse",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
]
