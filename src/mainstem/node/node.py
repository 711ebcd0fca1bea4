"""A node: its roles on the disks, the clock and the sockets of this machine, with its listeners around them. It
starts them in the order in which they need each other, and closes them in reverse.

This, `node_roles.py` and `config.py` are the only places that see the whole configuration. They decide nothing but
which part gets which: the roles get ports, the server gets their dispatcher, the console gets views.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
import socket
import sys
import time
import uuid
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mainstem.address import Address
from mainstem.broker.broker import UnboundedRoom
from mainstem.console.console_server import ConsoleServer
from mainstem.console.token_file import token_of
from mainstem.console.views.node_views import NodeViews
from mainstem.errors import MainstemError
from mainstem.model import Node, NodeRole
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.node.access.http_tls import HttpTls
from mainstem.node.access.http_users import tell_change, users_over_http
from mainstem.node.access.open_ports import refuse_open_ports
from mainstem.node.config import NodeConfig
from mainstem.node.load_meter import LoadMeter, StorageCounters, room_at, usable_processors
from mainstem.node.moving_duties import MovingDuties, leader_of, moving_duties
from mainstem.node.node_ports import NodePorts
from mainstem.node.node_reports import NodeReports
from mainstem.node.node_roles import Roles, rpc_advertised
from mainstem.node.storage_role.splitter_end import SplitterEnd
from mainstem.node.storage_role.store_directory import CACHE_DIRECTORY, directory, note_store, store_directory
from mainstem.node.views.cluster_views import LocalClusterViews
from mainstem.node.views.explaining import LocalExplanations
from mainstem.node.views.group_views import NodeGroupViews
from mainstem.node.views.node_health import NodeHealth
from mainstem.node.views.store_views import LocalStoreViews
from mainstem.node.views.tenant_views import ReplicatedTenantViews
from mainstem.node.views.topic_views import FollowedTopicViews, LocalTopicViews
from mainstem.ports import Statistics
from mainstem.process.free_memory import FreeMemory, give_memory_back, process_memory
from mainstem.process.heap import Heap
from mainstem.process.loop_watch import LoopWatch
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.node_end import NodeEnd
from mainstem.rpc.rpc_server import RpcServer
from mainstem.rpc.wire.identity import Identity
from mainstem.rpc.wire.node_certificate import NodeCertificate, node_certificate
from mainstem.server.addresses import parse_address
from mainstem.server.kafka_server import KafkaServer
from mainstem.side_thread import SideThread
from mainstem.storage.disks.disk_files import DiskFiles
from mainstem.storage.object_stores.urls import GuardedStore, open_object_store
from mainstem.storage.samples import StorageSamples
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.supervised import Supervision

if TYPE_CHECKING:
    from starlette.applications import Starlette

log = logging.getLogger(__name__)

LOCK_NAME = "node.lock"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux makes a new one each time it boots."""

SWITCH_INTERVAL_SECONDS = 0.0005
"""Seconds for which a thread keeps the interpreter: the default of 5 ms makes the event loop wait that long
for the reading thread (measured: p99 6.2 against 1.7 ms)."""


NO_KAFKA = "-"
"""Stands for the Kafka address of a node that is no broker."""


class SystemClock:
    """`ports.Clock` of the machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)  # called several times per request: this saves one call each


class Addresses(NamedTuple):
    """The addresses at which a started node is reached."""

    kafka: str
    http: str
    rpc: str
    node_id: int


class DirectoryInUse(MainstemError):
    """Another node runs on this directory."""


class RunningNode:
    """A node from `start` to `close`."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._stack = AsyncExitStack()
        self._clock = SystemClock()
        self._handlers = Handlers()
        self._supervision = Supervision(self._clock.monotonic)
        self.died = asyncio.Event()
        """Set when a task died that the node cannot do without: close the node and end its process."""
        self._supervision.ended.add_done_callback(lambda ended: self.died.set())
        self._loop_watch = LoopWatch()
        self._roles: Roles | None = None
        self._end: NodeEnd | None = None
        """This node as other nodes know it; None: there are no others."""
        self._certificate: NodeCertificate | None = None
        """Of calls between nodes; None: they are made without TLS."""

    async def start(self) -> Addresses:
        """Recover, listen, and accept clients. Raises a `MainstemError` that names the obstacle; the parts
        that had been started are closed again."""
        heap = Heap()
        heap.start()
        self._loop_watch.start()
        self._stack.push_async_callback(self._loop_watch.close)  # closed last: closing may hang as well
        try:
            return await self._start(heap)
        except BaseException:
            await self._stack.aclose()
            raise
        finally:
            heap.started()

    @property
    def disk_failure(self) -> str | None:
        """How disk 1 failed, in words; None: it has not. After a failure, close the node and end its
        process."""
        return self._supervision.disk_failure

    async def close(self) -> None:
        """Stop accepting, finish requests in flight, write what was appended, close everything."""
        if self.disk_failure is not None and self._roles is not None:
            self._roles.nameserver.give_way()  # as its write groups did: closing takes a while
        await self._stack.aclose()

    async def _start(self, heap: Heap) -> Addresses:
        config, stack = self._config, self._stack
        refuse_open_ports(config)
        self._certificate = node_certificate(config.rpc_tls)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        stores = config.has_role(NodeRole.STORAGE)
        write_dir = directory(config.write_dir)
        remote_store = None
        if stores and config.objects_url:
            remote_store = open_object_store(config.objects_url, config.object_store)
        stack.callback(os.close, lock(write_dir))
        store_dir = store_directory(config, write_dir) if stores else directory(str(write_dir / CACHE_DIRECTORY))

        server = self._bound_server() if config.has_role(NodeRole.BROKER) else None
        identity = self._identity(server)
        ports = self._ports(write_dir, store_dir, remote_store, server)
        roles = self._roles = await Roles.open(config, identity, ports, stack)
        if stores:
            note_store(config, store_dir)
        roles.nameserver.subscribe(heap.topic_changed)

        splitter = SplitterEnd.open(roles.setup, roles.storage) if stores else None
        rpc_address = await self._listen_for_calls()
        reports = roles.reports
        if stores:
            nodes = roles.nameserver.lookups.nodes()
            await reports.check_stores([node.node_id for node in nodes if node.stores])
        self._measure_load(roles, reports)
        duties = self._start_duties(roles, reports)
        health = NodeHealth(roles.nameserver, roles.storage if stores else None, self._supervision)
        views = self._views(roles, health, reports, duties, rpc_address, splitter, remote_store)
        measured = [*self._measured(roles, server, remote_store), duties.balancer]
        http, console = self._console(roles, views, measured, write_dir, heap)
        if splitter is not None:
            await splitter.start(str(http))
        if server is not None and roles.compute is not None:
            await server.start(roles.dispatcher, roles.dispatcher.may_connect)
            stack.push_async_callback(server.close)  # again: what is in flight needs all of the above
            # first: else members that wait for others are waited for
            stack.push_async_callback(roles.compute.groups.served.close)
            if (transactions := roles.compute.broker.transactions) is not None:
                stack.push_async_callback(transactions.coordinator.served.close)
            stack.push_async_callback(roles.compute.shares.served.close)
        reports.http = str(http)
        health.ready = True
        roles.balance()
        console.begin()
        keep_heap = partial(heap.keep, lambda: server.budget.bytes_taken if server is not None else 0)
        collecting = self._supervision.start(keep_heap, "garbage collection")
        stack.callback(collecting.cancel)
        giving_back = self._supervision.start(FreeMemory(process_memory()).watch, "giving memory back")
        stack.callback(giving_back.cancel)
        kafka = str(server.advertised) if server is not None else NO_KAFKA
        return Addresses(kafka, str(http), str(Address(*rpc_address)), config.node_id)

    def _measure_load(self, roles: Roles, reports: NodeReports) -> None:
        """From now on this node tells the metadata leader its load, and others what it knows as that leader."""
        ports, stores = roles.setup.ports, roles.held is not None
        meter = LoadMeter(
            StorageCounters(roles.storage) if stores else None,
            self._clock.monotonic,
            processors=usable_processors(),
            write_room=partial(room_at, ports.write_dir) if stores else None,
            store_room=partial(room_at, ports.store_dir) if stores and not self._config.shares_store else None,
        )
        roles.nameserver.measure_load(meter.measured)
        moves = roles.nameserver.recent_moves
        reports.loads, reports.moves, reports.slot_moves = roles.nameserver.loads, moves.told, moves.slots_told

    def _start_duties(self, roles: Roles, reports: NodeReports) -> MovingDuties:
        """Nodes that are drained are emptied, and load is spread, while this node leads the metadata."""
        nameserver = roles.nameserver
        duties = moving_duties(nameserver, reports, leader_of(roles))
        reports.balancer = duties.balancer.told
        if nameserver.others is not None:
            tasks = [self._supervision.start(duties.draining.run, "drains")]
            if duties.balancer.is_on:
                tasks.append(self._supervision.start(duties.balancer.run, "balancer"))
            for task in tasks:
                self._stack.callback(task.cancel)
        return duties

    def _bound_server(self) -> KafkaServer:
        server = KafkaServer(self._config.server, self._clock, give_memory_back)
        server.bind()
        self._stack.push_async_callback(server.close)
        return server

    def _identity(self, server: KafkaServer | None) -> Node:
        """This node, as it registers; a node without a server for Kafka clients has no address for them."""
        config = self._config
        roles = frozenset(map(NodeRole, config.roles))
        if server is None:
            host = parse_address(rpc_advertised(config)).host
            return Node(
                node_id=config.node_id, host=host, port=0, rack=config.rack or None, machine=config.machine or None,
                roles=roles,
            )  # fmt: skip
        return Node(
            node_id=config.node_id,
            host=server.advertised.host,
            port=server.advertised.port,
            rack=config.rack or None,
            machine=config.machine or None,
            endpoints=server.endpoints,
            roles=roles,
        )

    def _ports(
        self, write_dir: Path, store_dir: Path, remote_store: GuardedStore | None, server: KafkaServer | None
    ) -> NodePorts:
        stack = self._stack
        write_files, store_files = DiskFiles(write_dir), DiskFiles(store_dir)
        stack.push_async_callback(write_files.close)
        stack.push_async_callback(store_files.close)
        side_work, password_work, key_work = (SideThread(name) for name in ("inflate", "passwords", "token keys"))
        for thread in (side_work, password_work, key_work):
            stack.push_async_callback(thread.close)
        return NodePorts(
            clock=self._clock,
            randomness=random.SystemRandom,
            new_id=lambda: str(uuid.uuid4()),
            write_files=write_files,
            store_files=store_files,
            remote_store=remote_store,
            write_dir=write_dir,
            store_dir=store_dir,
            handlers=self._handlers,
            connect=self._connect if self._config.nameserver.peers else None,
            response_room=server.responses if server is not None else UnboundedRoom(),
            hold_connections=server.bounds.hold if server is not None else None,
            password_work=password_work,
            key_work=key_work,
            side_work=side_work,
            supervision=self._supervision,
            boot=boot_of_this_machine(),
        )

    def _views(
        self,
        roles: Roles,
        health: NodeHealth,
        reports: NodeReports,
        duties: MovingDuties,
        rpc: tuple[str, int],
        splitter: SplitterEnd | None,
        remote_store: GuardedStore | None,
    ) -> NodeViews:
        config, nameserver, held, ports = self._config, roles.nameserver, roles.held, roles.setup.ports
        storage = held.storage if held is not None else None
        cluster_views = LocalClusterViews(
            config=config,
            nameserver=nameserver,
            storage=storage,
            write_dir=ports.write_dir,
            store_dir=ports.store_dir,
            rpc=rpc,
            node=roles.setup.identity,
            reports=reports,
            leader_of=leader_of(roles),
            draining=duties.draining,
            planner=duties.planner,
        )
        explanations = LocalExplanations(nameserver, cluster_views, duties.planner)
        compute = roles.compute
        group_views = (
            None
            if compute is None
            else NodeGroupViews(compute.lags, compute.lag_sampler, nameserver.lookups.cluster_id)
        )
        traffic = compute.traffic if compute is not None else roles.clients.traffic
        if storage is None or splitter is None:
            tenants = ReplicatedTenantViews(nameserver, traffic, None, self._clock)
            return NodeViews(
                health, cluster_views, FollowedTopicViews(nameserver), None, tenants, explanations, group_views
            )
        store_views = LocalStoreViews(
            config=config,
            nameserver=nameserver,
            storage=storage,
            split=splitter.split,
            supervisor=splitter.supervisor,
            write_dir=ports.write_dir,
            store_dir=ports.store_dir,
            rpc=rpc,
            clock=self._clock,
            remote_store=remote_store,
        )
        groups = compute.groups if compute is not None else None
        topic_views = LocalTopicViews(nameserver, storage, groups)
        tenants = ReplicatedTenantViews(nameserver, traffic, store_views.bytes_of_topics, self._clock)
        return NodeViews(health, cluster_views, topic_views, store_views, tenants, explanations, group_views)

    def _measured(
        self, roles: Roles, server: KafkaServer | None, remote_store: GuardedStore | None
    ) -> list[Statistics]:
        measured: list[Statistics] = [roles.nameserver, self._supervision, self._loop_watch]
        if server is not None and roles.compute is not None:
            measured += [
                server,
                roles.dispatcher,
                roles.compute.groups.served,
                roles.compute.lag_sampler,
                roles.compute.shares,
            ]
            if (transactions := roles.compute.broker.transactions) is not None:
                measured.append(transactions.coordinator.served)
        if roles.held is not None:
            measured.append(StorageSamples(roles.storage))
        elif roles.compute is not None and isinstance(roles.compute.store.messages, RemoteMessageStore):
            measured.append(roles.compute.store.messages)
        if roles.clients.disk_shares is not None:
            measured.append(roles.clients.disk_shares)
        if self._end is not None:
            measured.append(self._end.exchange)
            measured.append(roles.clients)
        if self._certificate is not None:
            measured.append(self._certificate)
        if remote_store is not None:
            measured.append(remote_store)
        return measured

    def _console(
        self, roles: Roles, views: NodeViews, measured: list[Statistics], write_dir: Path, heap: Heap
    ) -> tuple[Address, ConsoleServer]:
        """The HTTP server, bound; it waits until it is begun."""
        config = self._config
        configured = parse_address(config.http)
        token, hosts = token_of(write_dir), _names_of(config)
        users = users_over_http(roles) if config.console.users else None
        told = partial(tell_change, roles.compute.broker.audit if roles.compute is not None else None)
        tls = HttpTls(config.console, config.http, self._clock) if config.console.certificate else None

        def application() -> Starlette:
            from mainstem.console.application import Console
            from mainstem.console.page_guard import PageGuard
            from mainstem.console.visitors import Visitors

            heap.more_stays()
            return Console(
                views, measured, config.console, PageGuard(hosts), Visitors(token, users), told
            ).application()

        if tls is not None:
            measured.append(tls)
            self._stack.callback(tls.close)
        console = ConsoleServer(application, config.console, waits=True, tls=tls.over if tls is not None else None)
        http = Address(*console.bind(configured.host, configured.port))
        console_task = self._supervision.start(console.serve, "console")
        self._stack.push_async_callback(console.finish, console_task)
        return http, console

    async def _connect(self, node: Identity) -> ClusterPorts:
        """Listen for the other nodes."""
        self._end = end = NodeEnd(
            node,
            self._handlers,
            random=random.SystemRandom(),
            reached_at=rpc_advertised(self._config),
            certificate=self._certificate,
            supervision=self._supervision,
        )
        self._stack.push_async_callback(end.close)
        await end.start(*parse_address(self._config.rpc))
        return ClusterPorts(
            end.exchange,
            end.calls,
            self._handlers,
            self._clock,
            record_calls=end.record_calls,
            cut_off=end.exchange.cut_off,
        )

    async def _listen_for_calls(self) -> tuple[str, int]:
        """Listen for splitters and other nodes; a node among others does so already."""
        configured = parse_address(self._config.rpc)
        if self._end is not None:
            return configured
        rpc = RpcServer(
            self._handlers,
            name=f"node {self._config.node_id}",
            certificate=self._certificate,
            supervision=self._supervision,
        )
        self._stack.push_async_callback(rpc.close)
        return await rpc.start(configured.host, configured.port)


def boot_of_this_machine() -> str:
    """An id of the machine's present boot; empty where the system does not tell."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def lock(write_dir: Path) -> int:
    """Take the directory for this process. Raises `DirectoryInUse`."""
    descriptor = os.open(write_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise DirectoryInUse(f"{write_dir}: another node runs here; stop it or give another --write-dir") from error
    return descriptor


def _names_of(config: NodeConfig) -> list[str]:
    """The names by which the node's HTTP port is reached."""
    listeners = config.server.listeners.values()
    advertised = [config.server.advertise, *(listener.advertise for listener in listeners)]
    addresses = [config.http, rpc_advertised(config), *filter(None, advertised)]
    return [*(parse_address(address).host for address in addresses), socket.gethostname(), *config.console.hosts]
