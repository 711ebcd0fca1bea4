"""A whole node of the cluster: the roles that `mainstem.node` wires, on simulated disks, network and time."""

from __future__ import annotations

import itertools
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.simulation.cluster.lives import Life
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.oracle import require

from mainstem.model import OWN_LEVELS, BatchAppend, FeatureLevel, LevelRange, Node, NodeRole, Topic
from mainstem.nameserver.cluster_ports import ClusterPorts
from mainstem.nameserver.errors import MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver
from mainstem.node.node_ports import NodePorts, OpeningWatch
from mainstem.node.node_roles import Roles
from mainstem.node.storage_role.store_directory import MANIFEST_NAME
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.wire.identity import Identity
from mainstem.storage.errors import StorageFailed
from mainstem.storage.role import Storage

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import WholeCluster

OF_NO_LEVELS = LevelRange(FeatureLevel.FIRST, FeatureLevel.FIRST)


class Copy(NamedTuple):
    """Of both directories."""

    disk1: SimulatedFiles
    disk2: SimulatedFiles
    manifest: dict[str, bytes]


class Watched(OpeningWatch):
    """Has the simulation's observers look at the roles as they open."""

    def __init__(self, node: WholeNode, life: Life) -> None:
        self._node = node
        self._life = life
        self._before = 0

    def metadata_opened(self, nameserver: Nameserver) -> None:
        self._node.watch_metadata(nameserver, self._life)
        self._before = self._node.journal_bytes_read

    def storage_opened(self, storage: Storage) -> None:
        node = self._node
        node.read_at_start = node.journal_bytes_read - self._before
        node.watch_storage(storage, self._life)


class WholeNode(SimulatedNode):
    """Disk 1 has the metadata as well."""

    cluster: WholeCluster
    roles: Roles | None = None
    """While the node is up."""
    _stack: AsyncExitStack

    def __init__(self, cluster: WholeCluster, node_id: int, directory: Path, seed: int) -> None:
        super().__init__(cluster, node_id, directory, seed)
        self._directory = directory / f"node-{node_id}"
        self._directory.mkdir(parents=True, exist_ok=True)
        self.manifest_path = str(self._directory / MANIFEST_NAME)
        self._ids = itertools.count(1)
        self._boots = 1
        self._starts = 0

    @property
    def failure(self) -> Exception | None:
        metadata = self.roles.nameserver.failure if self.serving is not None and self.roles else None
        return super().failure or metadata

    async def _start(self, life: Life) -> Storage:
        cluster, handlers = self.cluster, Handlers()
        config = cluster.settings.config(self.node_id)
        stack = AsyncExitStack()

        async def connect(identity: Identity) -> ClusterPorts:
            cluster.calls.serve(life, handlers)
            return ClusterPorts(cluster.network.attach(life), cluster.calls.of(life, identity), handlers, self.clock)

        levels = OF_NO_LEVELS if cluster.settings.begins_old and not self._starts else OWN_LEVELS
        self._starts += 1
        try:
            roles = await Roles.open(
                config,
                Node(node_id=self.node_id, host=f"node-{self.node_id}", port=9092 * config.has_role(NodeRole.BROKER)),
                NodePorts(
                    clock=self.clock,
                    randomness=lambda: random.Random(self.rng.random()),
                    new_id=lambda: f"{self.node_id}-{next(self._ids):06}",
                    new_uuid=self.new_uuid,
                    write_files=self.disk1,
                    store_files=self.disk2,
                    remote_store=self.whole_object_store() if cluster.bucket is not None else None,
                    write_dir=self._directory,
                    store_dir=self._directory,
                    handlers=handlers,
                    connect=connect,
                    boot=str(self._boots),
                    levels=levels,
                ),
                stack,
                Watched(self, life),
            )
        except BaseException:
            await stack.aclose()
            raise
        stack.push_async_callback(self._close_door, life)
        if cluster.opened is not None and roles.compute is not None:
            cluster.opened(self, roles, life)
        if roles.compute is not None:
            cluster.clients_network.open_door(life, roles.dispatcher)
        self._before_balance(roles)
        roles.balance()
        cluster.cluster_id = roles.nameserver.lookups.cluster_id()
        self._stack, self.roles = stack, roles
        return roles.storage

    @property
    def store_prefix(self) -> str:
        return f"{self.cluster.cluster_id}/"

    def _before_balance(self, roles: Roles) -> None:
        """The roles are open, and the node is about to lead what it should."""

    async def _close_door(self, life: Life) -> None:
        self.cluster.clients_network.close_door(life)

    async def _close(self, storage: Storage) -> None:
        await self._stack.aclose()

    def lose_power(self, *, keep_all: bool | None = None, even_async: bool = False) -> None:
        """Under `async` durability, which promises nothing when the power goes, only the process dies."""
        if self.cluster.settings.is_async and not even_async:
            keep_all = True
        super().lose_power(keep_all=keep_all)
        self.roles = None

    def boot(self) -> None:
        super().boot()
        self._boots += not self._keep_all

    # --- copies of its directories ------------------------------------------------------------------------

    @property
    def drawn(self) -> list[bytes]:
        """The draws of its starts, as the node remembers."""
        assert self.roles is not None
        return self.roles.starts.remembers.drawn

    def has_seen(self, other: WholeNode) -> bytes:
        """The newest start of another node that this one was shown; empty: none."""
        roles = self.roles
        seen = roles.starts.remembers.seen.get(other.node_id) if roles is not None else None
        return seen.nonce if seen is not None else b""

    def copy(self) -> Copy:
        """Of a node that is off."""
        assert not self.up
        manifest = {path.name: path.read_bytes() for path in self._directory.glob("*manifest*")}
        return Copy(self.disk1.clone(1), self.disk2.clone(2), manifest)

    def restore(self, copy: Copy) -> None:
        """Have the node, which is off, begin where it was when the copy was made."""
        assert not self.up
        for disk, kept in ((self.disk1, copy.disk1), (self.disk2, copy.disk2)):
            for path in disk.paths():
                disk.forget(path)
            for path in kept.paths():
                disk.put(path, kept.content(path))
        for file in self._directory.glob("*manifest*"):
            file.unlink()
        for name, content in copy.manifest.items():
            (self._directory / name).write_bytes(content)
        self.applied.clear()

    def holds(self, group: int, index: int) -> bool:
        """Whether a committed block is in this node's journal, durable as the configuration has it. Of one that starts
        nobody can tell before it has read its journal: it may."""
        if self.applied.get(group, 0) >= index or (self.up and self.serving is None):
            return True
        if not hasattr(self, "storage"):
            return False
        held = self.storage.groups[group].blocks.held(index)
        committed = self.cluster.history.blocks[group][index - 1]
        return held is not None and held.header is not None and held.term == committed.term

    # --- what is watched ----------------------------------------------------------------------------------

    def watch_metadata(self, nameserver: Nameserver, life: Life) -> None:
        """Have the ledger told of topics; and be able to hide them from the storage role (M), as from a node whose
        metadata is old. It does not take such metadata for current: a leader that did would miss the topics whose
        queues it is to make, for good."""
        topics, was_deleted, current = (
            nameserver.lookups.topics,
            nameserver.lookups.was_deleted,
            nameserver.waits.current,
        )

        def listed() -> list[Topic]:
            return [] if self.metadata_hidden else list(topics())

        def known_deleted(topic_number: int) -> bool:
            return not self.metadata_hidden and was_deleted(topic_number)

        async def known_to_be_current() -> None:
            await current()
            if self.metadata_hidden:
                raise MetadataUnavailable("this node's metadata is old; try again")

        self.cluster.hear_of_topics(nameserver, life)
        nameserver.lookups.topics = listed  # type: ignore[method-assign]
        nameserver.lookups.was_deleted = known_deleted  # type: ignore[method-assign]
        nameserver.waits.current = known_to_be_current  # type: ignore[method-assign]

    def watch_storage(self, storage: Storage, life: Life) -> None:
        self.observe(storage, life)
        self.watch_coordinators(storage)

    def watch_coordinators(self, storage: Storage) -> None:
        """Appends of coordinators are sent, too."""
        append, history = storage.messages.append, self.cluster.history

        def appended(batches: object, acks: int, **options: Any) -> object:
            if isinstance(batches, list):
                for batch in batches:
                    assert isinstance(batch, BatchAppend)
                    history.sending(bytes(batch.data))
            return append(batches, acks, **options)  # type: ignore[arg-type]

        storage.messages.append = appended  # type: ignore[method-assign, assignment]

    def check_tasks(self) -> None:
        """Nothing that goes on in the background may have ended."""
        if self.serving is None or self.roles is None or self.disk1.troubles or self.disk2.troubles:
            return
        for task in [self.roles.nameserver.task, *self.roles.background.tasks]:
            ended = task.done() and not task.cancelled()
            error = task.exception() if ended else None
            fine = not ended or isinstance(error, (StorageFailed, OSError, PowerLoss))
            require(fine, f"node {self.node_id}: task {task.get_name()!r} ended: {error!r}")
