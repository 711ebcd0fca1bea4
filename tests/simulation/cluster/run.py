"""One simulated run of a cluster, from one seed: some seconds of load and faults, then everything is healed, and what
was promised must be there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy
from tests.fakes.files import PowerLoss
from tests.simulation.cluster.clients import Clients, Producer, Reader
from tests.simulation.cluster.cluster import Settings, SimulatedCluster, TroubleHandler
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.lives import ClusterLoop, Life
from tests.simulation.cluster.network import caused
from tests.simulation.cluster.node import NodeDisk, SimulatedNode
from tests.simulation.cluster.replica_reads import REPLICA_READS, REPLICA_READS_SHARE, ReplicaReader
from tests.simulation.cluster.rivals import RIVAL_COUNT, RIVALS, Rival
from tests.simulation.compactor import Compactors, PassSeen
from tests.simulation.machine import let_go
from tests.simulation.merger import Mergers
from tests.simulation.oracle import Violation, require, seed_failed
from tests.simulation.splitter import Splitters

from mainstem.errors import MainstemError
from mainstem.kernel import COMMITTED_END, LOG_START, NEXT_OFFSET, NO_SLOT, ProducerState
from mainstem.kernel.pure.producer_states import states_of
from mainstem.model import Buffer, Outcome, QueueRead, Tier, TopicSettings, topic_number_of
from mainstem.protocol.records import StoredBatch, read_records
from mainstem.rpc.messages.compact import CompactionWork
from mainstem.rpc.messages.split import WriteGroupPositions
from mainstem.storage.compacting.compact_plan import QueueRows
from mainstem.storage.errors import StorageError
from mainstem.storage.queue_store.reading.stored_slice import StoredSlice
from mainstem.storage.role import Storage
from mainstem.storage.store_files.store_file import MANY_GROUPS

HEALED_SECONDS = 120.0
"""Simulated. When everything works again, everything must be done within."""

PRUNING_ROUNDS_MAX = 10
"""A journal in which everything is split is short by then."""

TIMES_READ = 2
"""By a start, of each byte at the most: walked, and written again where nothing vouches for it."""

SEGMENTS_READ = 3
"""By a start, of those in which nothing is unsplit: the last one, and those that the blocks since then have begun."""

COMPACT_SHARE = 0.7
"""How often one that has merged, or has found nothing to merge, asks what to compact."""

MERGES_MAX = 200
"""Of one node at the end of a run, besides one of each file per write group: they come to an end."""

COMPACTION = "compaction"
"""Named among the faults of a run: some of its topics are compacted."""

COMPACTING_SHARE = 0.25
"""Of the runs whose faults nobody names."""

LEFT_BEHIND = "left behind"
"""The fault that only a snapshot puts right."""

EXPECTED = (MainstemError, OSError, PowerLoss)
"""Errors that a node may log."""


@dataclass
class Outcomes:
    """The sights of a run, for those who count."""

    trace: str = ""
    acknowledged: int = 0
    read_batches: int = 0
    elections: int = 0
    blocks: int = 0
    pruned_segments: int = 0
    snapshots: int = 0
    happened: dict[str, int] = field(default_factory=dict)
    served: dict[Tier, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    merges: dict[str, int] = field(default_factory=dict)
    compactions: dict[str, int] = field(default_factory=dict)
    moves: dict[str, int] = field(default_factory=dict)
    """The operator's doings, and machines that were lost, where replicas move."""


class HasLived(Protocol):
    """A node, storing or not, as far as it has to be ended."""

    @property
    def disk1(self) -> NodeDisk: ...

    @property
    def disk2(self) -> NodeDisk: ...

    @property
    def lives(self) -> list[Life]: ...

    @property
    def opened(self) -> list[Storage]: ...


class NodeSplitters(Splitters):
    """Those of one node. At the end they hurry."""

    hurries = False

    def _check(self, group: WriteGroupPositions) -> None:
        """A replica that was started again does not know yet how far its log is committed; its manifest does."""
        require(group.pruned <= group.split, f"pruned beyond the split: {group}", "G")
        require(group.durable <= group.committed, f"durable beyond committed: {group}", "G")

    def _slice_bytes(self) -> int:
        return 1 << 20 if self.hurries else super()._slice_bytes()

    def _pause_seconds(self) -> float:
        return 0.0 if self.hurries else super()._pause_seconds()


class Run:
    """`Run(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    compactors: Mapping[int, Compactors] = MappingProxyType({})
    """By node; none where no topic is compacted."""
    _ending_seconds = HEALED_SECONDS
    """Simulated; what clients have begun has ended by then."""
    _splitters_at_work: list[asyncio.Task[None]]

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        """`faults`: only these kinds."""
        self._rng = rng = random.Random(seed)
        self._seconds = seconds or rng.choice([2.0, 4.0, 8.0])
        self.loop = ClusterLoop()
        settings = Settings(rng)
        if LEFT_BEHIND in faults:
            settings.forget_soon()
        self.cluster = SimulatedCluster(rng.randrange(1 << 30), self.loop, directory, settings)
        self.clients = Clients(self.cluster, random.Random(rng.random()))
        self.faults = Faults(self.cluster, random.Random(rng.random()), faults)
        self.rivals: list[Rival] = []
        self._rivalry = random.Random(f"{seed} rivals") if RIVALS in faults else None
        self._splitters_at_work = []
        self.splitters = {
            node_id: NodeSplitters(node, random.Random(rng.random())) for node_id, node in self.cluster.nodes.items()
        }
        self.mergers = mergers_of(self.cluster, seed)
        self._replicas = random.Random(f"{seed} replicas")
        self._reads_replicas = REPLICA_READS in faults or (
            not any(faults) and self._replicas.random() < REPLICA_READS_SHARE
        )
        self._compaction = random.Random(f"{seed} compaction")
        """Draws from it move nothing else that the seed decides."""
        share = 0.0 if any(faults) else COMPACTING_SHARE
        if self._compaction.random() < share or COMPACTION in faults:
            self.compactors = compactors_of(self.cluster, seed)

    def play(self) -> Outcomes:
        handler = TroubleHandler(self.cluster, EXPECTED)
        logger = logging.getLogger("mainstem")
        propagate, logger.propagate = logger.propagate, False
        logger.addHandler(handler)
        self.loop.set_exception_handler(self._unhandled)
        try:
            self.loop.run_until_complete(self._play())
            return self._outcomes()
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate
            self.loop.close()

    def _unhandled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, (PowerLoss, Violation)):
            self.cluster.report(caused(str(context.get("message")), error))

    async def _play(self) -> None:
        story = self.loop.create_task(self._story())
        trouble = self.loop.create_task(self.cluster.troubled.wait())
        try:
            await asyncio.wait([story, trouble], return_when=asyncio.FIRST_COMPLETED)
            if self.cluster.trouble is not None:
                raise self.cluster.trouble
            await story
        finally:
            self.loop.set_exception_handler(lambda _loop, _context: None)
            logging.disable(logging.CRITICAL)
            nodes = self._nodes_ever()
            for node in nodes:
                node.disk1.turn_off()
                node.disk2.turn_off()
            await self.loop.bury([life for node in nodes for life in node.lives])
            await let_go(storage for node in nodes for storage in node.opened)
            logging.disable(logging.NOTSET)

    def _nodes_ever(self) -> Sequence[HasLived]:
        """All that ever had a life."""
        return list(self.cluster.nodes.values())

    def _holders_of(self, group: int) -> Collection[SimulatedNode]:
        """The nodes that have a write group in the end."""
        return self.cluster.nodes.values()

    def _held_queues(self, node: SimulatedNode) -> list[int]:
        """The queues that a node has in the end."""
        held = [group for group in range(self.cluster.settings.groups) if node in self._holders_of(group)]
        return [queue_id for queue_id in self._queue_ids if self.cluster.group_of(queue_id) in held]

    # --- the story ----------------------------------------------------------------------------------------

    async def _story(self) -> None:
        await self._start_nodes()
        await self._create_topics()
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        breaking = self.loop.create_task(self._looked_after(self.faults.run()))
        for node in self.cluster.nodes.values():
            self._begin_splitting(node)
        for _ in range(int(self._seconds * 2)):
            await asyncio.sleep(0.5)
            self.cluster.check_tasks()
        breaking.cancel()
        for task in self._splitters_at_work:
            task.cancel()
        async with asyncio.timeout(HEALED_SECONDS):
            await self.faults.heal()
        self.clients.ending = True
        async with asyncio.timeout(self._ending_seconds):
            await asyncio.gather(*working)
        await self._settle()

    async def _start_nodes(self) -> None:
        for node in self.cluster.nodes.values():
            await node.start()

    async def _create_topics(self) -> None:
        for _ in range(self._rng.randint(1, 2)):
            await self.cluster.create_topic(self._rng.randint(1, 3), patience=30, compaction=self._how_to_compact())
        if self._rivalry is not None:
            contested = await self.cluster.create_topic(1, patience=30)
            self.rivals = [
                Rival(self.clients, contested.queue_id(0), random.Random(self._rivalry.random()))
                for _ in range(RIVAL_COUNT)
            ]

    def _how_to_compact(self) -> TopicSettings | None:
        """The settings of the next topic, if it is one to be compacted."""
        rng = self._compaction
        if not self.compactors or (self.cluster.history.compacted and rng.random() < 0.3):
            return None
        return TopicSettings(
            cleanup_policy=frozenset({"compact"}),
            min_cleanable_dirty_ratio=rng.choice([0.0, 0.5]),
            min_compaction_lag_ms=rng.choice([0, 0, 0, 1500]),
            delete_retention_ms=rng.choice([0, 500, 500, 3000]),
        )

    async def _looked_after(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.cluster.report(error if isinstance(error, Violation) else caused("a client", error))

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        rng = self._rng
        topics = self.cluster.topics
        contested = {rival.queue_id for rival in self.rivals}
        queue_ids = [topic.queue_id(partition) for topic in topics for partition in range(topic.partitions)]
        queue_ids = [queue_id for queue_id in queue_ids if queue_id not in contested]
        self._queue_ids = queue_ids
        for producer_id in range(1, rng.randint(1, 3) + 1):
            yield Producer(self.clients, list(queue_ids), producer_id, -1).run()
        for _ in range(rng.randint(1, 3)):
            yield Producer(self.clients, list(queue_ids), -1, rng.choice([1, -1, -1, 0])).run()
        for _ in range(2):
            yield Reader(self.clients, list(queue_ids)).run()
        yield from (rival.run() for rival in self.rivals)
        if self._reads_replicas:
            yield ReplicaReader(self.clients, list(queue_ids), self._replicas).run()

    def _begin_splitting(self, node: SimulatedNode) -> None:
        self._splitters_at_work.append(self.loop.create_task(self._looked_after(self._split_and_merge(node))))

    async def _split(self, node: SimulatedNode) -> None:
        """The splitters of one node, well-behaved or not; they run on its host and die with it."""
        splitters, rng = self.splitters[node.node_id], node.rng
        while True:
            await asyncio.sleep(rng.choice([0.1, 0.5, 1.0]))
            if node.serving is not None:
                await node.call(self._split_once(node, splitters, rng.random() < 0.8), patience=30)

    async def _split_and_merge(self, node: SimulatedNode) -> None:
        await asyncio.gather(self._split(node), self._merge(node))

    async def _split_once(self, node: SimulatedNode, splitters: NodeSplitters, forward: bool) -> None:
        try:
            await (splitters.split() if forward else splitters.replay())
        except (MainstemError, OSError, PowerLoss):
            pass  # it starts again, from the manifest's positions
        except Exception as error:
            self.cluster.report(error if isinstance(error, Violation) else caused("a splitter", error))

    async def _merge(self, node: SimulatedNode) -> None:
        """Those that merge files of one node, well-behaved or not; they run on its host and die with it."""
        mergers = self.mergers[node.node_id]
        while True:
            await asyncio.sleep(mergers.rng.choice([0.1, 0.3, 1.0]))
            if node.serving is not None:
                forward = mergers.rng.random() < 0.85
                await node.call(self._once(node, mergers.merge if forward else mergers.replay), patience=30)
            compactors = self.compactors.get(node.node_id)
            if compactors is not None and node.serving is not None and compactors.rng.random() < COMPACT_SHARE:
                forward = compactors.rng.random() < 0.85
                await node.call(self._once(node, compactors.compact if forward else compactors.replay), patience=30)

    async def _once(self, node: SimulatedNode, work: Callable[[], Coroutine[Any, Any, bool | None]]) -> None:
        """A merge, or a compaction."""
        node.merging = asyncio.current_task()
        try:
            await work()
        except (MainstemError, OSError, PowerLoss):
            pass  # the same work is given again
        except asyncio.CancelledError:
            if node.serving is not None:
                raise
        except Exception as error:
            self.cluster.report(error if isinstance(error, Violation) else caused("a merge", error))

    # --- the end ------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Nothing goes wrong any more: leaders are found, all replicas come to the same, and all is there."""
        cluster = self.cluster
        for group in range(cluster.settings.groups):
            await cluster.lead(group, HEALED_SECONDS)
        await self._last_words()
        await self._converge()
        while await self._end_of_a_merge():  # retention goes on meanwhile
            await self._converge()
        cluster.check_tasks()
        cluster.history.check_promises()
        await self._compare_tables()
        await asyncio.gather(*(self._check_extents(node) for node in cluster.nodes.values()))
        await asyncio.gather(*map(self._read_all, cluster.nodes.values()))
        await self._finish_work()
        if self._rng.random() < 0.3:
            await self._start_again()
        elif self._rng.random() < 0.5:
            await self._measure_recovery()

    async def _end_of_a_merge(self) -> bool:
        """Wait for one that is under way, as what is merged during a look at all files comes twice. False: none is."""
        for node in self.cluster.nodes.values():
            if node.up and node.merging is not None and not node.merging.done():
                await asyncio.wait([node.merging], timeout=HEALED_SECONDS)
                require(node.merging is None or node.merging.done(), f"node {node.node_id}: a merge does not end", "S")
                return True
        return False

    async def _finish_work(self) -> None:
        """Split, merge and compact whatever is left."""
        await asyncio.gather(*map(self._split_all, self.cluster.nodes.values()))

    async def _last_words(self) -> None:
        """Every queue takes one more batch."""
        producer = Producer(self.clients, list(self._queue_ids), -1, -1)
        for queue_id in self._queue_ids:
            batch = self.clients.new_batch(queue_id, (-1, -1, -1), 1)
            for _ in range(200):
                (result,) = await producer.send(self.cluster.group_of(queue_id), [batch])
                if result is not None and result.outcome is Outcome.OK:
                    break
                await asyncio.sleep(0.2)
            else:
                raise Violation(f"queue {queue_id:#x} takes nothing: {result}", "S")

    async def _converge(self) -> None:
        """All nodes have applied the same."""
        cluster = self.cluster
        for _ in range(int(HEALED_SECONDS / 0.2)):
            applied = [
                [node.storage.groups[group].applied_index for node in self._holders_of(group)]
                for group in range(cluster.settings.groups)
            ]
            if all(len(set(of_group)) == 1 for of_group in applied):
                return
            await asyncio.sleep(0.2)
        raise Violation(f"replicas do not come to the same blocks, per group and node: {applied}", "S")

    async def _compare_tables(self) -> None:
        """The state that applying led to is the same everywhere, and is what the history says."""
        for queue_id in self._queue_ids:
            queue = self.cluster.history.queue(queue_id)
            start, end = queue.log_start, queue.end
            for node in self._holders_of(self.cluster.group_of(queue_id)):
                table = node.storage.table
                slot = table.find(queue_id)
                require(slot != NO_SLOT, f"node {node.node_id}: queue {queue_id:#x} is gone", "M")
                cells = [table.get(slot, cell) for cell in (LOG_START, COMMITTED_END, NEXT_OFFSET)]
                leads = node.leads(self.cluster.group_of(queue_id))
                require(
                    cells == [start, end, end] or (leads and cells[:2] == [start, end]),
                    f"node {node.node_id}: queue {queue_id:#x} is at {cells}, history at {start} to {end}",
                    "J",
                )
        for group in range(self.cluster.settings.groups):
            dumps = {
                node.node_id: [
                    entry for entry in await producers_of(node.storage, group)
                    if topic_number_of(entry[0]) not in self.cluster.history.forsaken
                ] for node in self._holders_of(group)
            }  # fmt: skip
            first = next(iter(dumps.values()))
            for node_id, dump in dumps.items():
                require(
                    dump == first, f"node {node_id}: other producers of write group {group}: {dump}, not {first}", "J"
                )

    async def _read_all(self, node: SimulatedNode) -> None:
        """Every queue from its start to its end, on this node. Coordinators may write on, as members' sessions end."""
        applied = {group.group: group.applied_index for group in node.storage.groups}
        for queue_id in self._held_queues(node):
            queue = self.cluster.history.queue(queue_id)
            offset, end = queue.log_start, queue.end_applied(applied)
            while offset < end:
                read = QueueRead(queue_id, offset, self._rng.choice([500, 5000, 1 << 20]))
                answer = await node.call(node.storage.messages.read([read], 1 << 20), patience=60)
                require(answer is not None, f"node {node.node_id}: a read takes too long")
                assert answer is not None
                (found,) = answer
                if offset < queue.log_start:  # retention went on meanwhile
                    offset = queue.log_start
                    continue
                if not found.batches and queue_id not in self._held_queues(node):  # a balancer took it away meanwhile
                    break
                require(bool(found.batches), f"node {node.node_id}: nothing at {offset} of {end}: {found}", "A")
                self.cluster.history.check_read(
                    f"node {node.node_id}", queue_id, offset, found.batches, found.next_offset
                )
                offset = found.next_offset

    async def _split_all(self, node: SimulatedNode) -> None:
        splitters, log = self.splitters[node.node_id], node.storage.split_log
        splitters.hurries = True
        for _ in range(40):
            positions = log.positions()
            written = all(node.storage.manifest.stored(group.group) >= group.split for group in positions)
            if written and not any(group.unsplit_bytes for group in positions):
                split = {group.group: group.applied_index for group in node.storage.groups}
                await self._compare_history(node, split)
                if await self._merge_all(node):
                    await self._compare_history(node, split)
                if await self._compact_all(node):
                    await self._compare_history(node, split)
                return
            try:
                await node.call(splitters.split(well_behaved=True), patience=60)
            except StorageError:  # a commit that a disk refused while it was broken is tried again in some seconds
                pass
            await asyncio.sleep(self.cluster.settings.journal.flush_interval_seconds / 2)
        raise Violation(f"node {node.node_id}: never split: {log.positions()}", "S")

    async def _merge_all(self, node: SimulatedNode) -> bool:
        """Merge whatever is worth it, and all runs at the end. Whether there was anything to merge."""
        mergers = self.mergers.get(node.node_id)
        if mergers is None:
            return False
        before = mergers.outcomes.get("merged", 0)
        files = len(node.storage.queue_store.manifest.files)
        for _ in range(MERGES_MAX + self.cluster.settings.groups * files):
            try:
                if not await node.call(mergers.merge(well_behaved=True, drain=True), patience=60):
                    return mergers.outcomes.get("merged", 0) > before
            except (StorageError, OSError):  # a disk that was broken a moment ago
                await asyncio.sleep(0.5)
        raise Violation(f"node {node.node_id}: there is always more to merge: {mergers.outcomes}", "S")

    async def _compact_all(self, node: SimulatedNode) -> bool:
        """Compact whatever is not compacted yet. Whether there was anything to compact."""
        compactors = self.compactors.get(node.node_id)
        if compactors is None:
            return False
        before = compactors.outcomes.get("compacted", 0)
        for _ in range(MERGES_MAX):
            try:
                if not await node.call(compactors.compact(well_behaved=True, drain=True), patience=60):
                    return compactors.outcomes.get("compacted", 0) > before
            except (StorageError, OSError):  # a disk that was broken a moment ago
                await asyncio.sleep(0.5)
        raise Violation(f"node {node.node_id}: there is always more to compact: {compactors.outcomes}", "S")

    async def _compare_history(self, node: SimulatedNode, split: dict[int, int]) -> None:
        """The queue store of this node alone holds the whole history, each batch once, in order (F), up to block
        `split` of each write group: coordinators may write on meanwhile."""
        await self._check_extents(node, split)
        storage, history = node.storage, self.cluster.history
        for queue_id in self._held_queues(node):
            queue = history.queue(queue_id)
            offset, end_of_split = queue.log_start, queue.end_applied(split)
            served: list[int] = []
            what = f"node {node.node_id}: queue store"
            while offset < end_of_split:
                found = await node.call(_next_stored(storage, queue_id, offset), patience=60)
                if offset < queue.log_start:
                    offset = queue.log_start
                    continue
                require(found is not None and bool(found.batches), f"{what}: ends at {offset} of {end_of_split}", "F")
                assert found is not None
                history.check_read(what, queue_id, offset, found.batches, found.next_offset)
                offset = found.next_offset
                if queue_id in history.compacted:
                    served += offsets_in(found.batches)
            if queue_id in history.compacted and not self._has_mended():
                history.compacted[queue_id].check_values(what, served, queue.log_start, offset)

    def _has_mended(self) -> bool:
        """Whether a node has made a file anew: records that it had compacted may be there again."""
        return any(storage.repair.mended_runs for node in self.cluster.nodes.values() for storage in node.opened)

    def _has_all_of(self, node: SimulatedNode) -> Callable[[int], bool]:
        """Tells whether a node has all that there is of a queue: by default of each."""
        return lambda queue_id: True

    async def _check_extents(self, node: SimulatedNode, split: Mapping[int, int] | None = None) -> None:
        """The content of the indexes of a node's files, in the order that readers go by: no batch twice, and no hole
        behind a queue's log start (F), up to its end at block `split` of each write group if all that is split. Runs go
        one by one from a queue that is deleted: in its log, or in that of another write group that took the topic from
        this node, where nobody reads it then."""
        storage, history = node.storage, self.cluster.history
        ends: dict[int, int] = {}
        has_all_of = self._has_all_of(node)

        async def extents() -> None:
            await storage.manifest.settled()  # what is decided may not be written yet
            self._check_spans(node)  # first: it names the file because of which there is a hole
            stored, before_it, pieces = storage.stored, None, []
            while before_it != (files := [name for name, _groups in stored.manifest.in_order()]):
                before_it = files  # a merge that began before may end now: its inputs and outputs are no batch twice
                rows_of_all = stored.all_rows(storage.placement.groups_at, whole=self.cluster.shared)
                pieces = [rows async for rows in rows_of_all]
            for rows in [numpy.sort(numpy.concatenate(pieces), order=["queue_id", "base_offset"])] if pieces else []:
                for queue_id, base, last in rows[["queue_id", "base_offset", "last_offset"]].tolist():
                    queue = history.queue(queue_id)
                    before, start = ends.get(queue_id, 0), queue.log_start
                    what = f"node {node.node_id}: queue {queue_id:#x}: extent from {base} on where {before} is next"
                    # of a history that was cut, a run may have dead batches that count in another one
                    require(base >= before or queue.deleted or last < start, f"{what}: a batch is there twice", "F")
                    taken = (
                        topic_number_of(queue_id) in history.deleted_topics and storage.table.find(queue_id) == NO_SLOT
                    )
                    # the write group that the queue was in before may be split later
                    arrived = split is None and queue.arrives_at(base)
                    compacted = history.compacted.get(queue_id)
                    waits = split is None and queue.arrives_between(max(before, start), base)
                    if compacted is not None and not (queue.deleted or taken or waits) and has_all_of(queue_id):
                        compacted.check_left_out(what, max(before, start), base)
                    require(
                        base <= max(before, start)
                        or queue.deleted
                        or taken
                        or compacted is not None
                        or arrived
                        or not has_all_of(queue_id),
                        f"{what}: a hole in the split history, the log starts at {start}",
                        "F",
                    )
                    ends[queue_id] = max(before, last + 1)

        await node.call(extents(), patience=60)
        if split is None:
            return
        for queue_id in self._held_queues(node):
            queue = history.queue(queue_id)
            end = queue.end_applied(split)
            require(
                ends.get(queue_id, 0) >= end or end <= queue.log_start,
                f"node {node.node_id}: queue {queue_id:#x}: a hole in the split history, it ends at "
                f"{ends.get(queue_id, 0)} of {end}, the log starts at {queue.log_start}",
                "F",
            )

    def _check_spans(self, node: SimulatedNode) -> None:
        """Files of a write group cover its blocks once, and a merged one has queues of its own write group alone."""
        manifest = node.storage.stored.manifest
        for group in range(self.cluster.settings.groups):
            covered = 0
            for span in manifest.spans(group):
                what = f"node {node.node_id}, write group {group}: "
                for entry in span:
                    owner = manifest.files[entry.name].group
                    require(
                        owner in (MANY_GROUPS, group),
                        f"{what}{entry.name} is counted for it, and has queues of write group {owner}",
                        "F",
                    )
                require(
                    span.after >= covered,
                    f"{what}files cover blocks from {span.after} on, others have those up to {covered}",
                    "F",
                )
                covered = span.upto

    async def _start_again(self) -> None:
        """A whole cluster that was stopped finds everything again."""
        await asyncio.gather(*(node.stop() for node in self.cluster.nodes.values()))
        await asyncio.gather(*(node.restart() for node in self.cluster.nodes.values()))
        await self._lead_again()
        await asyncio.gather(*map(self._read_all, self.cluster.nodes.values()))

    async def _measure_recovery(self) -> None:
        """The part of the journal that a start reads depends on what is not split, not on all that ever was (K)."""
        nodes, settings = self.cluster.nodes.values(), self.cluster.settings
        for _ in range(PRUNING_ROUNDS_MAX):
            await asyncio.sleep(settings.storage.checkpoint_seconds + settings.storage.prune_seconds)
            if all(len(node.storage.journal.segments()) <= 2 for node in nodes):
                break
        await self._last_words()
        await self._converge()
        unsplit = {
            node.node_id: sum(group.unsplit_bytes for group in node.storage.split_log.positions()) for node in nodes
        }
        for node in nodes:
            node.lose_power()
        await asyncio.gather(*(node.restart() for node in nodes))
        for node in nodes:
            bound = TIMES_READ * (unsplit[node.node_id] + SEGMENTS_READ * settings.journal.segment_bytes)
            require(
                node.read_at_start <= bound,
                f"node {node.node_id} reads {node.read_at_start} bytes of its journal at its start; with "
                f"{unsplit[node.node_id]} that are not split {bound} are enough",
                "K",
            )
        await self._lead_again()

    async def _lead_again(self) -> None:
        """After all nodes have started anew."""
        for group in range(self.cluster.settings.groups):
            await self.cluster.lead(group, HEALED_SECONDS)
        await self._last_words()
        await self._converge()
        self.cluster.history.check_promises()
        await self._compare_tables()

    def _outcomes(self) -> Outcomes:
        history, nodes = self.cluster.history, self.cluster.nodes.values()
        served: dict[Tier, int] = {}
        splits: dict[str, int] = {}
        merges: dict[str, int] = {}
        compactions: dict[str, int] = {}
        for node in nodes:
            for tier, count in node.storage.read_path.served.items():
                served[tier] = served.get(tier, 0) + count
            for kind, count in self.splitters[node.node_id].outcomes.items():
                splits[kind] = splits.get(kind, 0) + count
        for mergers in self.mergers.values():
            for kind, count in mergers.seen().items():
                merges[kind] = merges.get(kind, 0) + count
        for compactors in self.compactors.values():
            for kind, count in compactors.outcomes.items():
                compactions[kind] = compactions.get(kind, 0) + count
        return Outcomes(
            history.trace,
            self.clients.acknowledged,
            self.clients.read_batches,
            sum(len({block.term for block in blocks}) for blocks in history.blocks.values()),
            sum(map(len, history.blocks.values())),
            sum(node.storage.pruning.pruned_segments for node in nodes),
            self.cluster.snapshots,
            self.faults.happened,
            served,
            splits,
            merges,
            compactions,
        )


def mergers_of(cluster: SimulatedCluster, seed: int) -> dict[int, Mergers]:
    """By node. Their draws move nothing else that the seed decides."""
    return {
        node_id: Mergers(node, random.Random(f"{seed} merges {node_id}")) for node_id, node in cluster.nodes.items()
    }


async def _next_stored(storage: Storage, queue_id: int, offset: int) -> StoredSlice | None:
    """Batches from the queue store, from the first of the queue's stays that has any from the offset on."""
    for group, first, end in storage.placement.stretches_from(queue_id, offset):
        found = await storage.queue_store.history.read(queue_id, group, first, 3000)
        if found is not None and found.base_offset < end:
            return found
    return None


def compactors_of(cluster: SimulatedCluster, seed: int) -> dict[int, Compactors]:
    """By node. Their draws move nothing else that the seed decides."""
    return {
        node_id: Compactors(node, random.Random(f"{seed} compactions {node_id}"), passes_seen(cluster, node_id))
        for node_id, node in cluster.nodes.items()
    }


def passes_seen(cluster: SimulatedCluster, node_id: int) -> PassSeen:
    """Has the history hear of the passes of a node."""

    def handing_in(work: CompactionWork, queues: QueueRows) -> None:
        rows = queues[["queue_id", "end", "last"]].tolist()
        cluster.history.handed_in(f"node {node_id}", work.began_ms, rows)

    return handing_in


def offsets_in(batches: Iterable[Buffer]) -> list[int]:
    """Of the records in these batches."""
    return [record.offset for batch in batches for record in read_records(StoredBatch.parse(batch))]


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = Run(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error


async def producers_of(storage: Storage, group: int) -> list[tuple[int, int, ProducerState]]:
    """The knowledge of a node of the producers of a write group, in memory and in files, sorted."""
    found = []
    async for states in storage.producers.all_states(group):
        found += states_of(states.tobytes())
    return sorted(found)
