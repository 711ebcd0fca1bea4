"""The broker role of a node, opened: what answers Kafka clients, over whatever store it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from mainstem.address import Address
from mainstem.broker.audit_writer import AuditWriter
from mainstem.broker.broker import Broker, BrokerTransactions, LogDir, NodeFacts
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.broker.dispatch.read_only_routes import READ_ONLY_ROUTES
from mainstem.broker.dispatch.routes import ROUTES
from mainstem.broker.fetching.fetch_sessions import FetchSessions
from mainstem.broker.group_lag.group_lags import GroupLags
from mainstem.broker.group_lag.lag_sampler import LagSampler
from mainstem.broker.group_lag.queue_facts import QueueFactsHere
from mainstem.broker.machines.served_topic import ServedTopic
from mainstem.broker.machines.serving_node import ServingNode
from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.settings.group_settings import GroupSettings, group_defaults
from mainstem.broker.settings.live_settings import LiveSettings
from mainstem.broker.share_groups.served_states import ServedStates, state_topic
from mainstem.broker.share_groups.share_reads import ShareReads, Wakeups
from mainstem.broker.share_groups.share_states import ShareStates
from mainstem.broker.share_groups.share_statistics import ShareCounts
from mainstem.broker.throttling import Throttling
from mainstem.broker.topics.key_checks import KeyChecks
from mainstem.broker.transactions.markers import NodeMarkers
from mainstem.broker.transactions.served_transactions import ServedTransactions
from mainstem.broker.transactions.transaction_coordinator import TransactionCoordinator
from mainstem.broker.transactions.verification import CoordinatorVerification
from mainstem.model import PLAINTEXT, ForwardedClient, ListenerAddress, NodeRole
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    BrokerConfigsChanged,
    Event,
    FeatureLevelRaised,
    TopicDeleted,
    WriteGroupsAdded,
)
from mainstem.node.access.audit_calls import AuditCalls, serve_audit
from mainstem.node.access.authentication import authenticator_of, make_first_user, token_service_of
from mainstem.node.broker_role.broker_calls import NodeBrokerCalls
from mainstem.node.broker_role.cluster_admin import NodeClusterAdmin
from mainstem.node.broker_role.cluster_standing import NodeClusterStanding
from mainstem.node.broker_role.group_lag_calls import GroupLagCalls, serve_group_lag
from mainstem.node.broker_role.queue_moves import NodeQueueMoves
from mainstem.node.broker_role.share_group_calls import ShareGroupCalls, serve_share_groups
from mainstem.node.broker_role.window_calls import WindowCalls, serve_windows
from mainstem.node.kafka_values import values_of
from mainstem.node.node_reports import NodeReports
from mainstem.node.roles_setup import RolesSetup
from mainstem.ports import (
    BrokerLeadership,
    ClientStore,
    Clock,
    CommittedReads,
    Credentials,
    Intake,
    MessageStore,
    QueueAdmin,
    Session,
    TransactionMarkers,
)
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.verdicts import VerdictAudit
from mainstem.security.quotas.disk_shares import DiskShares
from mainstem.security.tenants.traffic import TenantTraffic
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage_link.remote_message_store import RemoteMessageStore

ROUTING_SECONDS = 0.1
"""Between two looks at which brokers there are: a few microseconds."""


class StoreWithIntake(MessageStore, Intake, Protocol):
    """A store that says whether it takes batches as fast as they come."""


class BrokersStore(NamedTuple):
    """The store that a broker works over."""

    messages: StoreWithIntake
    leadership: BrokerLeadership
    routing: QueueRouting
    queue_admin: QueueAdmin
    markers: TransactionMarkers
    """Ends transactions in the queues of any write group."""
    committed_reads: CommittedReads
    clock: AgreedClock
    when_serving: Callable[[Callable[[int, bool], None]], None]
    """Has a function called whenever this node begins to serve a write group, or stops, in the turn in which it does.
    """
    for_client: Callable[[ForwardedClient], ClientStore] | None = None
    """The store as it is used for a client; None: it is the same for everybody."""


@dataclass(frozen=True, slots=True)
class Compute:
    """The part of a node that answers Kafka clients. Made by `open`; closed by the stack that it was opened on."""

    groups: ConsumerGroupCoordinator
    shares: ShareReads
    dispatcher: BrokerDispatcher
    broker: Broker
    store: BrokersStore
    traffic: TenantTraffic
    lags: GroupLags
    lag_sampler: LagSampler

    @classmethod
    async def open(
        cls, setup: RolesSetup, nameserver: Nameserver, store: BrokersStore, reports: NodeReports
    ) -> Compute:
        """Be ready to dispatch requests, and begin to load the groups that this node coordinates. Raises a
        `MainstemError` that names the obstacle."""
        config, ports, stack = setup.config, setup.ports, setup.stack
        serving = _serving_node(setup, nameserver, store)
        settings = GroupSettings(nameserver.config_administration, config.groups, config.shares)
        groups = _groups(setup, nameserver, serving, settings)
        transactions = _transactions(setup, nameserver, store, serving, groups)
        shares = _shares(setup, nameserver, serving, settings)
        kept = nameserver.credentials(ports.random_bytes)
        await make_first_user(config.sasl, kept, ports, nameserver.waits.current)
        broker = _broker(setup, nameserver, store, groups, shares, kept, reports)
        broker.transactions = transactions
        live = LiveSettings(broker, settings, read_only=config.read_only, hold_connections=ports.hold_connections)
        live.apply()
        nameserver.subscribe(partial(tell_live_settings, live))
        coordinators: list[ServedTopic[Any]] = [groups.served, shares.served, transactions.coordinator.served]
        for served in coordinators:
            store.when_serving(served.serving_changed)
            served.start()
        if nameserver.others is not None:
            setup.background.begin(
                partial(watch_routing, store.routing, coordinators, setup.ports.clock), "queue routing"
            )
        nameserver.subscribe(partial(tell_coordinators, coordinators))
        nameserver.subscribe(partial(tell_consumer_groups, groups))
        nameserver.subscribe(partial(tell_share_groups, shares))
        serve_share_groups(ports.handlers, shares.states)
        serve_windows(ports.handlers, shares.served)
        for served in coordinators:
            stack.push_async_callback(served.close)
        stack.push_async_callback(broker.auto_creation.close)
        if broker.audit is not None:
            calls = AuditCalls(None if nameserver.others is None else nameserver.others.calls)
            writer = AuditWriter(broker, broker.audit, config.audit, ports.side_work, calls.hand)
            serve_audit(ports.handlers, writer)
            stack.push_async_callback(writer.write)  # the last records
            setup.background.begin(writer.run, "audit")
        routes = READ_ONLY_ROUTES if config.read_only else ROUTES
        dispatcher = await stack.enter_async_context(BrokerDispatcher(broker, routes, intake=store.messages))
        assert broker.throttling is not None
        if config.quota.cluster_wide:
            nameserver.share_quotas(broker.throttling)
        lags, sampler = _group_lag(setup, nameserver, serving, groups, broker.throttling)
        setup.background.begin(sampler.run, "group lag")
        return cls(groups, shares, dispatcher, broker, store, broker.throttling.traffic, lags, sampler)

    def share_disks(self, own: DiskShares | None, others: RemoteMessageStore | None) -> None:
        """Have tenants wait that fill this node's disk 1, or that of another leader."""
        assert self.broker.throttling is not None
        self.broker.throttling.disk_shares = own
        if others is not None:
            others.told_to_wait = self.broker.throttling.leader_waits


def _brokers(nameserver: Nameserver) -> int:
    """How many nodes serve clients, as far as this one knows."""
    return sum(NodeRole.BROKER in node.roles for node in nameserver.lookups.alive_nodes())


async def watch_routing(routing: QueueRouting, coordinators: Sequence[ServedTopic[Any]], clock: Clock) -> None:
    """Tell the coordinators when brokers come or go, until cancelled. Which nodes live is soft state that changes with
    any heartbeat."""
    while True:
        if routing.look(clock.monotonic()):
            for served in coordinators:
                served.routing_changed()
        await asyncio.sleep(ROUTING_SECONDS)


def tell_coordinators(coordinators: Sequence[ServedTopic[Any]], event: Event) -> None:
    """Listens to the nameserver: has the coordinators follow queues that have moved to another write group."""
    if isinstance(event, WriteGroupsAdded):
        for served in coordinators:
            served.routing_changed()


def _serving_node(setup: RolesSetup, nameserver: Nameserver, store: BrokersStore) -> ServingNode:
    """This node, as the internal topics that it serves need it."""
    return ServingNode(
        node_id=setup.config.node_id,
        metadata=nameserver.lookups,
        metadata_admin=nameserver.administration,
        leadership=store.leadership,
        routing=store.routing,
        store=store.messages,
        queue_admin=store.queue_admin,
        clock=store.clock,
        feature_level=lambda: nameserver.lookups.feature_level,
        supervision=setup.supervision,
    )


def _groups(
    setup: RolesSetup, nameserver: Nameserver, node: ServingNode, settings: GroupSettings
) -> ConsumerGroupCoordinator:
    served = ServedPartitions(
        node,
        setup.config.groups,
        new_id=setup.ports.new_id,
        metadata_current=nameserver.waits.current,
        config_of=settings.of_consumers,
    )
    return ConsumerGroupCoordinator(served)


def _group_lag(
    setup: RolesSetup,
    nameserver: Nameserver,
    node: ServingNode,
    groups: ConsumerGroupCoordinator,
    throttling: Throttling,
) -> tuple[GroupLags, LagSampler]:
    config = setup.config.groups
    here = QueueFactsHere(node.store, throttling.held_back)
    others = None if nameserver.others is None else GroupLagCalls(nameserver.others.calls)
    lags = GroupLags(node.node_id, groups.served, here, node.metadata, node.routing, node.clock, others)
    serve_group_lag(setup.ports.handlers, here, lags)
    sampler = LagSampler(
        groups.served,
        lags,
        node.metadata,
        interval_seconds=config.lag_interval_ms / 1000,
        series_max=config.lag_series_max,
        monotonic=node.clock.monotonic,
    )
    return lags, sampler


def _shares(setup: RolesSetup, nameserver: Nameserver, node: ServingNode, settings: GroupSettings) -> ShareReads:
    config, wakeups, counts = setup.config.shares, Wakeups(), ShareCounts()
    topic = state_topic(config, nameserver.lookups.write_groups(), setup.config.groups.offsets_topic_replication_factor)
    windows = None if nameserver.others is None else WindowCalls(nameserver.others.calls)
    served = ServedStates(
        node, config, topic, available=wakeups.tell, counts=counts, config_of=settings.of_shares, others=windows
    )
    others = None if nameserver.others is None else ShareGroupCalls(setup.config.node_id, nameserver)
    return ShareReads(config, served, wakeups, counts, ShareStates(node, served, others), settings.of_shares)


def _transactions(
    setup: RolesSetup,
    nameserver: Nameserver,
    store: BrokersStore,
    node: ServingNode,
    groups: ConsumerGroupCoordinator,
) -> BrokerTransactions:
    config, lookups = setup.config, nameserver.lookups
    others = None if nameserver.others is None else nameserver.others.calls
    calls = NodeBrokerCalls(config.node_id, others)
    markers = NodeMarkers(
        lookups, store.markers, calls, OFFSETS_TOPIC, groups.served.leader_at, nameserver.waits.current
    )
    served = ServedTransactions(node, config.transactions, markers)
    coordinator = TransactionCoordinator(
        served, config.transactions, nameserver.administration.allocate_producer_id, lambda: lookups.feature_level
    )
    verification = CoordinatorVerification(lookups, lookups.topic_by_number, store.routing, calls)
    transactions = BrokerTransactions(coordinator, verification, calls)
    calls.serve(setup.ports.handlers, transactions, groups)
    return transactions


def _broker(
    setup: RolesSetup,
    nameserver: Nameserver,
    store: BrokersStore,
    groups: ConsumerGroupCoordinator,
    shares: ShareReads,
    kept: Credentials,
    reports: NodeReports,
) -> Broker:
    config, ports = setup.config, setup.ports
    audit = AuditLog(config.audit, ports.clock) if config.audit.enabled else None
    tokens = token_service_of(config, ports, nameserver.token_administration)
    return Broker(
        node_id=config.node_id,
        config=config.broker,
        metadata=nameserver.lookups,
        metadata_admin=nameserver.administration,
        cluster=nameserver.lookups,
        watched_routing=store.routing,
        configs=nameserver.config_administration,
        standing=NodeClusterStanding(
            nameserver, reports, lambda group: store.leadership.replicas(group).leader, ports.clock.monotonic
        ),
        queue_moves=NodeQueueMoves(nameserver, reports, has_objects=bool(config.objects_url)),
        cluster_admin=NodeClusterAdmin(nameserver, reports),
        store=store.messages,
        markers=store.markers,
        committed_reads=store.committed_reads,
        leadership=store.leadership,
        queue_admin=store.queue_admin,
        groups=groups,
        shares=shares,
        clock=ports.clock,
        apart=not config.has_role(NodeRole.STORAGE),
        forwarded=None if nameserver.others is None else partial(_forwarded, setup, nameserver),
        client_store=store.for_client,
        authorizer=authorizer_of(setup, nameserver, audit),
        acl_admin=nameserver.acl_administration if config.authorizer.enabled else None,
        audit=audit,
        throttling=Throttling(
            nameserver.lookups.quotas,
            ports.clock,
            nameserver.lookups.tenants,
            partial(_brokers, nameserver) if config.quota.cluster_wide and nameserver.others is not None else None,
        ),
        quota_admin=nameserver.quota_administration,
        timestamps_now_ms=store.clock.judged_ms,
        turns=setup.turns,
        key_checks=KeyChecks(ports.side_work),
        supervision=setup.supervision,
        response_room=ports.response_room,
        credentials=kept,
        authenticator=authenticator_of(config, ports, kept, tokens),
        tokens=tokens,
        sasl_mechanisms=config.sasl_mechanisms,
        fetch_sessions=FetchSessions(
            sessions_max=config.broker.fetch_sessions_max,
            idle_ms_min=config.broker.fetch_session_idle_ms_min,
            partitions_max=config.broker.fetch_session_partitions_max,
            random=ports.randomness(),
        ),
        facts=_facts(setup, nameserver),
    )


def _forwarded(setup: RolesSetup, nameserver: Nameserver, session: Session) -> ForwardedClient:
    judged_at = nameserver.lookups.version if setup.config.authorizer.enabled else -1
    return ForwardedClient(session.principal, session.host, judged_at)


def _facts(setup: RolesSetup, nameserver: Nameserver) -> NodeFacts:
    config, ports = setup.config, setup.ports
    stores = config.has_role(NodeRole.STORAGE)
    own = setup.identity
    told = own.endpoints or (ListenerAddress(PLAINTEXT, own.host, own.port),)
    return NodeFacts(
        topic_defaults=nameserver.lookups.topic_defaults(),
        group_defaults=group_defaults(config.groups, config.shares),
        fixed=values_of(config),
        write_dir=LogDir(str(ports.write_dir), ports.write_files) if stores else None,
        store_dir=_store_place(setup) if stores else None,
        has_remote_store=bool(config.remote_dir) and not config.shares_store,
        listeners=(
            *(f"{PLAINTEXT}://{address}" for address in config.listen),
            *(f"{name}://{each.listen}" for name, each in config.server.listeners.items()),
        ),
        advertised=tuple(f"{name}://{Address(host, port)}" for name, host, port in told),
        protocols=(
            *((f"{PLAINTEXT}:{PLAINTEXT}",) if config.listen else ()),
            *(f"{name}:{each.protocol}" for name, each in config.server.listeners.items()),
        ),
        rack=config.rack,
        replication_factor=config.nameserver.replication_factor,
    )


def _store_place(setup: RolesSetup) -> LogDir:
    if setup.config.shared_store_place is not None:
        return LogDir(setup.config.shared_store_place, is_shared=True)
    return LogDir(str(setup.ports.store_dir), setup.ports.store_files)


def authorizer_of(setup: RolesSetup, nameserver: Nameserver, audit: AuditLog | None) -> Authorizer | None:
    """None: everybody may do everything."""
    config = setup.config.authorizer
    if not config.enabled:
        return None
    told = None if audit is None else VerdictAudit(audit)
    return Authorizer(config, nameserver.lookups.acls, nameserver.lookups.unheard_seconds, told)


def tell_consumer_groups(groups: ConsumerGroupCoordinator, event: Event) -> None:
    """Listens to the nameserver: the offsets committed for a topic go when it is deleted, on whichever
    node."""
    if isinstance(event, TopicDeleted):
        groups.topic_deleted(event.topic)
    elif isinstance(event, FeatureLevelRaised):
        groups.level_raised()


def tell_live_settings(live: LiveSettings, event: Event) -> None:
    """Listens to the nameserver: what is set for brokers holds at once."""
    if isinstance(event, BrokerConfigsChanged):
        live.apply()


def tell_share_groups(shares: ShareReads, event: Event) -> None:
    """Listens to the nameserver: what share groups have read of a topic goes when it is deleted."""
    if isinstance(event, TopicDeleted):
        shares.topic_deleted(event.topic)
