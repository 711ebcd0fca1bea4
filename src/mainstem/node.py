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
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from mainstem.broker.broker import Broker
from mainstem.broker.dispatcher import BrokerDispatcher
from mainstem.broker.fetch_sessions import FetchSessions
from mainstem.broker.groups.coordinator import GroupCoordinator
from mainstem.broker.node_facts import LogDir, NodeFacts
from mainstem.broker.topics import restore_queues
from mainstem.config import NodeConfig
from mainstem.console.application import Console
from mainstem.console.server import ConsoleServer
from mainstem.errors import MainstemError
from mainstem.heap import Heap
from mainstem.model import Node
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node_views import LocalNodeViews
from mainstem.pipeline.supervisor import SplitSupervisor
from mainstem.rpc.server import Handlers
from mainstem.rpc.server import Server as RpcServer
from mainstem.server.addresses import parse_address
from mainstem.server.server import Server
from mainstem.storage.disk_files import DiskFiles
from mainstem.storage.leadership import GroupLeadership
from mainstem.storage.replication import Consensus
from mainstem.storage.role import Storage
from mainstem.storage.split_lease import SplitLease
from mainstem.storage.split_service import SplitService

log = logging.getLogger(__name__)

LOCK_NAME = "node.lock"
MANIFEST_NAME = "manifest.sqlite"
JOURNAL_DIRECTORY = "journal"

SWITCH_INTERVAL_SECONDS = 0.0005
"""How long a thread keeps the interpreter: the default of 5 ms makes the event loop wait that long for the
reading thread (measured: p99 6.2 against 1.7 ms)."""


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
        config, stack = self._config, self._stack
        clock = SystemClock()
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
        nameserver = await Nameserver.open(write_files, random.SystemRandom(), config.nameserver, identity)
        stack.push_async_callback(nameserver.close)
        nameserver.subscribe(heap.topic_changed)
        log.info("cluster %s, %d topics", nameserver.cluster_id(), sum(1 for _ in nameserver.topics()))
        storage = await Storage.open(
            write_files=write_files,
            store_files=store_files,
            clock=clock,
            config=config.storage,
            journal_config=config.journal,
            store_config=config.queue_store,
            manifest_path=str(write_dir / MANIFEST_NAME),
            journal_path=str(write_dir / JOURNAL_DIRECTORY),
            slots=nameserver.slots(),
            topics=nameserver.topics,
            was_deleted=nameserver.was_deleted,
            consensus=Consensus(node_id=config.node_id),
        )
        stack.push_async_callback(storage.close)
        await storage.start()
        await storage.queues.delete(list(filter(nameserver.was_deleted, storage.table.topics())))

        groups = GroupCoordinator(
            node_id=config.node_id,
            config=config.groups,
            metadata=nameserver,
            metadata_admin=nameserver,
            store=storage.messages,
            queue_admin=storage.queues,
            clock=clock,
        )
        broker = Broker(
            node_id=config.node_id,
            config=config.broker,
            metadata=nameserver,
            metadata_admin=nameserver,
            store=storage.messages,
            leadership=GroupLeadership(storage.placement, storage.groups),
            queue_admin=storage.queues,
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
        await restore_queues(broker)
        await groups.start()
        stack.push_async_callback(groups.close)
        dispatcher = await stack.enter_async_context(BrokerDispatcher(broker))

        split = SplitService(
            storage.split_log,
            clock,
            SplitLease(clock, storage.hard_states.sequence, lambda: uuid.uuid4().hex),
            storage.pacing,
            lambda: storage.messages.appended_bytes,
        )
        stack.push_async_callback(split.close)
        handlers = Handlers()
        split.register(handlers)
        rpc = RpcServer(handlers, name=f"node {config.node_id}")
        stack.push_async_callback(rpc.close)
        rpc_configured = parse_address(config.rpc)
        rpc_host, rpc_port = await rpc.start(rpc_configured.host, rpc_configured.port)

        supervisor = SplitSupervisor(config.pipeline, split, store_dir=str(store_dir), clock=clock)
        views = LocalNodeViews(
            config=config,
            nameserver=nameserver,
            storage=storage,
            split=split,
            supervisor=supervisor,
            write_dir=write_dir,
            store_dir=store_dir,
            rpc=(rpc_host, rpc_port),
            node=identity,
        )
        console = ConsoleServer(
            Console(views, [server, dispatcher, groups, nameserver, storage], config.console).application(),
            config.console,
        )
        http_configured = parse_address(config.http)
        http_host, http_port = console.bind(http_configured.host, http_configured.port)
        console_task = asyncio.create_task(console.serve(), name="console")
        stack.push_async_callback(finish, console_task, console)
        await supervisor.start(node=f"http://{http_host}:{http_port}")
        stack.push_async_callback(supervisor.close)
        log.info("splitter %s (%s)", supervisor.state, config.pipeline.master)

        await server.start(dispatcher)
        stack.push_async_callback(server.close)  # again, and first: what is in flight needs all of the above
        views.http = f"{http_host}:{http_port}"
        views.ready = True
        return Addresses(
            f"{advertised.host}:{advertised.port}",
            f"{http_host}:{http_port}",
            f"{rpc_host}:{rpc_port}",
            config.node_id,
        )


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
