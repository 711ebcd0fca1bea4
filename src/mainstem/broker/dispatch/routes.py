"""Every API this node serves: its messages and versions, and the handler that answers it.

ApiVersions advertises exactly this list. Most handlers are coroutines, run as a task each. Produce begins while it is
dispatched, since its batches must be appended in the order they arrive; Fetch is answered while it is dispatched
where that is possible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mainstem.broker.broker import Broker
from mainstem.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    raft_voters,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    share_group_state,
    streams_group_describe,
    streams_group_heartbeat,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame, Later, Started, Waiting
from mainstem.protocol.messages import API_MESSAGES, ApiDeclaration

Handler = Callable[[Broker, Any, RequestContext], Awaitable[Any]]
Start = Callable[[Broker, memoryview, int, RequestContext], Started[Any] | Later[Any]]
Begin = Callable[[Broker, memoryview, int, RequestContext], EncodedFrame | Waiting[EncodedFrame] | Later[EncodedFrame]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One API: its messages and its handler. Exactly one of `handle`, `start` and `begin` is set."""

    api: ApiDeclaration
    handle: Handler | None = None
    start: Start | None = None
    begin: Begin | None = None
    abandoned_with_peer: bool = False
    """The request only reads, or other tasks finish what it began: it is cancelled when its connection is
    gone."""
    held_bytes: Callable[[int], int] = lambda size_bytes: 0
    """Bytes of memory that a request of some size takes which begins in its dispatch."""
    charged_by_handler: bool = False
    """The parts of a waiting request that the handler keeps are bounded and charged where they are kept."""
    error_ends_connection: bool = False
    """After an answer with an error nothing more of the client is taken."""
    shows_the_way: bool = False
    """The response tells the client which node to go to. A node that is cut off closes the connection after
    it."""


def _route(api_key: int, handle: Handler, *, shows_the_way: bool = False, abandoned_with_peer: bool = False) -> Route:
    return Route(
        api=API_MESSAGES[api_key],
        handle=handle,
        shows_the_way=shows_the_way,
        abandoned_with_peer=abandoned_with_peer,
    )


def advertised() -> Iterable[ApiDeclaration]:
    """The APIs of all routes, in their order."""
    return (route.api for route in ROUTES)


ROUTES: tuple[Route, ...] = (
    Route(api=API_MESSAGES[0], start=produce.start),
    Route(api=API_MESSAGES[1], begin=fetch.begin, held_bytes=fetch.held_bytes, abandoned_with_peer=True),
    _route(2, list_offsets.handle),
    _route(3, metadata.handle, shows_the_way=True, abandoned_with_peer=True),
    _route(8, offset_commit.handle),
    _route(9, offset_fetch.handle),
    _route(10, find_coordinator.handle, shows_the_way=True),
    Route(api=API_MESSAGES[11], handle=join_group.handle, charged_by_handler=True),
    _route(12, heartbeat.handle),
    _route(13, leave_group.handle),
    _route(14, sync_group.handle),
    _route(15, describe_groups.handle),
    _route(16, list_groups.handle),
    Route(api=API_MESSAGES[17], handle=sasl_handshake.handle, error_ends_connection=True),
    _route(18, partial(api_versions.handle, advertised)),
    _route(19, create_topics.handle),
    _route(20, delete_topics.handle),
    _route(21, delete_records.handle),
    _route(22, init_producer_id.handle),
    _route(23, offset_for_leader_epoch.handle),
    _route(24, add_partitions_to_txn.handle),
    _route(25, add_offsets_to_txn.handle),
    _route(26, end_txn.handle),
    _route(27, write_txn_markers.handle),
    _route(28, txn_offset_commit.handle),
    _route(29, describe_acls.handle),
    _route(30, create_acls.handle),
    _route(31, delete_acls.handle),
    _route(32, describe_configs.handle),
    _route(33, alter_configs.handle),
    _route(34, alter_replica_log_dirs.handle),
    _route(35, describe_log_dirs.handle),
    Route(api=API_MESSAGES[36], handle=sasl_authenticate.handle, error_ends_connection=True),
    _route(37, create_partitions.handle),
    _route(38, create_delegation_token.handle),
    _route(39, renew_delegation_token.handle),
    _route(40, expire_delegation_token.handle),
    _route(41, describe_delegation_token.handle),
    _route(42, delete_groups.handle),
    _route(43, elect_leaders.handle),
    _route(44, incremental_alter_configs.handle),
    _route(45, alter_partition_reassignments.handle),
    _route(46, list_partition_reassignments.handle),
    _route(47, offset_delete.handle),
    _route(48, describe_client_quotas.handle),
    _route(49, alter_client_quotas.handle),
    _route(50, describe_user_scram_credentials.handle),
    _route(51, alter_user_scram_credentials.handle),
    _route(55, describe_quorum.handle),
    _route(57, update_features.handle),
    _route(60, describe_cluster.handle, shows_the_way=True),
    _route(61, describe_producers.handle),
    _route(64, unregister_broker.handle),
    _route(65, describe_transactions.handle),
    _route(66, list_transactions.handle),
    _route(68, consumer_group_heartbeat.handle),
    _route(69, consumer_group_describe.handle),
    _route(71, get_telemetry_subscriptions.handle),
    _route(72, push_telemetry.handle),
    _route(74, list_config_resources.handle),
    _route(75, describe_topic_partitions.handle, shows_the_way=True),
    _route(76, share_group_heartbeat.handle),
    _route(77, share_group_describe.handle),
    _route(78, share_fetch.handle, abandoned_with_peer=True),
    _route(79, share_acknowledge.handle),
    _route(80, raft_voters.add),
    _route(81, raft_voters.remove),
    _route(83, share_group_state.initialize),
    _route(84, share_group_state.read),
    _route(85, share_group_state.write),
    _route(86, share_group_state.delete),
    _route(87, share_group_state.read_summary),
    _route(88, streams_group_heartbeat.handle),
    _route(89, streams_group_describe.handle),
    _route(90, describe_share_group_offsets.handle, abandoned_with_peer=True),
    _route(91, alter_share_group_offsets.handle),
    _route(92, delete_share_group_offsets.handle),
)
