"""A node: the roles wired together, started in the order they need each other and closed in reverse.

This and `config.py` are the only places that see the whole configuration. Nothing is decided here but who
holds whom: the server gets a dispatcher, the broker gets ports, the console gets views.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import mainstem
from mainstem.broker.broker import Broker
from mainstem.broker.dispatcher import BrokerDispatcher
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.groups.coordinator import GroupCoordinator
from mainstem.broker.node_facts import LogDir, NodeFacts
from mainstem.broker.queue_care import QueueCare
from mainstem.config import NodeConfig
from mainstem.console.application import Console
from mainstem.console.server import ConsoleServer
from mainstem.errors import MainstemError
from mainstem.heap import Heap
from mainstem.model import Node, Topic
from mainstem.nameserver.cluster_ports import ClusterPorts, Facts
from mainstem.nameserver.commands import Event, PartitionsAdded, TopicCreated, TopicDeleted
from mainstem.nameserver.liveness import State
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node_reports import NodeReports
from mainstem.node_views import LocalNodeViews
from mainstem.pipeline.supervisor import SplitSupervisor
from mainstem.ports import QueueAdmin, Statistics
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.identity import Identity
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.server import Server as RpcServer
from mainstem.rpc.tls import context as tls_context
from mainstem.server.addresses import parse_address
from mainstem.server.server import Server
from mainstem.storage.cluster_queue_admin import ClusterQueueAdmin
from mainstem.storage.disk_files import DiskFiles
from mainstem.storage.errors import NotTheLeader, StorageFailed
from mainstem.storage.leader_balance import LeaderBalance
from mainstem.storage.leadership import GroupLeadership
from mainstem.storage.membership_steps import MembershipSteps
from mainstem.storage.queue_admin import LocalQueueAdmin
from mainstem.storage.replication import Consensus
from mainstem.storage.role import Storage, stop
from mainstem.storage.split_lease import SplitLease
from mainstem.storage.split_service import SplitService

log = logging.getLogger(__name__)

LOCK_NAME = "node.lock"
MANIFEST_NAME = "manifest.sqlite"
JOURNAL_DIRECTORY = "journal"

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread keeps the interpreter: the default of 5 ms makes the event loop wait that long for the
reading thread (measured: p99 6.2 against 1.7 ms)."""


NODE_ALONE = 1
"""Members of a write group are numbered from 1: a node 0, which can only be a cluster of its own, goes by this."""


class SystemClock:
    """`ports.Clock` of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # several times per request: a call less


class Addresses(NamedTuple):
    """Where a started node is reached."""

    kafka: str
    http: str
    rpc: str
    node_id: int


class DirectoryInUse(MainstemError):
    """Another node runs on this directory."""


class StoreUnsupported(MainstemError):
    """A `store_dir` this version cannot use."""


class RunningNode:
    """A node from `start` to `close`."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._clock = SystemClock()
        self._handlers = Handlers()
        self._end: NodeEnd | None = None
        """What other nodes know of this one; None: there are no others."""

    async def start(self) -> Addresses:
        """Recover, listen, and accept clients. Raises a `MainstemError` that says what stands in the way; what
        had been started is closed again."""
        heap = Heap()
        heap.start()
        try:
            return await self._start(heap)
        except BaseException:
            await self._stack.aclose()
            raise
        finally:
            heap.started()

    async def close(self) -> None:
        """Stop accepting, finish what is in flight, write what was appended, close everything."""
        await self._stack.aclose()

    async def _start(self, heap: Heap) -> Addresses:
        config, stack, clock = self._config, self._stack, self._clock
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        write_dir, store_dir = directory(config.write_dir), store_directory(config.store_dir)
        stack.callback(os.close, lock(write_dir))

        server = Server(config.server, clock)
        server.bind()
        stack.push_async_callback(server.close)
        advertised = server.advertised
        identity = Node(node_id=config.node_id, host=advertised.host, port=advertised.port)

        write_files, store_files = DiskFiles(write_dir), DiskFiles(store_dir)
        stack.push_async_callback(write_files.close)
        stack.push_async_callback(store_files.close)
        nameserver = await self._open_metadata(write_files, identity)
        nameserver.subscribe(heap.topic_changed)
        served = ServedGroups(nameserver.topics, nameserver.was_deleted)
        storage = await self._open_storage(nameserver, write_files, store_files, write_dir, served)
        leadership = GroupLeadership(
            config.node_id,
            storage.placement,
            storage.groups,
            partial(heard, nameserver),
            nameserver.placements,
        )
        queue_admin = self._queue_admin(storage, leadership)
        await storage.start()

        groups = GroupCoordinator(
            node_id=config.node_id,
            config=config.groups,
            metadata=nameserver,
            metadata_admin=nameserver,
            leadership=leadership,
            store=storage.messages,
            queue_admin=queue_admin,
            clock=clock,
        )
        broker = Broker(
            node_id=config.node_id,
            config=config.broker,
            metadata=nameserver,
            metadata_admin=nameserver,
            cluster=nameserver,
            store=storage.messages,
            leadership=leadership,
            queue_admin=queue_admin,
            groups=groups,
            clock=clock,
            fetch_sessions=FetchSessions(
                sessions_max=config.broker.fetch_sessions_max,
                idle_ms_min=config.broker.fetch_session_idle_ms_min,
                partitions_max=config.broker.fetch_session_partitions_max,
                random=random.SystemRandom(),
            ),
            facts=NodeFacts(
                topic_defaults=nameserver.topic_defaults(),
                write_dir=LogDir(str(write_dir), write_files),
                store_dir=LogDir(str(store_dir), store_files),
            ),
        )
        await served.settle(storage.queues)
        await groups.start()
        served.listeners.append(groups.serving_changed)
        nameserver.subscribe(partial(forget_deleted, groups))
        stack.push_async_callback(groups.close)
        background = [asyncio.create_task(served.run(storage.queues), name="served groups")]
        if self._end is not None:
            care = QueueCare(nameserver, leadership, storage.messages, queue_admin, clock)
            nameserver.subscribe(partial(look_after, care))
            background.append(asyncio.create_task(care.run(), name="queue care"))
        stack.push_async_callback(stop, background)
        dispatcher = await stack.enter_async_context(BrokerDispatcher(broker))

        split = SplitService(
            storage.split_log,
            clock,
            SplitLease(clock, storage.hard_states.sequence, lambda: uuid.uuid4().hex),
            storage.pacing,
            lambda: storage.messages.appended_bytes,
        )
        stack.push_async_callback(split.close)
        split.register(self._handlers)
        rpc_address = await self._listen_for_calls()

        reports = NodeReports(config.node_id, storage, self._end.calls if self._end is not None else None)
        reports.register(self._handlers)
        supervisor = SplitSupervisor(
            config.pipeline, split, store_dir=str(store_dir), clock=clock, tls=config.rpc_tls
        )
        views = LocalNodeViews(
            config=config,
            nameserver=nameserver,
            storage=storage,
            split=split,
            supervisor=supervisor,
            write_dir=write_dir,
            store_dir=store_dir,
            rpc=rpc_address,
            node=identity,
            reports=reports,
            leader_of=leadership.leader,
        )
        measured: list[Statistics] = [server, dispatcher, groups, nameserver, storage]
        if self._end is not None:
            measured.append(self._end.exchange)
        console = ConsoleServer(Console(views, measured, config.console).application(), config.console)
        http_configured = parse_address(config.http)
        http_host, http_port = console.bind(http_configured.host, http_configured.port)
        console_task = asyncio.create_task(console.serve(), name="console")
        stack.push_async_callback(finish, console_task, console)
        await supervisor.start(node=f"http://{http_host}:{http_port}")
        stack.push_async_callback(supervisor.close)
        log.info("splitter %s (%s)", supervisor.state, config.pipeline.master)

        await server.start(dispatcher)
        stack.push_async_callback(server.close)  # again, and first: what is in flight needs all of the above
        reports.http = f"{http_host}:{http_port}"
        views.ready = True
        if self._end is not None:
            self._balance(storage, nameserver)
        return Addresses(
            f"{advertised.host}:{advertised.port}",
            f"{http_host}:{http_port}",
            f"{rpc_address[0]}:{rpc_address[1]}",
            config.node_id,
        )

    async def _open_metadata(self, files: DiskFiles, identity: Node) -> Nameserver:
        """The cluster's metadata. Where there are other nodes this returns once a majority of them has met, and the
        write groups have their places."""
        config = self._config
        nameserver = await Nameserver.open(
            files,
            random.SystemRandom(),
            config.nameserver,
            identity,
            self._meet if config.nameserver.peers else None,
            Facts(rpc=rpc_advertised(config), roles=config.roles, version=mainstem.__version__),
        )
        self._stack.push_async_callback(nameserver.close)
        placed = asyncio.Event()
        nameserver.subscribe(lambda _event: placed.set() if nameserver.placements() else None)
        if not nameserver.placements():
            await placed.wait()
        log.info("cluster %s, %d topics", nameserver.cluster_id(), sum(1 for _ in nameserver.topics()))
        return nameserver

    async def _meet(self, node: Identity) -> ClusterPorts:
        """Listen for the other nodes."""
        self._end = end = NodeEnd(
            node,
            self._handlers,
            random=random.SystemRandom(),
            reached_at=rpc_advertised(self._config),
            tls=self._config.rpc_tls,
        )
        self._stack.push_async_callback(end.close)
        await end.start(*parse_address(self._config.rpc))
        return ClusterPorts(end.exchange, end.calls, self._handlers, self._clock)

    async def _open_storage(
        self,
        nameserver: Nameserver,
        write_files: DiskFiles,
        store_files: DiskFiles,
        write_dir: Path,
        served: ServedGroups,
    ) -> Storage:
        config, end = self._config, self._end
        consensus = Consensus(
            node_id=config.node_id or NODE_ALONE,
            randomness=random.SystemRandom(),
            serving_changed=served.changed,
        )
        if end is not None:
            consensus = replace(
                consensus,
                exchange=end.exchange,
                calls=end.calls,
                replicas=nameserver.placements(),
                leader_changed=lambda group, leader, term: (
                    nameserver.learned_leader(group, leader, term) if leader else None
                ),
            )
        storage = await Storage.open(
            write_files=write_files,
            store_files=store_files,
            clock=self._clock,
            config=config.storage,
            journal_config=config.journal,
            store_config=config.queue_store,
            manifest_path=str(write_dir / MANIFEST_NAME),
            journal_path=str(write_dir / JOURNAL_DIRECTORY),
            slots=nameserver.slots(),
            topics=nameserver.topics,
            was_deleted=nameserver.was_deleted,
            consensus=consensus,
        )
        self._stack.push_async_callback(storage.close)
        storage.snapshots.register(self._handlers)
        storage.departures.register(self._handlers)
        return storage

    def _queue_admin(self, storage: Storage, leadership: GroupLeadership) -> QueueAdmin:
        if self._end is None:
            return storage.queues
        queue_admin = ClusterQueueAdmin(
            storage.queues,
            self._config.node_id,
            len(storage.groups),
            leadership.leader,
            self._end.calls,
            self._clock,
        )
        queue_admin.register(self._handlers)
        return queue_admin

    def _balance(self, storage: Storage, nameserver: Nameserver) -> None:
        """Lead what this node should lead, and nothing when it stops."""
        balance = LeaderBalance(
            self._config.node_id,
            storage.groups,
            nameserver.preferred_leader,
            lambda node_id: nameserver.verdict(node_id).state is State.ALIVE,
            lambda: storage.messages.refusing or storage.write_loop.out_of_space,
        )
        steps = MembershipSteps(
            self._config.node_id,
            storage.groups,
            nameserver.placements,
            lambda node_id: nameserver.verdict(node_id).state is State.ALIVE,
            storage.replication.take_part,
            storage.departures.look,
            self._clock,
        )
        tasks = [
            asyncio.create_task(balance.run(), name="leader balance"),
            asyncio.create_task(steps.run(), name="membership steps"),
        ]
        self._stack.push_async_callback(balance.hand_over)
        self._stack.push_async_callback(stop, tasks)

    async def _listen_for_calls(self) -> tuple[str, int]:
        """Where splitters and other nodes call; of a node among others it is open already."""
        configured = parse_address(self._config.rpc)
        if self._end is not None:
            return configured
        tls = tls_context(self._config.rpc_tls, server_side=True)
        rpc = RpcServer(self._handlers, name=f"node {self._config.node_id}", tls=tls)
        self._stack.push_async_callback(rpc.close)
        return await rpc.start(configured.host, configured.port)


class ServedGroups:
    """What a node does when it begins to serve a write group: it settles the group's queues."""

    def __init__(self, topics: Callable[[], Iterable[Topic]], was_deleted: Callable[[int], bool]) -> None:
        self._topics = topics
        self._was_deleted = was_deleted
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
        """Settle the queues of all groups that are newly served."""
        while self._new:
            group = self._new.pop()
            try:
                await queues.settle(group, self._topics(), self._was_deleted)
            except NotTheLeader:  # not any more
                continue

    async def run(self, queues: LocalQueueAdmin) -> None:
        """Settle whatever comes to be served, until cancelled or the disk fails."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.settle(queues)
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


def forget_deleted(groups: GroupCoordinator, event: Event) -> None:
    """A listener of the nameserver: what is committed of a topic goes with it, on whatever node it was deleted."""
    if isinstance(event, TopicDeleted):
        groups.topic_deleted(event.topic.name)


def rpc_advertised(config: NodeConfig) -> str:
    """Where other nodes reach this one: as the list of peers has it, which may be another address than the one to
    listen on."""
    return config.nameserver.peers.get(str(config.node_id), config.rpc)


async def finish(task: asyncio.Task[None], console: ConsoleServer) -> None:
    console.stop()
    await task


def directory(path: str) -> Path:
    """An absolute directory, made if missing. Raises `StoreUnsupported` naming path and reason."""
    result = Path(path).expanduser().absolute()
    try:
        result.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnsupported(f"{result}: {error.strerror}; choose another directory") from error
    return result


def store_directory(location: str) -> Path:
    """The queue store's directory. Raises `StoreUnsupported` for a URI other than file://."""
    if "://" in location and not location.startswith("file://"):
        raise StoreUnsupported(
            f"store_dir = {location!r}: this version keeps the queue store in a local directory only; "
            "give a path, or mount the object store"
        )
    return directory(location.removeprefix("file://"))


def lock(write_dir: Path) -> int:
    """Take the directory for this process. Raises `DirectoryInUse`."""
    descriptor = os.open(write_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DirectoryInUse(
            f"{write_dir}: another node runs here; stop it or give another --write-dir"
        ) from error
    return descriptor
