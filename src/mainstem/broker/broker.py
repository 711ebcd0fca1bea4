"""The context of every handler: the broker's ports, its few pieces of memory, and the caller of the request.

All of the memory can be lost: fetch sessions are renegotiated by clients, the consumer group coordinator replays its
log. Changes of one topic, each of which touches metadata and queues, follow each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy

from mainstem.bounded_log import BoundedLog
from mainstem.broker.config import BrokerConfig
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.fetching.fetch_sessions import FetchSessions
from mainstem.broker.fetching.nearer_replicas import NearerReplicas
from mainstem.broker.fetching.read_turns import ReadTurns
from mainstem.broker.queue_routing import BrokerList, QueueRouting
from mainstem.broker.share_groups.share_reads import ShareReads
from mainstem.broker.telemetry.telemetry import Telemetry
from mainstem.broker.throttling import UNLIMITED, Mutations, Throttling
from mainstem.broker.topics.auto_creation import AutoCreation
from mainstem.broker.topics.key_checks import KeyChecks
from mainstem.broker.topics.known_topics import FetchTopics, ProduceTopics
from mainstem.broker.topics.shared_descriptions import SharedDescriptions
from mainstem.broker.topics.topic_changes import TopicChanges
from mainstem.broker.transactions.transaction_coordinator import TransactionCoordinator
from mainstem.broker.transactions.verification import CoordinatorVerification
from mainstem.model import ForwardedClient, ResourceType, Topic, WriteGroupBurdens
from mainstem.nameserver.errors import InvalidConfig, InvalidPlacement, NotMoving
from mainstem.ports import (
    BrokerCalls,
    BrokerLeadership,
    ClientStore,
    Clock,
    Cluster,
    ClusterAdmin,
    ClusterStanding,
    CommittedReads,
    Credentials,
    Files,
    MessageStore,
    Metadata,
    MetadataAdmin,
    QueueAdmin,
    QueueMoves,
    ResourceConfigs,
    ResponseRoom,
    Session,
    TransactionMarkers,
)
from mainstem.security.acls.acl_admin import AclAdmin
from mainstem.security.acls.authorizer import EVERYTHING, Authorizer, SessionVerdicts
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.quotas.quota_admin import QuotaAdmin
from mainstem.security.sasl.authenticator import Authenticator
from mainstem.security.tokens.token_admin import TokenService
from mainstem.supervised import Supervision
from mainstem.turns import Turns


class LogDir(NamedTuple):
    """A place where messages lie, as it was configured (a path or a URI). `files` tells how full it is; None
    where that is not known."""

    location: str
    files: Files | None = None
    is_shared: bool = False
    """Whether all nodes have it, and what lies there is there once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """Kafka's topic config names → the node's defaults, where they differ from Kafka's."""

    group_defaults: Mapping[str, str] = field(default_factory=dict)
    """Kafka's group config names → the node's values, where they differ from Kafka's."""

    fixed: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names of broker configs → the node's values, of those that do not change while it runs. Those of one
    listener are among them (`listener.name.NAME.…`)."""

    listeners: tuple[str, ...] = ()
    """NAME://HOST:PORT of each."""

    advertised: tuple[str, ...] = ()
    """NAME://HOST:PORT that clients of each are given."""

    protocols: tuple[str, ...] = ()
    """NAME:PROTOCOL of each."""

    rack: str = ""

    replication_factor: int = 1
    """Copies that the cluster keeps of every topic, as far as it has nodes for them."""

    write_dir: LogDir | None = None
    """Disk 1; None when this node does not store messages itself."""

    store_dir: LogDir | None = None
    """Disk 2 or the object store."""

    has_remote_store: bool = False
    """Whether topics may have a remote tier."""


logger = logging.getLogger(__name__)

SAMPLED_PARTITIONS = 4096
"""A topic with more partitions has some in every write group, or nearly."""

NO_LEADER = -1


class NothingSet:
    """The `ports.ResourceConfigs` of a broker without metadata that keep any."""

    _version = object()

    def of(self, kind: ResourceType, name: str) -> Mapping[str, str]:
        return {}

    def names(self, kind: ResourceType) -> Sequence[str]:
        return ()

    def version(self) -> object:
        return self._version

    async def change(
        self, kind: ResourceType, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        raise InvalidConfig("this node keeps configs of topics alone")


class NothingMoves:
    """The `ports.QueueMoves` of a broker whose queues stay where they are."""

    def placements(self) -> Mapping[int, tuple[int, ...]]:
        return {}

    def under_way(self) -> Mapping[int, int]:
        return {}

    def left(self, slot: int) -> Collection[int]:
        return ()

    async def burdens(self) -> WriteGroupBurdens:
        return WriteGroupBurdens({}, {}, 0)

    async def move(self, topic: str, partition: int, group: int, beside: Sequence[tuple[str, int]] = ()) -> None:
        raise InvalidPlacement("queues of this node do not move")

    async def make_group(self, node_ids: Sequence[int]) -> None:
        raise InvalidPlacement("queues of this node do not move")

    async def take_back(self, slot: int) -> None:
        raise NotMoving("queues of this node do not move")


class UnboundedRoom:
    """The `ports.ResponseRoom` of a broker without a server in front of it."""

    def bytes_free(self) -> int:
        return 2**31 - 1

    def change(self, more: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class BrokerTransactions:
    coordinator: TransactionCoordinator
    verification: CoordinatorVerification
    """Asks the coordinator of a transaction, which may be another node."""
    calls: BrokerCalls | None = None
    """Reaches coordinators on other nodes; None: there are no others."""


@dataclass(slots=True, kw_only=True)
class Broker:
    """One node's compute role. The node makes it; every handler gets it."""

    node_id: int
    config: BrokerConfig
    metadata: Metadata
    metadata_admin: MetadataAdmin
    cluster: Cluster
    store: MessageStore
    leadership: BrokerLeadership
    queue_admin: QueueAdmin
    groups: ConsumerGroupCoordinator
    shares: ShareReads
    clock: Clock
    fetch_sessions: FetchSessions
    transactions: BrokerTransactions | None = None
    """None: this node knows no transactions."""
    configs: ResourceConfigs = field(default_factory=NothingSet)
    """Configs of what is no topic."""
    standing: ClusterStanding | None = None
    """Asks the leaders how the cluster stands; None: nobody can be asked."""
    queue_moves: QueueMoves = field(default_factory=NothingMoves)
    """Has queues move between write groups."""
    cluster_admin: ClusterAdmin | None = None
    """Changes the cluster as a whole; None: nobody does here."""
    authorizer: Authorizer | None = None
    """Judges what clients may do; None: everybody may do everything."""
    acl_admin: AclAdmin | None = None
    """Changes the rules that the authorizer goes by; None as well without one."""
    audit: AuditLog | None = None
    """Is told what clients did; None: nobody wants to know."""
    throttling: Throttling | None = None
    """Holds clients to their quotas; None: there are none."""
    quota_admin: QuotaAdmin | None = None
    """Changes the quotas; None: this node keeps none."""
    credentials: Credentials | None = None
    """The users of the cluster; None: this node keeps none."""
    tokens: TokenService | None = None
    """The delegation tokens; None: they are switched off."""
    authenticator: Authenticator | None = None
    """Finds out who clients of listeners with SASL are; None: there are no such listeners."""
    sasl_mechanisms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The mechanisms that it offers, by listener."""
    apart: bool = False
    """Whether this node has no storage."""
    markers: TransactionMarkers | None = None
    """Ends transactions in queues, and knows their producers; None: there are no transactions."""
    committed_reads: CommittedReads | None = None
    """Knows which transactions were aborted; None: there are no transactions."""
    forwarded: Callable[[Session], ForwardedClient] | None = None
    """Says for whom other nodes are asked; None: there are no others."""
    client_store: Callable[[ForwardedClient], ClientStore] | None = None
    """The store as it is used for a client; None: it is the same for everybody."""
    timestamps_now_ms: Callable[[], int] | None = None
    """The time by which producers' timestamps are judged, in ms; None: the clock's time."""
    turns: Turns = field(default_factory=Turns)
    """Long requests take it between their slices."""
    read_turns: ReadTurns = field(default_factory=ReadTurns)
    """Reads of old messages take them, where there are tenants."""
    key_checks: KeyChecks = field(default_factory=KeyChecks)
    response_room: ResponseRoom = field(default_factory=UnboundedRoom)
    """Says how large a response may be, and counts what it holds while it is being made."""
    all_topics: SharedDescriptions = field(default_factory=SharedDescriptions)
    facts: NodeFacts = field(default_factory=NodeFacts)
    topic_changes: TopicChanges = field(default_factory=TopicChanges)
    """Held for a topic while it is created, grown or deleted: metadata and queues change together."""
    supervision: Supervision | None = None
    """Watches the background tasks."""
    faults: BoundedLog = field(init=False)
    """Reports requests that failed unexpectedly."""
    refusals: BoundedLog = field(init=False)
    """Reports clients that could not show who they are."""
    watched_routing: InitVar[QueueRouting | None] = None
    """The node's routing, at which it looks as brokers come and go; None: the broker has its own, and nobody looks."""
    judged_ms: Callable[[], int] = field(init=False)
    routing: QueueRouting = field(init=False)
    broker_list: BrokerList = field(init=False)
    nearer_replicas: NearerReplicas = field(init=False)
    auto_creation: AutoCreation = field(init=False)
    static_config: BrokerConfig = field(init=False)
    """The settings of its configuration file; `config` are those in force (`live_settings.py`)."""
    telemetry: Telemetry = field(init=False)
    produce_topics: ProduceTopics = field(init=False)
    fetch_topics: FetchTopics = field(init=False)

    def store_for(self, session: Session) -> ClientStore:
        """The store, which knows from then on for whom it is."""
        if self.client_store is None or self.forwarded is None:
            return self.store
        return self.client_store(self.forwarded(session))

    def __post_init__(self, watched_routing: QueueRouting | None) -> None:
        self.faults = BoundedLog(logger, self.clock)
        self.refusals = BoundedLog(logger, self.clock)
        own = QueueRouting(self.node_id, self.cluster, self.leadership, apart=self.apart)
        self.routing = watched_routing or own
        self.broker_list = BrokerList(self.cluster, self.clock.monotonic)
        self.nearer_replicas = NearerReplicas(
            self.node_id,
            self.facts.rack,
            self.cluster,
            self.leadership,
            self.routing,
            enabled=self.config.rack_aware_reads,
            catch_up=self.config.catch_up_from_replicas,
            apart=self.apart,
        )
        self.static_config = self.config
        self.telemetry = Telemetry(
            self.configs,
            self.clock,
            self.turns,
            bytes_max=self.config.telemetry_bytes_max,
            clients_max=self.config.telemetry_clients_max,
            series_max=self.config.telemetry_series_max,
        )
        self.judged_ms = self.timestamps_now_ms or self.clock.now_ms
        self.auto_creation = AutoCreation(
            self.metadata_admin,
            self.queue_admin,
            self.has_leaders,
            self.config.num_partitions,
            self.config.default_replication_factor,
            self.supervision,
        )
        self.produce_topics = ProduceTopics(self.metadata)
        self.fetch_topics = FetchTopics(self.metadata)

    def use(self, config: BrokerConfig) -> None:
        """Go by these settings from now on."""
        self.config = config
        self.auto_creation.partitions = config.num_partitions
        self.auto_creation.replication_factor = config.default_replication_factor
        self.nearer_replicas.enabled = config.rack_aware_reads
        self.nearer_replicas.catch_up = config.catch_up_from_replicas
        self.fetch_sessions.limit(config.fetch_sessions_max)
        self.telemetry.bytes_max = config.telemetry_bytes_max

    def mutations(self, session: Session, client_id: str | None, *, strict: bool) -> Mutations:
        """The creations and deletions of partitions that a request makes, as its client's quota allows them."""
        if self.throttling is None or not self.throttling.active:
            return UNLIMITED
        return self.throttling.mutations(session, client_id, strict=strict)

    def verdicts(self, session: Session) -> SessionVerdicts:
        """The rights of a client, by the rules of this moment."""
        return EVERYTHING if self.authorizer is None else self.authorizer.of(session)

    @property
    def cut_off(self) -> bool:
        """Whether this node seems to be separated from the cluster, so that its view of the cluster helps no
        client: it hears neither the metadata's leader nor the leader of any write group."""
        return self.cluster.out_of_touch and self.leadership.leaderless

    def has_leaders(self, topic: Topic) -> bool:
        """Whether every write group that has queues of a topic has a leader now, as far as this node knows."""
        return all(self.leadership.replicas(group).leader != NO_LEADER for group in self._groups_of(topic))

    def lies_in(self, topic: Topic, groups: Collection[int]) -> bool:
        """Whether any of these write groups has queues of a topic."""
        return any(group in groups for group in self._groups_of(topic))

    def _groups_of(self, topic: Topic) -> list[int]:
        first = topic.queue_id(0)
        queue_ids = numpy.arange(first, first + min(topic.partitions, SAMPLED_PARTITIONS), dtype=numpy.uint64)
        groups: list[int] = numpy.unique(self.leadership.groups_of(queue_ids)).tolist()
        return groups

    def serves(self, topic: Topic, partition: int) -> bool:
        """Whether this node serves an existing partition."""
        if not 0 <= partition < topic.partitions:
            return False
        return self.leadership.serves_here(topic.queue_id(partition))

    def has_replica(self, topic: Topic, partition: int) -> bool:
        """Whether this node serves an existing partition, or follows the one that does."""
        if self.serves(topic, partition):
            return True
        group = self.leadership.group_of(topic.queue_id(partition))
        return self.node_id in self.leadership.replicas(group).replicas
