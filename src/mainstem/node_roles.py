"""The roles of a node, wired together on the ports they are given: everything of a node but its listeners.

`node` hands in disks, sockets and the time of the machine; a whole node runs as well on simulated ones. This module
decides nothing but which part gets which, and the order in which they start.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mainstem
from mainstem.address import Address
from mainstem.broker.broker import Broker, LogDir, NodeFacts, UnboundedRoom
from mainstem.broker.dispatcher import BrokerDispatcher
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.groups.coordinator import GroupCoordinator
from mainstem.broker.key_checks import KeyChecks
from mainstem.broker.queue_care import QueueCare
from mainstem.config import NodeConfig
from mainstem.errors import DISK_REMEDY
from mainstem.model import OWN_LEVELS, Durability, LevelRange, Node, Topic
from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.cluster_ports import ClusterPorts, Connect, Facts
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
from mainstem.ports import Clock, Files, QueueAdmin, ResponseRoom, SideWork
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.starts import SHOW_START
from mainstem.rpc.wire.identity import Identity
from mainstem.side_thread import AtOnce
from mainstem.storage.cluster.leader_balance import LeaderBalance
from mainstem.storage.cluster.membership_steps import MembershipSteps
from mainstem.storage.cluster.queue_leadership import GroupLeadership
from mainstem.storage.cluster.replication import Consensus
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.queues.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.queues.queue_admin import LocalQueueAdmin
from mainstem.storage.role import Storage, stop
from mainstem.storage.setup import StorageSetup
from mainstem.supervised import Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)

WAITING_SECONDS = 5.0
"""Seconds in which nodes that start together have met; after that the log names the missing ones, again and
again."""

MANIFEST_NAME = "manifest.sqlite"
JOURNAL_DIRECTORY = "journal"

SETTLING_PAUSE_SECONDS = 0.5
"""Seconds between two tries while the metadata has no leader."""

NODE_ALONE = 1
"""Raft numbers members from 1: a node 0, which can only be a cluster of its own, goes by this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """The disks, clock, randomness and network that a node's roles run on."""

    clock: Clock
    randomness: Callable[[], random.Random]
    """A random source; each caller gets one of its own."""
    new_id: Callable[[], str]
    """A text that was never given before."""
    new_uuid: Callable[[], uuid.UUID] = uuid.uuid4
    write_files: Files
    store_files: Files
    write_dir: Path
    """The directory of `write_files`, for parts that open files by name: sqlite, and splitters on this
    host."""
    store_dir: Path
    handlers: Handlers
    """The table of calls that other nodes and splitters may make."""
    connect: Connect | None
    """Connects to the other nodes; None: there are none."""
    side_work: SideWork = field(default_factory=AtOnce)
    """Checks compressed batches beside the event loop."""
    supervision: Supervision | None = None
    """Watches all background tasks; None: the roles make one of their own."""
    boot: str = ""
    """An id of the machine's present boot; empty: it cannot be known."""
    response_room: ResponseRoom = field(default_factory=UnboundedRoom)
    levels: LevelRange = OWN_LEVELS
    """The feature levels at which this node's program can work."""


class Roles:
    """Nameserver, storage and broker of one node. Made by `open`; closed by the stack they were opened on."""

    nameserver: Nameserver
    storage: Storage
    leadership: GroupLeadership
    groups: GroupCoordinator
    dispatcher: BrokerDispatcher

    def __init__(self, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack) -> None:
        self._config = config
        self._identity = identity
        self._ports = ports
        self._stack = stack
        self._others: ClusterPorts | None = None
        """The calls and messages to the other nodes; None: there are none."""
        self._turns = Turns()
        self.supervision = ports.supervision or Supervision(ports.clock.monotonic)
        self.tasks: list[asyncio.Task[None]] = []
        """Runs the background tasks, except those of the roles themselves."""

    @classmethod
    async def open(cls, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack) -> Roles:
        """Recover, and be ready to dispatch requests. `identity` is registered as this node. Raises a
        `MainstemError` that names the obstacle."""
        roles = cls(config, identity, ports, stack)
        await roles._open()
        return roles

    async def _open(self) -> None:
        config, ports, stack = self._config, self._ports, self._stack
        self.starts = await self._begin_start()
        nameserver = self.nameserver = await self._open_metadata()
        served = ServedGroups(nameserver.lookups.topics, nameserver.lookups.was_deleted, nameserver.waits.current)
        storage = self.storage = await self._open_storage(served)
        leadership = self.leadership = GroupLeadership(
            config.node_id,
            storage.placement,
            storage.groups,
            nameserver.lookups.heard,
            nameserver.lookups.placements,
        )
        queue_admin = self._queue_admin()
        nameserver.when_found_late(storage.give_up)
        await storage.start()

        groups = self.groups = GroupCoordinator(
            node_id=config.node_id,
            config=config.groups,
            metadata=nameserver.lookups,
            metadata_admin=nameserver.administration,
            leadership=leadership,
            store=storage.messages,
            queue_admin=queue_admin,
            clock=storage.agreed_clock,
            new_id=ports.new_id,
            metadata_current=nameserver.waits.current,
            feature_level=lambda: nameserver.lookups.feature_level,
            supervision=self.supervision,
        )
        broker = self._broker(queue_admin)
        if self._others is None:
            await served.settle(storage.queues)
        await groups.start()
        served.listeners.append(groups.serving_changed)
        nameserver.subscribe(partial(tell_groups, groups))
        stack.push_async_callback(groups.close)
        self._begin(partial(served.run, storage.queues), "served groups")
        if self._others is not None:
            left_over = partial(storage.queues.left_over, nameserver.lookups.was_deleted)
            care = QueueCare(nameserver.lookups, leadership, storage.messages, queue_admin, ports.clock, left_over)
            nameserver.subscribe(partial(look_after, care))
            self._begin(care.run, "queue care")
        stack.push_async_callback(broker.auto_creation.close)
        self.dispatcher = await stack.enter_async_context(BrokerDispatcher(broker, intake=storage.messages))

    async def _begin_start(self) -> StartsFile:
        """Draw the nonce of this start, and begin to judge the starts of others, before this node says
        anything else."""
        config, ports = self._config, self._ports
        starts = await StartsFile.open(ports.write_files, config.node_id)
        self._stack.push_async_callback(starts.close)
        unsynced = config.journal.durability is Durability.ASYNC
        await starts.begin(config.node_id, ports.boot, ports.randomness().randbytes, acknowledges_unsynced=unsynced)
        ports.handlers.unary(SHOW_START, starts.answer)
        self._stack.push_async_callback(self._end_well)
        return starts

    async def _end_well(self) -> None:
        """Note an orderly end; everything else is closed."""
        storage = getattr(self, "storage", None)
        if storage is None or storage.write_loop.failure is not None:
            return
        try:
            await self.starts.end_well()
        except MetadataUnavailable as error:
            log.warning("the next start does not know that this one ended well: %s", error)

    async def _open_metadata(self) -> Nameserver:
        """Open the cluster's metadata. Where there are other nodes this returns once a majority of them has
        met, and the write groups are placed."""
        config, ports = self._config, self._ports
        nameserver = await Nameserver.open(
            ports.write_files,
            ports.randomness(),
            config.nameserver,
            self._identity,
            self._meet if config.nameserver.peers else None,
            Facts(rpc_advertised(config), config.roles, mainstem.__version__, ports.levels),
            self.starts,
            self.supervision,
        )
        self._stack.push_async_callback(nameserver.close)
        nameserver.report_condition(self._condition)
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
        return nameserver

    def _condition(self) -> Condition:
        """The state of disk 1, as heartbeats report it."""
        failure = self.supervision.disk_failure
        return Condition(f"disk 1 failed: {failure}; {DISK_REMEDY}" if failure is not None else "")

    async def _meet(self, node: Identity) -> ClusterPorts:
        assert self._ports.connect is not None, "nodes of a cluster are connected"
        self._others = await self._ports.connect(node)
        return self._others

    async def _open_storage(self, served: ServedGroups) -> Storage:
        config, ports, others, nameserver = self._config, self._ports, self._others, self.nameserver
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
                forgotten=self.starts,
                placements=nameserver.lookups.placements,
                replicas=nameserver.lookups.placements(),
                leader_changed=lambda group, leader, term: (
                    nameserver.learned_leader(group, leader, term) if leader else None
                ),
            )
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
                supervision=self.supervision,
                new_id=ports.new_uuid,
            )
        )
        self._stack.push_async_callback(storage.close)
        storage.snapshots.register(ports.handlers)
        storage.departures.register(ports.handlers)
        storage.rejoining.register(ports.handlers)
        storage.repair.register(ports.handlers)
        storage.damage.register(ports.handlers)
        storage.losses.register(ports.handlers)
        storage.producer_mending.register(ports.handlers)
        return storage

    def _queue_admin(self) -> QueueAdmin:
        if self._others is None:
            return self.storage.queues
        queue_admin = ClusterQueueAdmin(
            self.storage.queues,
            self._config.node_id,
            len(self.storage.groups),
            self.leadership.leader,
            self._others.calls,
            self._ports.clock,
            self.nameserver.waits.deleted,
        )
        queue_admin.register(self._ports.handlers)
        return queue_admin

    def _broker(self, queue_admin: QueueAdmin) -> Broker:
        config, ports, nameserver = self._config, self._ports, self.nameserver
        return Broker(
            node_id=config.node_id,
            config=config.broker,
            metadata=nameserver.lookups,
            metadata_admin=nameserver.administration,
            cluster=nameserver.lookups,
            store=self.storage.messages,
            leadership=self.leadership,
            queue_admin=queue_admin,
            groups=self.groups,
            clock=ports.clock,
            timestamps_now_ms=self.storage.agreed_clock.judged_ms,
            turns=self._turns,
            key_checks=KeyChecks(ports.side_work),
            supervision=self.supervision,
            response_room=ports.response_room,
            fetch_sessions=FetchSessions(
                sessions_max=config.broker.fetch_sessions_max,
                idle_ms_min=config.broker.fetch_session_idle_ms_min,
                partitions_max=config.broker.fetch_session_partitions_max,
                random=ports.randomness(),
            ),
            facts=NodeFacts(
                topic_defaults=nameserver.lookups.topic_defaults(),
                write_dir=LogDir(str(ports.write_dir), ports.write_files),
                store_dir=LogDir(str(ports.store_dir), ports.store_files),
                listeners=config.listen,
                advertised=str(Address(self._identity.host, self._identity.port)),
                rack=config.rack,
                replication_factor=config.nameserver.replication_factor,
            ),
        )

    def balance(self) -> None:
        """From now on lead what this node should lead, and hand it over at a stop. Call this last: clients
        come to a leader with their requests."""
        if self._others is None:
            return
        nameserver, storage = self.nameserver, self.storage
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
        self._begin(balance.run, "leader balance")
        self._begin(steps.run, "membership steps")

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run a background task until the node stops."""
        task = self.supervision.start(work, name)
        self.tasks.append(task)
        self._stack.push_async_callback(stop, [task])


class ServedGroups:
    """Settles the queues of each write group that this node begins to serve."""

    def __init__(
        self,
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        current: Callable[[], Awaitable[None]],
    ) -> None:
        """`current` returns once this node knows all changes of the metadata made before the call."""
        self._topics = topics
        self._was_deleted = was_deleted
        self._current = current
        self._new: set[int] = set()
        self._wake = asyncio.Event()
        self.listeners: list[Callable[[int, bool], None]] = []
        """Called with every change within the turn in which it happens."""

    def changed(self, group: int, serving: bool) -> None:
        for listener in self.listeners:
            listener(group, serving)
        if serving:
            self._new.add(group)
            self._wake.set()
        else:
            self._new.discard(group)

    async def settle(self, queues: LocalQueueAdmin) -> None:
        """Settle the queues of all newly served write groups, by metadata that is at least as new: older
        metadata, as a node begins with, would bring back deleted queues. Raises `MetadataUnavailable`."""
        while self._new:
            group = self._new.pop()
            try:
                await self._current()
                await queues.settle(group, self._topics(), self._was_deleted)
            except NotTheLeader:  # not any more
                continue
            except MetadataUnavailable:
                self._new.add(group)
                raise

    async def run(self, queues: LocalQueueAdmin) -> None:
        """Settle each newly served write group, until cancelled or the disk fails."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.settle(queues)
            except MetadataUnavailable as error:
                log.debug("queues of newly led write groups are settled later: %s", error)
                await asyncio.sleep(SETTLING_PAUSE_SECONDS)
                self._wake.set()
            except StorageFailed:
                return


def look_after(care: QueueCare, event: Event) -> None:
    """Listens to the nameserver: has the care check the queues of changed topics."""
    if isinstance(event, (TopicCreated, PartitionsAdded, TopicDeleted)):
        care.changed(event.topic)


def tell_groups(groups: GroupCoordinator, event: Event) -> None:
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
