"""One node of the cluster: two disks, a clock, a storage role, and the lives it goes through."""

from __future__ import annotations

import asyncio
import errno
import itertools
import random
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tests.fakes.files import PowerLoss
from tests.fakes.object_store import SimulatedObjectStore
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.machine import SlowFiles
from tests.simulation.oracle import Violation, require

from mainstem.errors import MainstemError
from mainstem.model import SLOTS, Buffer, Topic
from mainstem.nameserver.disk import starts
from mainstem.nameserver.disk.starts import LossCause, Remembers
from mainstem.ports import ObjectStore
from mainstem.raft import HardState, Membership, RaftConfig, Role, Snapshot
from mainstem.rpc.handlers import Handlers
from mainstem.rpc.messages.snapshots import FETCH_FILE, FetchFile
from mainstem.rpc.wire.method import Method
from mainstem.storage.cluster.membership_steps import MembershipSteps
from mainstem.storage.cluster.write_group_replication import Consensus
from mainstem.storage.journal.encoding.format import KIND_DATA, BlockHeader, sequence_of
from mainstem.storage.journal.journal import SegmentInfo
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import GuardedStore
from mainstem.storage.queue_store.manifest.database.manifest_database import Entries
from mainstem.storage.remote.config import ReadCacheConfig
from mainstem.storage.role import Storage
from mainstem.storage.setup import StorageSetup
from mainstem.storage.store_files.store_file import owner_of, paths_of
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.log_block import LogBlock
from mainstem.storage.write_groups.write_group import WriteGroup

if TYPE_CHECKING:
    from tests.simulation.cluster.cluster import SimulatedCluster

T = TypeVar("T")


MANIFEST_PAGE_FILES = 4
"""So few that pages are filled, thinned out and given up."""

OBJECT_STORE = ObjectStoreConfig(retry_seconds=3.0, probe_seconds_max=5.0)
"""Callers of a store that is out are told soon, and soon asked again."""

READ_CACHE = ReadCacheConfig(memory_bytes=1 << 20, disk_bytes=1 << 18, chunk_bytes=1 << 16, index_bytes=1 << 20)

STOPPING_SECONDS = 60.0
"""Simulated; a clean stop writes what was appended, and a checkpoint."""


class NodeDisk(SlowFiles):
    """Tells when the power goes in the middle of something, and can be slow for a while."""

    def __init__(self, seed: int, lost_power: Callable[[], None]) -> None:
        super().__init__(seed)
        self._lost_power = lost_power
        self.slow_seconds = 0.0
        self.troubles = 0
        """How often something of it was made to fail."""
        self.removing: Callable[[str], None] = lambda path: None
        """Is told of each file before it is removed."""

    @property
    def faulty(self) -> bool:
        """Something will fail, or may."""
        return self.waits_to_fail or self.capacity_bytes is not None

    def fail(self, operation: str, *, path: str = "", nth: int = 1, error: int = errno.EIO) -> None:
        self.troubles += 1
        super().fail(operation, path=path, nth=nth, error=error)

    def fill_up(self, bytes_left: int) -> None:
        """Let there be room for no more than so many bytes."""
        self.troubles += 1
        self.capacity_bytes = self._used() + bytes_left

    def repair(self) -> None:
        """Nothing will fail any more."""
        self._faults.clear()
        self.capacity_bytes = None
        self.slow_seconds = 0.0

    async def remove(self, path: str, *, durable: bool = True) -> None:
        self.removing(path)
        await super().remove(path, durable=durable)

    async def _begin(self, operation: str, path: str, *, changes: bool = False) -> bool:
        if self.slow_seconds:
            await asyncio.sleep(self.slow_seconds * self._latency.random())
        return await super()._begin(operation, path, changes=changes)

    def _end(self, interrupted: bool) -> None:
        if interrupted:
            self._lost_power()
        super()._end(interrupted)


class NodeClock:
    """`ports.Clock` of a node: the time of day may step, monotonic time does not."""

    def __init__(self, loop: ClusterLoop) -> None:
        self._loop = loop
        self.ahead_ms = 0
        self.ahead_ms_min = 0
        self.ahead_ms_max = 0
        """It never was further behind, or ahead."""

    def step(self, by_ms: int) -> None:
        self.ahead_ms += by_ms
        self.ahead_ms_min = min(self.ahead_ms_min, self.ahead_ms)
        self.ahead_ms_max = max(self.ahead_ms_max, self.ahead_ms)

    def now_ms(self) -> int:
        return self._loop.now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return self._loop.time()


class KnownStarts:
    """`storage.replication.StartsKnown` of a node whose directories are always its own: it forgets what it finds to be
    lost, and keeps that over its lives."""

    nonce = b"simulated"

    def __init__(self) -> None:
        self._remembers = Remembers()
        self.ends_cut = 0
        """How often a start has found less than there may have been."""

    @property
    def why(self) -> str:
        return self._remembers.why

    @property
    def lost(self) -> str:
        """The kind of loss that is not got back yet; empty: none."""
        return self._remembers.loss

    @property
    def lost_power(self) -> bool:
        return self.lost == LossCause.POWER.value

    def has_lost(self, group: int) -> bool:
        return starts.has_lost(self._remembers, group)

    async def blocks_lost(self, groups: Collection[int], count: int, why: str) -> None:
        assert all(group < count for group in groups)
        self._remembers = starts.blocks_lost(self._remembers, groups, count, why)

    async def ends_lost(self, why: str) -> None:
        self._remembers = starts.ends_lost(self._remembers, why)
        self.ends_cut += 1

    def forget_votes(self) -> None:
        """Of all write groups."""
        self._remembers = starts.lost(self._remembers, LossCause.COPY, "an older copy")

    async def got_back(self, group: int) -> None:
        self._remembers = starts.got_back(self._remembers, group)

    async def all_got_back(self) -> None:
        self._remembers = starts.all_got_back(self._remembers)

    async def check_votes(self, name: str, nonce: bytes) -> None: ...

    async def wrote(self, name: str) -> None: ...

    async def alone_from(self, group: int, last_index: int) -> int | None:
        return None


class WholeFiles(Handlers):
    """Those of a version that knows nothing of parts of files."""

    def stream(self, method: Method[Any, Any], handler: Callable[..., Any]) -> None:
        if method is FETCH_FILE:
            super().stream(method, lambda call: handler(call._replace(request=FetchFile(call.request.name))))
        else:
            super().stream(method, handler)


class SimulatedNode:
    """`start` and `stop`, or `lose_power`; then again."""

    def __init__(self, cluster: SimulatedCluster, node_id: int, directory: Path, seed: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.rng = random.Random(seed)
        self.disk1 = NodeDisk(seed, self.lose_power)
        self.disk2 = NodeDisk(seed + 1, self.lose_power)
        self.clock = NodeClock(cluster.loop)
        self.starts = KnownStarts()
        self.manifest_path = str(directory / f"manifest-{node_id}.sqlite")
        self.life: Life | None = None
        self.lives: list[Life] = []
        self.serving: Storage | None = None
        """The storage role while the node is up."""
        self.storage: Storage
        """The newest, for splitters."""
        self.opened: list[Storage] = []
        """That of every life."""
        self.up = False
        """Started, and neither stopped nor killed."""
        self.applied: dict[int, int] = {}
        """Per group, the last block it ever applied: it is durable here for good."""
        self.took_snapshots: set[int] = set()
        """Groups of which it ever took one: their queues may be younger than what it has applied."""
        self.read_at_start = 0
        """Bytes of the journal that its last recovery has read."""
        self.metadata_hidden = False
        self.is_handing_in = False
        """A merge is being recorded."""
        self.merging: asyncio.Task[None] | None = None
        """The work of a splitter that merges, with its calls."""
        self.damaged: list[str] = []
        """Files on disk 1 that have a bit flipped."""
        self.may_refuse = False
        """Whether it may refuse to start though nothing is wrong with its disks."""
        self.refusal: Exception | None = None
        """Why it did not start the last time; None: it did, or died meanwhile."""
        self._uuids = itertools.count(1)
        self._stores = 0
        """Ways to the object store that its processes have had."""

    @property
    def machine(self) -> SimulatedNode:
        """As splitters know it."""
        return self

    def new_uuid(self) -> uuid.UUID:
        """Counted, not drawn: it moves nothing of what the seed decides."""
        return uuid.UUID(int=(self.node_id << 64) + next(self._uuids))

    @property
    def life_stopped(self) -> bool:
        return self.life is not None and self.life.stopped

    @property
    def failure(self) -> Exception | None:
        """Why a node that is up does not do its work any more; None while it does."""
        return self.serving.failure if self.serving is not None else None

    # --- lives --------------------------------------------------------------------------------------------

    async def start(self) -> bool:
        """Boot the machine and start the process; whether the storage role runs."""
        assert not self.up, f"node {self.node_id} is up"
        life = self.life = Life(self.node_id, len(self.lives) + 1)
        self.lives.append(life)
        self.up = True
        self.refusal = None
        self.is_handing_in = False
        self.merging = None
        self.cluster.history.note("start", self.node_id, round(self.cluster.loop.time(), 6))
        faulty = self.disk1.faulty or self.disk2.faulty or bool(self.damaged)
        troubles = self.disk1.troubles + self.disk2.troubles
        starting = self.cluster.loop.run_in(life, self._start(life), name=f"start of node {self.node_id}")
        await self._wait(starting, life, 60)
        if not life.alive:
            return False
        require(starting.done(), f"node {self.node_id} does not start")
        try:
            self.storage = self.serving = starting.result()
        except (OSError, PowerLoss, MainstemError) as error:
            self.serving = None
            self.refusal = error
            faulty = faulty or self.disk1.troubles + self.disk2.troubles > troubles
            if faulty or self.damaged or self.may_refuse or isinstance(error, PowerLoss):
                self.lose_power(keep_all=True)
                return False
            raise Violation(f"node {self.node_id} does not start: {error!r}") from error
        return True

    @property
    def journal_bytes_read(self) -> int:
        return self.disk1.bytes_read.get("journal", 0)

    async def _start(self, life: Life) -> Storage:
        cluster = self.cluster
        before = self.journal_bytes_read
        storage = await Storage.open(
            StorageSetup(
                write_files=self.disk1,
                store_files=self.disk2,
                clock=self.clock,
                config=cluster.settings.storage,
                journal_config=cluster.settings.journal,
                store_config=cluster.settings.store,
                manifest_path=self.manifest_path,
                journal_path="journal",
                slots=[slot % cluster.settings.groups for slot in range(SLOTS)],
                topics=self._topics,
                was_deleted=lambda number: False,
                consensus=Consensus(
                    self.node_id,
                    cluster.network.attach(life),
                    dict(cluster.placements),
                    random.Random(self.rng.random()),
                    calls=cluster.calls.of(life),
                    forgotten=self.starts,
                    quorum_times=cluster.clocks,
                    placements=lambda: cluster.placements,
                    leader_heard=lambda group: cluster.leader_heard(group),
                ),
                feature_level=lambda: cluster.level,
                manifest_page_files=MANIFEST_PAGE_FILES,
                new_id=self.new_uuid,
                remote_store=self.new_object_store() if cluster.bucket is not None else None,
                read_cache_config=READ_CACHE,
                shared=cluster.shared,
            )
        )
        self.read_at_start = self.journal_bytes_read - before
        handlers = WholeFiles() if self.node_id <= cluster.settings.whole_files_upto else Handlers()
        storage.snapshots.register(handlers)
        storage.departures.register(handlers)
        storage.remote_recovery.register(handlers)
        storage.stretch_giving.register(handlers)
        storage.damage.register(handlers)
        storage.losses.register(handlers)
        storage.producer_mending.register(handlers)
        storage.rejoining.register(handlers)
        cluster.calls.serve(life, handlers)
        self.observe(storage, life)
        await storage.start()
        if cluster.moves:
            steps = MembershipSteps(
                self.node_id, storage.groups, lambda: cluster.placements, lambda node_id: cluster.nodes[node_id].up,
                storage.replication.take_part, storage.departures.look, self.clock,
            )  # fmt: skip
            self._steps = asyncio.get_running_loop().create_task(steps.run(), name="membership steps")
        return storage

    @property
    def store_prefix(self) -> str:
        """The beginning of the names of the cluster's objects."""
        return ""

    def new_object_store(self) -> ObjectStore:
        """A process's way to the cluster's objects."""
        whole = self.whole_object_store()
        return StoreFolder(whole, self.store_prefix.rstrip("/")) if self.store_prefix else whole

    def whole_object_store(self) -> ObjectStore:
        """A process's way to the object store, whichever clusters it has."""
        assert self.cluster.bucket is not None
        self._stores += 1
        return GuardedStore(
            SimulatedObjectStore(self.cluster.bucket),
            OBJECT_STORE,
            jitter=random.Random(f"{self.node_id} {self._stores}"),
            monotonic=self.clock.monotonic,
        )

    def _topics(self) -> Iterable[Topic]:
        return [] if self.metadata_hidden else list(self.cluster.topics)

    def lose_power(self, *, keep_all: bool | None = None) -> None:
        """The machine is off, or the process killed; at once, whatever is under way. `keep_all`: what was written but
        not synced is kept, as when only the process dies."""
        if self.life is None or not self.life.alive:
            return
        self.cluster.history.note("crash", self.node_id)
        self.cluster.loop.kill(self.life)
        self.serving = None
        self.up = False
        self.disk1.turn_off()
        self.disk2.turn_off()
        self._keep_all = self.rng.random() < 0.3 if keep_all is None else keep_all

    def boot(self) -> None:
        """The machine comes up with what is on its disks."""
        assert not self.up
        for disk in (self.disk1, self.disk2):
            disk.crash(keep_all=self._keep_all)

    _keep_all = True

    async def stop(self) -> None:
        """A clean stop."""
        storage, life = self.serving, self.life
        assert storage is not None
        assert life is not None
        self.serving = None
        closing = self.cluster.loop.run_in(life, self._stop(storage))
        await self._wait(closing, life, STOPPING_SECONDS)
        if life.alive:
            require(closing.done(), f"node {self.node_id} does not stop")
            if (error := closing.exception()) is not None and not isinstance(error, (OSError, MainstemError)):
                raise Violation(f"node {self.node_id} stops with {error!r}") from error
        self.lose_power(keep_all=True)

    async def _stop(self, storage: Storage) -> None:
        """The server closes first: it waits for a merge that is being recorded, and other calls of splitters end."""
        while self.is_handing_in:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.001)
        if self.merging is not None and not self.merging.done():
            self.merging.cancel()
            await asyncio.wait([self.merging])
        self.merging = None
        await self._close(storage)

    async def _close(self, storage: Storage) -> None:
        await storage.close()

    async def restart(self) -> bool:
        self.boot()
        return await self.start()

    def manifest_files(self) -> dict[str, bytes]:
        """The database's files, by their names. Of a node that is off."""
        assert not self.up
        path = Path(self.manifest_path)
        return {name: (path.parent / name).read_bytes() for name in (path.name, f"{path.name}-wal")
                if (path.parent / name).exists()}  # fmt: skip

    def put_manifest(self, files: dict[str, bytes]) -> None:
        """Have the node, which is off, find these. They are new files: what a life that was killed still has open it
        shares with nobody, as if its process were gone, and so a start reads the log that sqlite has left."""
        assert not self.up
        path = Path(self.manifest_path)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            (path.parent / name).unlink(missing_ok=True)
        for name, content in files.items():
            (path.parent / name).write_bytes(content)

    # --- calls --------------------------------------------------------------------------------------------

    async def call(self, coroutine: Coroutine[Any, Any, T], *, patience: float, life: Life | None = None) -> T | None:
        """Have the node do something; None when no answer comes: it died, or takes too long."""
        life = life or self.life
        assert life is not None
        if not life.alive:
            coroutine.close()
            return None
        task = self.cluster.loop.run_in(life, coroutine)
        await self._wait(task, life, patience)
        if not life.alive or not task.done():
            return None
        return task.result()

    async def _wait(self, task: asyncio.Task[Any], life: Life, patience: float) -> None:
        """Until the task is done, the process has ended, or so many seconds are over."""
        over = self.cluster.loop.create_task(life.over.wait())
        await asyncio.wait([task, over], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()

    def leads(self, group: int) -> bool:
        return self.serving is not None and self.serving.groups[group].serving

    def won(self, group: int) -> bool:
        """It won the last election, whether or not anything follows from that yet."""
        core = self.serving.groups[group].consensus.core if self.serving is not None else None
        return core is not None and core.role is Role.LEADER

    def voted_for(self, group: int) -> int:
        """Whom it voted for in its term; 0: nobody."""
        core = self.serving.groups[group].consensus.core if self.serving is not None else None
        return core.vote if core is not None else 0

    # --- what is watched ----------------------------------------------------------------------------------

    def observe(self, storage: Storage, life: Life) -> None:
        """Have the history told what this life applies, and look at what it prunes."""
        self.opened.append(storage)
        state, journal, pruning = storage.state, storage.journal, storage.pruning
        apply, recycle, superfluous = state.block_applied, journal.recycle, pruning.is_superfluous
        obey = state.command_applied

        def block_applied(
            header: BlockHeader, directory: Buffer, payload: memoryview | None, watched: Sequence[tuple[int, int]]
        ) -> None:
            if life.alive:
                self.cluster.guard(lambda: self.cluster.history.applied(self.node_id, header, directory, payload))
                self.applied[header.group] = max(self.applied.get(header.group, 0), header.index)
            apply(header, directory, payload, watched)

        def command_applied(group: int, index: int, command: control.Command) -> str:
            if life.alive:
                self.cluster.guard(lambda: self.cluster.history.obeyed(self.node_id, group, index, command))
            answer = obey(group, index, command)
            if life.alive and isinstance(command, control.RemoteChanged):
                self.cluster.guard(lambda: self._check_remote(storage, group, index))
            return answer

        async def recycled(before: int) -> list[int]:
            sequences = await recycle(before)
            if life.alive:
                self.cluster.guard(lambda: self._check_pruned(storage, before))
            return sequences

        async def is_superfluous(segment: SegmentInfo) -> bool:
            """If no snapshots are sent, all that a replica lacks must be kept."""
            if self.cluster.settings.snapshots:
                return await superfluous(segment)
            mark = state.journal_map.at_end_of(segment.sequence)
            if mark is not None and any(
                last > self.cluster.applied_everywhere(group) for group, last in enumerate(mark.last)
            ):
                return False
            return await superfluous(segment)

        for group in storage.groups:
            self._observe_snapshots(group, life)
            self._observe_promises(group, life)
        self._observe_kept(storage)
        self._observe_agreements(storage, life)
        self.disk2.removing = lambda path: self._check_removed(storage, life, path)
        state.block_applied = block_applied  # type: ignore[method-assign]
        state.command_applied = command_applied  # type: ignore[method-assign]
        journal.recycle = recycled  # type: ignore[method-assign]
        pruning.is_superfluous = is_superfluous  # type: ignore[method-assign]

    def _observe_snapshots(self, group: WriteGroup, life: Life) -> None:
        restart_behind = group.restart_behind

        def restarted_behind(snapshot: Snapshot) -> list[int]:
            if life.alive:
                self.cluster.snapshots += 1
                self.took_snapshots.add(group.group)
                self.cluster.guard(lambda: self.cluster.history.skipped(self.node_id, group.group, snapshot.index))
                self.applied[group.group] = max(self.applied.get(group.group, 0), snapshot.index)
            return restart_behind(snapshot)

        group.restart_behind = restarted_behind  # type: ignore[method-assign]

    def _observe_kept(self, storage: Storage) -> None:
        """Count the spans that stay where a snapshot is taken."""
        changes, manifest = storage.queue_store.changes, storage.queue_store.manifest
        supersede = changes.supersede

        async def superseded(group: int, position: int, ranges: Entries, kept_upto: int = 0) -> None:
            await supersede(group, position, ranges, kept_upto)
            self.cluster.kept_spans += sum(span.upto <= kept_upto for span in manifest.spans(group))

        changes.supersede = superseded  # type: ignore[method-assign]

    def _observe_agreements(self, storage: Storage, life: Life) -> None:
        rejoin = storage.replication.rejoin

        async def rejoined(
            number: int, hard_state: HardState, *, abstains_to: int, waits_for_leader: bool = False
        ) -> None:
            if life.alive and not abstains_to:
                self.cluster.promises.agrees(self.node_id, number)
            await rejoin(number, hard_state, abstains_to=abstains_to, waits_for_leader=waits_for_leader)

        storage.replication.rejoin = rejoined  # type: ignore[method-assign]
        for group in storage.groups:
            self._observe_agreement(group, life)

    def _observe_agreement(self, group: WriteGroup, life: Life) -> None:
        abstain_no_more = group.consensus.abstain_no_more

        def abstained(*, waits_for_leader: bool) -> None:
            if life.alive:
                self.cluster.promises.agrees(self.node_id, group.group)
            abstain_no_more(waits_for_leader=waits_for_leader)

        group.consensus.abstain_no_more = abstained  # type: ignore[method-assign]

    def _observe_promises(self, group: WriteGroup, life: Life) -> None:
        """Hold what this life begins with, and what it drops, against what the node has told others."""
        promises, guard = self.cluster.promises, self.cluster.guard
        node_id, number, blocks = self.node_id, group.group, group.blocks
        join, leave, truncate = group.consensus.join, group.consensus.leave, blocks.truncate

        def on_disk() -> int:
            return group.consensus.core.persisted_index if group.consensus.core is not None else 0

        def joined(
            config: RaftConfig,
            hard_state: HardState,
            membership: Membership,
            randomness: random.Random,
            *,
            committed_index: int = 0,
            abstains_to: int = 0,
            waits_for_leader: bool = False,
        ) -> None:
            if life.alive and abstains_to:
                guard(lambda: promises.abstains(node_id, number, blocks.last_index(), abstains_to, blocks, on_disk))
            elif life.alive:
                may_lack = self.starts.has_lost(number)
                guard(lambda: promises.begins(node_id, number, hard_state, blocks.last_index(), may_lack=may_lack))
            join(
                config,
                hard_state,
                membership,
                randomness,
                committed_index=committed_index,
                abstains_to=abstains_to,
                waits_for_leader=waits_for_leader,
            )

        def left() -> None:
            if life.alive:
                promises.left(node_id, number)
            leave()

        def truncated(first: int) -> tuple[list[LogBlock], list[int]]:
            if life.alive:
                guard(lambda: promises.cut(node_id, number, blocks, first))
            return truncate(first)

        group.consensus.join = joined  # type: ignore[method-assign]
        group.consensus.leave = left  # type: ignore[method-assign]
        blocks.truncate = truncated  # type: ignore[method-assign]

    def _check_removed(self, storage: Storage, life: Life, path: str) -> None:
        """All that the durable manifest names is there for whoever starts next (F)."""
        name, manifest = owner_of(path), storage.queue_store.manifest
        if life.alive and name is not None and name in manifest.files and path in paths_of(name):
            self.cluster.report(
                Violation(f"node {self.node_id}: {path} is removed, and the manifest counts on it", "F")
            )

    def _check_remote(self, storage: Storage, group: int, index: int) -> None:
        """A replica has applied a change of the remote tier (U)."""
        history = self.cluster.history
        if history.remote is not None:
            place = history.place(self.node_id, group)
            remote = storage.remote
            position, intended, leaving = remote.position(group), remote.intended(group), remote.leaving(group)
            what = f"node {self.node_id}"
            history.remote.check_position(what, group, index, place, position, intended, leaving)

    def _check_pruned(self, storage: Storage, before: int) -> None:
        """All that is not in this replica's manifest must still be in its journal (G). The rest of a replica that has
        left goes step by step."""
        for group in storage.groups:
            if storage.replication.has_left(group.group):
                continue
            split = storage.stored.manifest.position(group.group).position
            blocks = self.cluster.history.blocks.get(group.group, [])
            for index in range(split + 1, group.blocks.last_index() + 1):
                if index <= len(blocks) and index <= group.applied_index and blocks[index - 1].kind != KIND_DATA:
                    continue
                position = group.blocks.position_of(index)
                written = position or index > group.applied_index
                require(
                    bool(written) and (not position or sequence_of(position) >= before),
                    f"node {self.node_id}: block {index} of write group {group.group} is pruned, the manifest is at "
                    f"{split}",
                    "G",
                )
