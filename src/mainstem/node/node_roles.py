"""The roles of a node, wired together on the ports they are given: everything of a node but its listeners.

`node` hands in disks, sockets and the time of the machine; a whole node runs as well on simulated ones. This module
decides nothing but which part gets which, and the order in which they start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import structs

import mainstem
from mainstem.address import Address
from mainstem.broker.audit_writer import AuditWriter
from mainstem.broker.broker import Broker, LogDir, NodeFacts
from mainstem.broker.consumer_groups.coordinator import ConsumerGroupCoordinator
from mainstem.broker.consumer_groups.served_partitions import ServedPartitions
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.broker.dispatch.read_only_routes import READ_ONLY_ROUTES
from mainstem.broker.dispatch.routes import ROUTES
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.throttling import Throttling
from mainstem.broker.topics.key_checks import KeyChecks
from mainstem.broker.topics.queue_care import QueueCare
from mainstem.errors import DISK_REMEDY
from mainstem.model import Durability, FeatureLevel, Node
from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.cluster_ports import Facts
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.commands import (
    Event,
    FeatureLevelRaised,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from mainstem.node.authentication import authenticator_of, make_first_user
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NO_WATCH, NodePorts, OpeningWatch
from mainstem.node.served_write_groups import ServedWriteGroups
from mainstem.node.store_directory import MANIFEST_NAME, StoreUnsupported
from mainstem.ports import Credentials, QueueAdmin
from mainstem.rpc.messages.starts import SHOW_START
from mainstem.security.acls.authorizer import Authorizer
from mainstem.security.audit.audit_log import AuditLog
from mainstem.security.audit.verdicts import VerdictAudit
from mainstem.storage.cluster.leader_balance import LeaderBalance
from mainstem.storage.cluster.membership_steps import MembershipSteps
from mainstem.storage.cluster.queue_leadership import WriteGroupLeadership
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.object_stores.read_only import ReadOnlyStore
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import parsed_url
from mainstem.storage.queues.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.role import Storage, stop
from mainstem.storage.setup import StorageSetup
from mainstem.supervised import Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)

WAITING_SECONDS = 5.0
"""Seconds in which nodes that start together have met; after that the log names the missing ones, again and
again."""

JOURNAL_DIRECTORY = "journal"

NODE_ALONE = 1
"""Raft numbers members from 1: a node 0, which can only be a cluster of its own, goes by this number."""


class Background:
    """The background tasks of a node, except those of the roles themselves; they run until it stops."""

    def __init__(self, supervision: Supervision, stack: AsyncExitStack) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self._supervision = supervision
        self._stack = stack

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self._supervision.start(work, name)
        self.tasks.append(task)
        self._stack.push_async_callback(stop, [task])


@dataclass(frozen=True, slots=True)
class Roles:
    """Nameserver, storage and broker of one node. Made by `open`; closed by the stack they were opened on."""

    starts: StartsFile
    nameserver: Nameserver
    storage: Storage
    leadership: WriteGroupLeadership
    groups: ConsumerGroupCoordinator
    dispatcher: BrokerDispatcher
    background: Background
    _balance: Callable[[Roles], None]

    @classmethod
    async def open(
        cls, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack, watch: OpeningWatch = NO_WATCH
    ) -> Roles:
        """Recover, and be ready to dispatch requests. `identity` is registered as this node. Raises a
        `MainstemError` that names the obstacle."""
        return await _Opening(config, identity, ports, stack, watch).roles()

    def balance(self) -> None:
        """From now on lead what this node should lead, and hand it over at a stop. Call this last: clients
        come to a leader with their requests."""
        self._balance(self)


class _Start:
    """This start of the node, of which its next one knows whether it ended well."""

    def __init__(self, file: StartsFile) -> None:
        self.file = file
        self._storage: Storage | None = None

    def stores(self, storage: Storage) -> None:
        """The storage role is open: how it ends counts."""
        self._storage = storage

    async def end(self) -> None:
        """Note an orderly end; everything else is closed."""
        if self._storage is None or self._storage.write_loop.failure is not None:
            return
        try:
            await self.file.end_well()
        except MetadataUnavailable as error:
            log.warning("the next start does not know that this one ended well: %s", error)


class _Opening:
    """Opens the roles of one node, one after the other."""

    def __init__(
        self, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack, watch: OpeningWatch
    ) -> None:
        self._config = config
        self._identity = identity
        self._ports = ports
        self._stack = stack
        self._watch = watch
        self._turns = Turns()
        self._supervision = ports.supervision or Supervision(ports.clock.monotonic)
        self._background = Background(self._supervision, stack)

    async def roles(self) -> Roles:
        stack = self._stack
        start = await self._begin_start()
        nameserver = await self._metadata(start.file)
        served = ServedWriteGroups(nameserver.lookups.topics, nameserver.lookups.was_deleted, nameserver.waits.current)
        storage = await self._storage(start, nameserver, served)
        leadership = WriteGroupLeadership(
            self._config.node_id,
            storage.placement,
            storage.groups,
            nameserver.lookups.heard,
            nameserver.lookups.placements,
        )
        queue_admin = self._queue_admin(nameserver, storage, leadership)
        nameserver.when_found_late(storage.give_up)
        await storage.start()

        groups = self._groups(nameserver, storage, leadership, queue_admin)
        kept = nameserver.credentials(self._ports.random_bytes)
        await make_first_user(self._config.sasl, kept, self._ports, nameserver.waits.current)
        broker = self._broker(nameserver, storage, leadership, queue_admin, groups, kept)
        if nameserver.others is None:
            await served.settle(storage.queues)
        groups.served.start()
        served.subscribe(groups.served.serving_changed)
        nameserver.subscribe(partial(tell_consumer_groups, groups))
        stack.push_async_callback(groups.served.close)
        self._background.begin(partial(served.run, storage.queues), "served groups")
        if nameserver.others is not None:
            left_over = partial(storage.queues.left_over, nameserver.lookups.was_deleted)
            clock = self._ports.clock
            care = QueueCare(nameserver.lookups, leadership, storage.messages, queue_admin, clock, left_over)
            nameserver.subscribe(partial(look_after, care))
            self._background.begin(care.run, "queue care")
        stack.push_async_callback(broker.auto_creation.close)
        if broker.audit is not None:
            writer = AuditWriter(broker, broker.audit, self._config.audit, self._ports.side_work)
            stack.push_async_callback(writer.write)  # the last records
            self._background.begin(writer.run, "audit")
        routes = READ_ONLY_ROUTES if self._config.read_only else ROUTES
        dispatcher = await stack.enter_async_context(BrokerDispatcher(broker, routes, intake=storage.messages))
        return Roles(start.file, nameserver, storage, leadership, groups, dispatcher, self._background, self._balance)

    async def _begin_start(self) -> _Start:
        """Draw the nonce of this start, and begin to judge the starts of others, before this node says
        anything else."""
        config, ports = self._config, self._ports
        starts = await StartsFile.open(ports.write_files, config.node_id)
        self._stack.push_async_callback(starts.close)
        unsynced = config.journal.durability is Durability.ASYNC
        await starts.begin(config.node_id, ports.boot, ports.randomness().randbytes, acknowledges_unsynced=unsynced)
        ports.handlers.unary(SHOW_START, starts.answer)
        start = _Start(starts)
        self._stack.push_async_callback(start.end)
        return start

    async def _metadata(self, starts: StartsFile) -> Nameserver:
        """Open the cluster's metadata. Where there are other nodes this returns once a majority of them has
        met, and the write groups are placed."""
        config, ports = self._config, self._ports
        nameserver = await Nameserver.open(
            ports.write_files,
            ports.randomness(),
            config.nameserver if not config.shares_store else structs.replace(config.nameserver, remote_dir=""),
            self._identity,
            ports.connect if config.nameserver.peers else None,
            Facts(rpc_advertised(config), config.roles, mainstem.__version__, ports.levels),
            starts,
            self._supervision,
            self._condition,
        )
        self._stack.push_async_callback(nameserver.close)
        placed = asyncio.Event()
        nameserver.subscribe(lambda _event: placed.set() if nameserver.lookups.placements() else None)
        while not nameserver.lookups.placements():
            try:
                async with asyncio.timeout(WAITING_SECONDS):
                    await placed.wait()
            except TimeoutError:
                met = {node.node_id for node in nameserver.lookups.nodes()}
                absent = sorted(config.nameserver.peer_addresses.keys() - met)
                log.warning(
                    "a new cluster begins once all of nameserver.peers have met; it waits for node %s",
                    ", ".join(map(str, absent)),
                )
        log.info("cluster %s, %d topics", nameserver.lookups.cluster_id(), sum(1 for _ in nameserver.lookups.topics()))
        self._watch.metadata_opened(nameserver)
        return nameserver

    def _condition(self) -> Condition:
        """The state of disk 1, as heartbeats report it."""
        failure = self._supervision.disk_failure
        return Condition(f"disk 1 failed: {failure}; {DISK_REMEDY}" if failure is not None else "")

    async def _storage(self, start: _Start, nameserver: Nameserver, served: ServedWriteGroups) -> Storage:
        config, ports, others = self._config, self._ports, nameserver.others
        consensus = Consensus(
            node_id=config.node_id or NODE_ALONE,
            randomness=ports.randomness(),
            serving_changed=served.changed,
            quorum_times=lambda: nameserver.lookups.quorum_times() or [ports.clock.now_ms()],
        )
        if others is not None:
            consensus = replace(
                consensus,
                exchange=others.exchange,
                calls=others.calls,
                forgotten=start.file,
                placements=nameserver.lookups.placements,
                replicas=nameserver.lookups.placements(),
                leader_changed=lambda group, leader, term: (
                    nameserver.learned_leader(group, leader, term) if leader else None
                ),
            )
        remote_store, remote_url, remote_folder = None, "", ""
        if ports.remote_store is not None:
            remote_folder = nameserver.lookups.cluster_id()
            whole = ReadOnlyStore(ports.remote_store) if config.read_only else ports.remote_store
            remote_store = StoreFolder(whole, remote_folder)
            remote_url = str(parsed_url(config.objects_url).absolute())
        if config.shares_store:
            await self._check_level(nameserver)
        storage = await Storage.open(
            StorageSetup(
                write_files=ports.write_files,
                store_files=ports.store_files,
                clock=ports.clock,
                config=config.storage,
                journal_config=config.journal,
                store_config=config.queue_store,
                manifest_path=str(ports.write_dir / MANIFEST_NAME),
                journal_path=str(ports.write_dir / JOURNAL_DIRECTORY),
                slots=nameserver.lookups.slots(),
                topics=nameserver.lookups.topics,
                was_deleted=nameserver.lookups.was_deleted,
                consensus=consensus,
                feature_level=lambda: nameserver.lookups.feature_level,
                side_work=ports.side_work,
                turns=self._turns,
                supervision=self._supervision,
                new_id=ports.new_uuid,
                remote_store=remote_store,
                topics_as_of=nameserver.lookups.topics_as_of,
                read_cache_config=config.read_cache,
                remote_url=remote_url,
                remote_folder=remote_folder,
                remote_config=config.object_store,
                shared=config.shares_store,
                read_only=config.read_only,
            )
        )
        self._stack.push_async_callback(storage.close)
        storage.snapshots.register(ports.handlers)
        storage.departures.register(ports.handlers)
        storage.remote_recovery.register(ports.handlers)
        storage.rejoining.register(ports.handlers)
        storage.stretch_giving.register(ports.handlers)
        storage.damage.register(ports.handlers)
        storage.losses.register(ports.handlers)
        storage.producer_mending.register(ports.handlers)
        start.stores(storage)
        self._watch.storage_opened(storage)
        return storage

    async def _check_level(self, nameserver: Nameserver) -> None:
        """Raises `StoreUnsupported` where the cluster's logs may not yet say what lies in a shared store. A new cluster
        begins at a level at which they may; this node may only not have heard of it."""
        if nameserver.lookups.feature_level < FeatureLevel.TIERED:
            await nameserver.waits.current()
        if (level := nameserver.lookups.feature_level) < FeatureLevel.TIERED:
            raise StoreUnsupported(
                f"store_dir = {self._config.store_dir!r}: a shared store takes feature level {FeatureLevel.TIERED}, "
                f"and the cluster is at {level}. A shared store begins with a new cluster whose nodes all read that "
                "level"
            )

    def _queue_admin(self, nameserver: Nameserver, storage: Storage, leadership: WriteGroupLeadership) -> QueueAdmin:
        if nameserver.others is None:
            return storage.queues
        queue_admin = ClusterQueueAdmin(
            storage.queues,
            self._config.node_id,
            len(storage.groups),
            leadership.leader,
            nameserver.others.calls,
            self._ports.clock,
            nameserver.waits.deleted,
        )
        queue_admin.register(self._ports.handlers)
        return queue_admin

    def _groups(
        self, nameserver: Nameserver, storage: Storage, leadership: WriteGroupLeadership, queue_admin: QueueAdmin
    ) -> ConsumerGroupCoordinator:
        served = ServedPartitions(
            node_id=self._config.node_id,
            config=self._config.groups,
            metadata=nameserver.lookups,
            metadata_admin=nameserver.administration,
            leadership=leadership,
            store=storage.messages,
            queue_admin=queue_admin,
            clock=storage.agreed_clock,
            new_id=self._ports.new_id,
            metadata_current=nameserver.waits.current,
            feature_level=lambda: nameserver.lookups.feature_level,
            supervision=self._supervision,
        )
        return ConsumerGroupCoordinator(served)

    def _broker(
        self,
        nameserver: Nameserver,
        storage: Storage,
        leadership: WriteGroupLeadership,
        queue_admin: QueueAdmin,
        groups: ConsumerGroupCoordinator,
        kept: Credentials,
    ) -> Broker:
        config, ports = self._config, self._ports
        audit = AuditLog(config.audit, ports.clock) if config.audit.enabled else None
        return Broker(
            node_id=config.node_id,
            config=config.broker if not config.read_only else structs.replace(config.broker, auto_create_topics=False),
            metadata=nameserver.lookups,
            metadata_admin=nameserver.administration,
            cluster=nameserver.lookups,
            store=storage.messages,
            leadership=leadership,
            queue_admin=queue_admin,
            groups=groups,
            clock=ports.clock,
            authorizer=self._authorizer(nameserver, audit),
            acl_admin=nameserver.acl_administration if config.authorizer.enabled else None,
            audit=audit,
            throttling=Throttling(nameserver.lookups.quotas, ports.clock),
            quota_admin=nameserver.quota_administration,
            timestamps_now_ms=storage.agreed_clock.judged_ms,
            turns=self._turns,
            key_checks=KeyChecks(ports.side_work),
            supervision=self._supervision,
            response_room=ports.response_room,
            credentials=kept,
            authenticator=authenticator_of(config, ports, kept),
            sasl_mechanisms=config.sasl_mechanisms,
            fetch_sessions=FetchSessions(
                sessions_max=config.broker.fetch_sessions_max,
                idle_ms_min=config.broker.fetch_session_idle_ms_min,
                partitions_max=config.broker.fetch_session_partitions_max,
                random=ports.randomness(),
            ),
            facts=NodeFacts(
                topic_defaults=nameserver.lookups.topic_defaults(),
                write_dir=LogDir(str(ports.write_dir), ports.write_files),
                store_dir=(
                    LogDir(config.shared_store_place, is_shared=True)
                    if config.shared_store_place is not None
                    else LogDir(str(ports.store_dir), ports.store_files)
                ),
                has_remote_store=bool(config.remote_dir) and not config.shares_store,
                listeners=(
                    *config.listen,
                    *(f"{name}://{each.listen}" for name, each in config.server.listeners.items()),
                ),
                advertised=str(Address(self._identity.host, self._identity.port)),
                rack=config.rack,
                replication_factor=config.nameserver.replication_factor,
            ),
        )

    def _authorizer(self, nameserver: Nameserver, audit: AuditLog | None) -> Authorizer | None:
        config = self._config.authorizer
        if not config.enabled:
            return None
        told = None if audit is None else VerdictAudit(audit)
        return Authorizer(config, nameserver.lookups.acls, nameserver.lookups.unheard_seconds, told)

    def _balance(self, roles: Roles) -> None:
        nameserver, storage = roles.nameserver, roles.storage
        if nameserver.others is None:
            return
        balance = LeaderBalance(
            self._config.node_id,
            storage.groups,
            nameserver.lookups.preferred_leader,
            lambda node_id: nameserver.lookups.verdict(node_id).state is NodeState.ALIVE,
            lambda: storage.messages.refusing or storage.write_loop.out_of_space,
            storage.repair.unfit,
        )
        steps = MembershipSteps(
            self._config.node_id,
            storage.groups,
            nameserver.lookups.placements,
            lambda node_id: nameserver.lookups.verdict(node_id).state is NodeState.ALIVE,
            storage.replication.take_part,
            storage.departures.look,
            self._ports.clock,
        )
        self._stack.push_async_callback(balance.hand_over)
        self._background.begin(balance.run, "leader balance")
        self._background.begin(steps.run, "membership steps")


def look_after(care: QueueCare, event: Event) -> None:
    """Listens to the nameserver: has the care check the queues of changed topics."""
    if isinstance(event, (TopicCreated, PartitionsAdded, TopicDeleted)):
        care.changed(event.topic)


def tell_consumer_groups(groups: ConsumerGroupCoordinator, event: Event) -> None:
    """Listens to the nameserver: the offsets committed for a topic go when it is deleted, on whichever
    node."""
    if isinstance(event, TopicDeleted):
        groups.topic_deleted(event.topic)
    elif isinstance(event, FeatureLevelRaised):
        groups.level_raised()


def rpc_advertised(config: NodeConfig) -> str:
    """The address at which other nodes reach this one: as the list of peers has it, which may differ from the
    one to listen on."""
    return config.nameserver.peers.get(str(config.node_id), config.rpc)
