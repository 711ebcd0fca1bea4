"""The roles of a node, wired together on the ports they are given: everything of a node but its listeners.

`node` hands in disks, sockets and the time of the machine; a whole node runs as well on simulated ones. This module
decides nothing but which part gets which, and the order in which they start: the metadata, then the storage role
(`held_storage.py`) and the broker (`compute.py`), where the node has them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass

from msgspec import structs

import mainstem
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.broker.queue_routing import QueueRouting
from mainstem.broker.transactions.verification import CoordinatorVerification
from mainstem.errors import DISK_REMEDY
from mainstem.model import Durability, Node, NodeRole
from mainstem.nameserver.cluster.heartbeats import Condition
from mainstem.nameserver.cluster_ports import Facts
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.access.forwarded_clients import NodeForwardedClients
from mainstem.node.broker_role.broker_calls import NodeBrokerCalls
from mainstem.node.broker_role.compute import Compute
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NO_WATCH, NodePorts, OpeningWatch
from mainstem.node.node_reports import NodeReports
from mainstem.node.roles_setup import Background, RolesSetup
from mainstem.node.storage_role.disk_shares_watch import DiskSharesWatch
from mainstem.node.storage_role.held_storage import HeldStorage
from mainstem.node.storage_role.linked_storage import linked_storage
from mainstem.ports import TransactionVerification
from mainstem.rpc.messages.starts import SHOW_START
from mainstem.security.quotas.disk_shares import DiskShares
from mainstem.storage.role import Storage
from mainstem.storage_link.remote_message_store import RemoteMessageStore
from mainstem.supervised import Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)

WAITING_SECONDS = 5.0
"""Seconds in which nodes that start together have met; after that the log names the missing ones, again and
again."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of one node. Made by `open`; closed by the stack they were opened on."""

    setup: RolesSetup
    starts: StartsFile
    nameserver: Nameserver
    """Every node follows the metadata, whether or not it may vote on it."""
    held: HeldStorage | None
    """None: the node has no storage."""
    compute: Compute | None
    """None: the node is no broker."""
    clients: NodeForwardedClients
    """Those of other nodes."""
    reports: NodeReports

    @classmethod
    async def open(
        cls, config: NodeConfig, identity: Node, ports: NodePorts, stack: AsyncExitStack, watch: OpeningWatch = NO_WATCH
    ) -> Roles:
        """Recover, and be ready to dispatch requests. `identity` is registered as this node. Raises a
        `MainstemError` that names the obstacle."""
        supervision = ports.supervision or Supervision(ports.clock.monotonic)
        setup = RolesSetup(
            config=config,
            identity=identity,
            ports=ports,
            stack=stack,
            watch=watch,
            turns=Turns(),
            supervision=supervision,
            background=Background(supervision, stack),
        )
        return await _opened(setup)

    @property
    def background(self) -> Background:
        return self.setup.background

    @property
    def storage(self) -> Storage:
        """Of a node that has it."""
        assert self.held is not None, "the node has no storage"
        return self.held.storage

    @property
    def dispatcher(self) -> BrokerDispatcher:
        """Of a node that is a broker."""
        assert self.compute is not None, "the node is no broker"
        return self.compute.dispatcher

    def balance(self) -> None:
        """From now on lead what this node should lead, and hand it over at a stop. Call this last: clients
        come to a leader with their requests."""
        if self.held is not None:
            self.held.balance()


class _Start:
    """This start of the node, of which its next one knows whether it ended well."""

    def __init__(self, file: StartsFile, *, stores: bool) -> None:
        self.file = file
        self._stores = stores
        self.storage: Storage | None = None
        """The storage role, once it is open: how it ends counts."""

    async def end(self) -> None:
        """Note an orderly end; everything else is closed."""
        if self._stores and (self.storage is None or self.storage.write_loop.failure is not None):
            return
        try:
            await self.file.end_well()
        except MetadataUnavailable as error:
            log.warning("the next start does not know that this one ended well: %s", error)


async def _opened(setup: RolesSetup) -> Roles:
    config = setup.config
    start = await _begin_start(setup)
    nameserver = await _open_metadata(setup, start.file)
    clients = NodeForwardedClients(nameserver.lookups, config.authorizer, setup.ports.clock)
    if nameserver.others is not None:
        setup.background.begin(clients.run, "ages of access rules")
        nameserver.ask_about(clients)
    held, compute = None, None
    if config.has_role(NodeRole.STORAGE):
        held = await HeldStorage.open(setup, start.file, nameserver)
        start.storage = held.storage
        clients.disk_shares = shares = DiskShares(setup.ports.clock.monotonic)
        watch = DiskSharesWatch(shares, held.storage, nameserver.lookups)
        nameserver.measure_disk(watch.own)
        setup.background.begin(watch.run, "shares of disk 1")
        await held.start(clients)
    reports = NodeReports(
        config.node_id,
        held.storage if held is not None else None,
        nameserver.others.calls if nameserver.others is not None else None,
        config.store_told,
    )
    reports.guests = nameserver.lookups.guests
    reports.register(setup.ports.handlers)
    if config.has_role(NodeRole.BROKER):
        store = held.for_broker() if held is not None else linked_storage(setup, nameserver)
        compute = await Compute.open(setup, nameserver, store, reports)
        clients.audit = compute.broker.audit
        others = store.messages if held is None else held.next_leaders
        compute.share_disks(clients.disk_shares, others if isinstance(others, RemoteMessageStore) else None)
    if held is not None:
        held.verify_transactions(verification_of(setup, nameserver, held, compute))
    return Roles(setup, start.file, nameserver, held, compute, clients, reports)


def verification_of(
    setup: RolesSetup, nameserver: Nameserver, held: HeldStorage, compute: Compute | None
) -> TransactionVerification:
    """The way from the queues of this node to the coordinators of transactions, on whichever brokers these are."""
    if compute is not None and compute.broker.transactions is not None:
        return compute.broker.transactions.verification
    lookups = nameserver.lookups
    routing = QueueRouting(setup.config.node_id, lookups, held.leadership, apart=False)
    calls = NodeBrokerCalls(setup.config.node_id, None if nameserver.others is None else nameserver.others.calls)
    return CoordinatorVerification(lookups, lookups.topic_by_number, routing, calls)


async def _begin_start(setup: RolesSetup) -> _Start:
    """Draw the nonce of this start, and begin to judge the starts of others, before this node says
    anything else."""
    config, ports = setup.config, setup.ports
    stores = config.has_role(NodeRole.STORAGE)
    starts = await StartsFile.open(ports.write_files, config.node_id)
    setup.stack.push_async_callback(starts.close)
    unsynced = stores and config.journal.durability is Durability.ASYNC
    await starts.begin(config.node_id, ports.boot, ports.randomness().randbytes, acknowledges_unsynced=unsynced)
    ports.handlers.unary(SHOW_START, starts.answer)
    start = _Start(starts, stores=stores)
    setup.stack.push_async_callback(start.end)
    return start


async def _open_metadata(setup: RolesSetup, starts: StartsFile) -> Nameserver:
    """Open the cluster's metadata. If there are other nodes, this returns once a majority of its voters has met, and
    the write groups are placed."""
    config, ports, supervision = setup.config, setup.ports, setup.supervision

    def condition() -> Condition:
        """The state of disk 1, as heartbeats report it."""
        failure = supervision.disk_failure
        return Condition(f"disk 1 failed: {failure}; {DISK_REMEDY}" if failure is not None else "")

    nameserver = await Nameserver.open(
        ports.write_files,
        ports.randomness(),
        config.nameserver if not config.shares_store else structs.replace(config.nameserver, remote_dir=""),
        setup.identity,
        ports.connect if config.nameserver.peers else None,
        Facts(rpc_advertised(config), config.roles, mainstem.__version__, ports.levels),
        starts,
        supervision,
        condition,
    )
    setup.stack.push_async_callback(nameserver.close)
    placed = asyncio.Event()
    nameserver.subscribe(lambda _event: placed.set() if nameserver.lookups.placements() else None)
    while not nameserver.lookups.placements():
        try:
            async with asyncio.timeout(WAITING_SECONDS):
                await placed.wait()
        except TimeoutError:
            log.warning("a new cluster begins once all of its first nodes have met; %s", _missing(config, nameserver))
    log.info("cluster %s, topics: %d", nameserver.lookups.cluster_id(), sum(1 for _ in nameserver.lookups.topics()))
    setup.watch.metadata_opened(nameserver)
    return nameserver


def _missing(config: NodeConfig, nameserver: Nameserver) -> str:
    """The nodes that the beginning of a new cluster waits for, in words."""
    nodes = nameserver.lookups.nodes()
    absent = sorted(config.nameserver.peer_addresses.keys() - {node.node_id for node in nodes})
    if absent:
        return f"it waits for node {', '.join(map(str, absent))}, of nameserver.peers"
    stores = sum(node.stores for node in nodes)
    return (
        f"it has {stores} nodes with the role storage, and waits for {config.nameserver.replication_factor} "
        "(nameserver.replication_factor), since not all of nameserver.peers have that role"
    )


def rpc_advertised(config: NodeConfig) -> str:
    """The address at which other nodes reach this one: as the list of peers has it, which may differ from the
    one to listen on."""
    return config.nameserver.peers.get(str(config.node_id), config.rpc)
