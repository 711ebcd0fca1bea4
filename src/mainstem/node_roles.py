"""The roles of a node, wired together on the ports they are given: everything of a node but its listeners.

`node` hands in disks, sockets and the time of the machine; a whole node runs as well on simulated ones. Nothing is
decided here but who holds whom, and in which order they start.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import mainstem
from mainstem.broker.broker import Broker, UnboundedRoom
from mainstem.broker.dispatcher import BrokerDispatcher
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.groups.coordinator import GroupCoordinator
from mainstem.broker.key_checks import KeyChecks
from mainstem.broker.node_facts import LogDir, NodeFacts
from mainstem.broker.queue_care import QueueCare
from mainstem.config import NodeConfig
from mainstem.model import OWN_LEVELS, Durability, LevelRange, Node, Topic
from mainstem.nameserver.cluster_ports import ClusterPorts, Connect, Facts
from mainstem.nameserver.commands import (
    Event,
    FeatureLevelRaised,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.liveness import State
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.starts_file import StartsFile
from mainstem.ports import Clock, Files, QueueAdmin, ResponseRoom, SideWork
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.starts import SHOW_START
from mainstem.side_thread import AtOnce
from mainstem.storage.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.leader_balance import LeaderBalance
from mainstem.storage.leadership import GroupLeadership
from mainstem.storage.membership_steps import MembershipSteps
from mainstem.storage.queue_admin import LocalQueueAdmin
from mainstem.storage.replication import Consensus
from mainstem.storage.role import Storage, stop
from mainstem.supervised import Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)

WAITING_SECONDS = 5.0
"""Nodes that are started together have met by then; afterwards the log says who is missing, as often."""

MANIFEST_NAME = "manifest.sqlite"
JOURNAL_DIRECTORY = "journal"

SETTLING_PAUSE_SECONDS = 0.5
"""Between two tries while the metadata has no leader."""

NODE_ALONE = 1
"""Members of a write group are numbered from 1: a node 0, which can only be a cluster of its own, goes by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """What a node stands on."""

    clock: Clock
    randomness: Callable[[], random.Random]
    """Each caller gets one of its own."""
    new_id: Callable[[], str]
    """A text that nobody was given before."""
    write_files: Files
    store_files: Files
    write_dir: Path
    """Where `write_files` are, for who opens them by name: sqlite, and splitters on this host."""
    store_dir: Path
    handlers: Handlers
    """Takes what other nodes and splitters may ask."""
    connect: Connect | None
    """To the other nodes; None: there are none."""
    side_work: SideWork = field(default_factory=AtOnce)
    """Where compressed batches are looked into."""
    supervision: Supervision | None = None
    """Of all that goes on in the background; None: one of the roles' own."""
    boot: str = ""
    """Tells this start of the machine from any other; empty: that cannot be known."""
    response_room: ResponseRoom = field(default_factory=UnboundedRoom)
    levels: LevelRange = OWN_LEVELS
    """The feature levels that this node's program can work at."""


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
        """The ways to the other nodes; None: there are none."""
        self._turns = Turns()
        self.supervision = ports.supervision or Supervision(ports.clock.monotonic)
        self.tasks: list[asyncio.Task[None]] = []
        """What goes on in the background, that of the roles themselves excepted."""

    @classmethod
    async def open(
        cls, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack
    ) -> Roles:
        """Recover, and be ready to dispatch requests. `identity` is what the node registers as. Raises a
        `MainstemError` that says what stands in the way."""
        roles = cls(config, identity, ports, stack)
        await roles._open()
        return roles

    async def _open(self) -> None:
        config, ports, stack = self._config, self._ports, self._stack
        self._starts = await self._begin_start()
        nameserver = self.nameserver = await self._open_metadata()
        served = ServedGroups(nameserver.topics, nameserver.was_deleted, nameserver.current)
        storage = self.storage = await self._open_storage(served)
        leadership = self.leadership = GroupLeadership(
            config.node_id,
            storage.placement,
            storage.groups,
            partial(heard, nameserver),
            nameserver.placements,
        )
        queue_admin = self._queue_admin()
        nameserver.when_found_late(storage.give_up)
        await storage.start()

        groups = self.groups = GroupCoordinator(
            node_id=config.node_id,
            config=config.groups,
            metadata=nameserver,
            metadata_admin=nameserver,
            leadership=leadership,
            store=storage.messages,
            queue_admin=queue_admin,
            clock=storage.agreed_clock,
            new_id=ports.new_id,
            metadata_current=nameserver.current,
            feature_level=lambda: nameserver.feature_level,
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
            left_over = partial(storage.queues.left_over, nameserver.was_deleted)
            care = QueueCare(nameserver, leadership, storage.messages, queue_admin, ports.clock, left_over)
            nameserver.subscribe(partial(look_after, care))
            self._begin(care.run, "queue care")
        stack.push_async_callback(broker.auto_creation.close)
        self.dispatcher = await stack.enter_async_context(BrokerDispatcher(broker, intake=storage.messages))

    async def _begin_start(self) -> StartsFile:
        """Draw the nonce of this start, and answer others that show theirs, before anything else is said."""
        config, ports = self._config, self._ports
        starts = await StartsFile.open(ports.write_files, config.node_id)
        self._stack.push_async_callback(starts.close)
        unsynced = config.journal.durability is Durability.ASYNC
        await starts.begin(
            config.node_id, ports.boot, ports.randomness().randbytes, acknowledges_unsynced=unsynced
        )
        ports.handlers.unary(SHOW_START, starts.answer)
        self._stack.push_async_callback(self._end_well)
        return starts

    async def _end_well(self) -> None:
        """Everything else is closed."""
        storage = getattr(self, "storage", None)
        if storage is None or storage.write_loop.failure is not None:
            return
        try:
            await self._starts.end_well()
        except MetadataUnavailable as error:
            log.warning("the next start does not know that this one ended well: %s", error)

    async def _open_metadata(self) -> Nameserver:
        """The cluster's metadata. Where there are other nodes this returns once a majority of them has met, and the
        write groups have their places."""
        config, ports = self._config, self._ports
        nameserver = await Nameserver.open(
            ports.write_files,
            ports.randomness(),
            config.nameserver,
            self._identity,
            self._meet if config.nameserver.peers else None,
            Facts(rpc_advertised(config), config.roles, mainstem.__version__, ports.levels),
            self._starts,
        )
        self._stack.push_async_callback(nameserver.close)
        placed = asyncio.Event()
        nameserver.subscribe(lambda _event: placed.set() if nameserver.placements() else None)
        while not nameserver.placements():
            try:
                async with asyncio.timeout(WAITING_SECONDS):
                    await placed.wait()
            except TimeoutError:
                met = {node.node_id for node in nameserver.nodes()}
                absent = sorted(config.nameserver.peer_addresses.keys() - met)
                log.warning(
                    "a new cluster begins once all of nameserver.peers have met; it waits for node %s",
                    ", ".join(map(str, absent)),
                )
        log.info("cluster %s, %d topics", nameserver.cluster_id(), sum(1 for _ in nameserver.topics()))
        return nameserver

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
            quorum_times=lambda: nameserver.quorum_times() or [ports.clock.now_ms()],
        )
        if others is not None:
            consensus = replace(
                consensus,
                exchange=others.exchange,
                calls=others.calls,
                forgotten=self._starts,
                placements=nameserver.placements,
                replicas=nameserver.placements(),
                leader_changed=lambda group, leader, term: (
                    nameserver.learned_leader(group, leader, term) if leader else None
                ),
            )
        storage = await Storage.open(
            write_files=ports.write_files,
            store_files=ports.store_files,
            clock=ports.clock,
            config=config.storage,
            journal_config=config.journal,
            store_config=config.queue_store,
            manifest_path=str(ports.write_dir / MANIFEST_NAME),
            journal_path=str(ports.write_dir / JOURNAL_DIRECTORY),
            slots=nameserver.slots(),
            topics=nameserver.topics,
            was_deleted=nameserver.was_deleted,
            consensus=consensus,
            feature_level=lambda: nameserver.feature_level,
            side_work=ports.side_work,
            turns=self._turns,
            supervision=self.supervision,
        )
        self._stack.push_async_callback(storage.close)
        storage.snapshots.register(ports.handlers)
        storage.departures.register(ports.handlers)
        storage.rejoining.register(ports.handlers)
        storage.repair.register(ports.handlers)
        storage.damage.register(ports.handlers)
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
            self.nameserver.deleted,
        )
        queue_admin.register(self._ports.handlers)
        return queue_admin

    def _broker(self, queue_admin: QueueAdmin) -> Broker:
        config, ports, nameserver = self._config, self._ports, self.nameserver
        return Broker(
            node_id=config.node_id,
            config=config.broker,
            metadata=nameserver,
            metadata_admin=nameserver,
            cluster=nameserver,
            store=self.storage.messages,
            leadership=self.leadership,
            queue_admin=queue_admin,
            groups=self.groups,
            clock=ports.clock,
            timestamps_now_ms=self.storage.agreed_clock.steady_ms,
            turns=self._turns,
            key_checks=KeyChecks(ports.side_work),
            response_room=ports.response_room,
            fetch_sessions=FetchSessions(
                sessions_max=config.broker.fetch_sessions_max,
                idle_ms_min=config.broker.fetch_session_idle_ms_min,
                partitions_max=config.broker.fetch_session_partitions_max,
                random=ports.randomness(),
            ),
            facts=NodeFacts(
                topic_defaults=nameserver.topic_defaults(),
                write_dir=LogDir(str(ports.write_dir), ports.write_files),
                store_dir=LogDir(str(ports.store_dir), ports.store_files),
                listeners=config.listen,
                advertised=f"{self._identity.host}:{self._identity.port}",
                rack=config.rack,
                replication_factor=config.nameserver.replication_factor,
            ),
        )

    def balance(self) -> None:
        """From now on lead what this node should lead, and nothing when it stops. Last of all: whom it leads come to
        it with their requests."""
        if self._others is None:
            return
        nameserver, storage = self.nameserver, self.storage
        balance = LeaderBalance(
            self._config.node_id,
            storage.groups,
            nameserver.preferred_leader,
            lambda node_id: nameserver.verdict(node_id).state is State.ALIVE,
            lambda: storage.messages.refusing or storage.write_loop.out_of_space,
            storage.repair.unfit,
        )
        steps = MembershipSteps(
            self._config.node_id,
            storage.groups,
            nameserver.placements,
            lambda node_id: nameserver.verdict(node_id).state is State.ALIVE,
            storage.replication.take_part,
            storage.departures.look,
            self._ports.clock,
        )
        self._stack.push_async_callback(balance.hand_over)
        self._begin(balance.run, "leader balance")
        self._begin(steps.run, "membership steps")

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Have a task do it until the node stops."""
        task = self.supervision.start(work, name)
        self.tasks.append(task)
        self._stack.push_async_callback(stop, [task])


class ServedGroups:
    """What a node does when it begins to serve a write group: it settles the group's queues."""

    def __init__(
        self,
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        current: Callable[[], Awaitable[None]],
    ) -> None:
        """`current` returns once this node knows all that the metadata was before the call."""
        self._topics = topics
        self._was_deleted = was_deleted
        self._current = current
        self._new: set[int] = set()
        self._wake = asyncio.Event()
        self.listeners: list[Callable[[int, bool], None]] = []
        """Told of every change within the turn in which it happens."""

    def changed(self, group: int, serving: bool) -> None:
        for listener in self.listeners:
            listener(group, serving)
        if serving:
            self._new.add(group)
            self._wake.set()
        else:
            self._new.discard(group)

    async def settle(self, queues: LocalQueueAdmin) -> None:
        """Settle the queues of all groups that are newly served, by metadata that is at least as new: an older one,
        which a node begins with, would bring queues back that were deleted since. Raises `MetadataUnavailable`."""
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
        """Settle whatever comes to be served, until cancelled or the disk fails."""
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


def heard(nameserver: Nameserver, group: int) -> tuple[int, int]:
    """Who leads a write group, as other nodes have told, and in which term; -1: nobody told."""
    known = nameserver.group_leaders().get(group)
    return nameserver.group_leader(group), -1 if known is None else known.term


def look_after(care: QueueCare, event: Event) -> None:
    """A listener of the nameserver."""
    if isinstance(event, (TopicCreated, PartitionsAdded, TopicDeleted)):
        care.changed(event.topic)


def tell_groups(groups: GroupCoordinator, event: Event) -> None:
    """A listener of the nameserver: what is committed of a topic goes with it, on whatever node it was deleted."""
    if isinstance(event, TopicDeleted):
        groups.topic_deleted(event.topic)
    elif isinstance(event, FeatureLevelRaised):
        groups.level_raised()


def rpc_advertised(config: NodeConfig) -> str:
    """Where other nodes reach this one: as the list of peers has it, which may be another address than the one to
    listen on."""
    return config.nameserver.peers.get(str(config.node_id), config.rpc)
