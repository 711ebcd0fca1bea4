"""The storage role of a node, put together: disk 1, disk 2, and the ports that brokers and splitters hold.

Opening recovers; `run` writes and maintains until cancelled; `close` writes what was appended, checkpoints and
closes the files. Parts are made here and nowhere else, top to bottom in the order a message meets them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from mainstem.kernel import QueueTable, UnsplitIndex
from mainstem.model import FeatureLevel, HistogramSample, Sample, Topic
from mainstem.ports import Clock, Files, SideWork
from mainstem.side_thread import AtOnce
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.applied import AppliedState
from mainstem.storage.checkpointer import Checkpointer
from mainstem.storage.cold_producers import ColdProducers
from mainstem.storage.config import StorageConfig
from mainstem.storage.damage import Damage, mend_hole
from mainstem.storage.departures import Departures
from mainstem.storage.disk_watch import DiskWatch
from mainstem.storage.errors import CorruptJournal, StorageError, StorageFailed
from mainstem.storage.hard_states import HardStates
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.format import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, DIRECTORY_ROW_BYTES
from mainstem.storage.journal.journal import Journal
from mainstem.storage.liveness import Liveness
from mainstem.storage.maintenance import Maintenance
from mainstem.storage.manifest_queue import ManifestQueue
from mainstem.storage.message_store import LocalMessageStore
from mainstem.storage.offset_lookup import OffsetLookup
from mainstem.storage.pacing import Lane, Pacing
from mainstem.storage.placement import Placement
from mainstem.storage.producer_expiry import ProducerExpiry
from mainstem.storage.pruning import Pruning
from mainstem.storage.queue_admin import LocalQueueAdmin
from mainstem.storage.queue_scan import topics_with_data
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.read_path import ReadPath
from mainstem.storage.record_lookups import RecordLookups
from mainstem.storage.recovery import Recovery, check_replicas, rejoin_store
from mainstem.storage.rejoining import Rejoining
from mainstem.storage.replication import Consensus, Replication
from mainstem.storage.retention import retention_class
from mainstem.storage.retention_pass import TOPICS_PER_TURN, RetentionPass
from mainstem.storage.rewriting import Rewriting
from mainstem.storage.run_repair import RunRepair
from mainstem.storage.samples import storage_samples
from mainstem.storage.sealed_segments import SealedSegments
from mainstem.storage.snapshots import Snapshots
from mainstem.storage.split_log import LocalSplitLog
from mainstem.storage.usage import Usage
from mainstem.storage.write_group import WriteGroup
from mainstem.storage.write_loop import WriteLoop
from mainstem.supervised import OnDeath, Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)


CONSENSUS_TICKS = "the clock of the write groups' consensus"
TICKS_SECONDS_MAX = 30.0
"""A hundred elections could have been held: a machine that is merely slow does not stand still for as long."""

MENDED_AT_START_MAX = 16
"""Damaged blocks that one start makes whole: each costs it a walk through the journal. What is left of more of them is
told, and the next start goes on."""


class Storage:
    """Everything a node's storage role consists of. Make it with `open`."""

    def __init__(
        self,
        write_files: Files,
        clock: Clock,
        config: StorageConfig,
        journal: Journal,
        store: QueueStore,
        slots: Sequence[int],
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        journal_path: str,
        batch_bytes_max: int,
        pacing: Pacing,
        hard_states: HardStates,
        consensus: Consensus,
        feature_level: Callable[[], FeatureLevel],
        side_work: SideWork,
        turns: Turns | None,
        supervision: Supervision,
    ) -> None:
        self.feature_level = feature_level
        """What may be written now; see `open`."""
        self.placement = placement = Placement(slots)
        groups = placement.groups
        self._topics = topics
        self._was_deleted = was_deleted
        self.journal = journal
        self.queue_store = store
        self.state = state = AppliedState(store, groups, was_deleted, cache_bytes_max=config.write_cache_bytes)
        self.hard_states = hard_states
        self.replication = Replication(consensus, journal, state.journal_map)
        journal.dead = state.journal_map.dead
        journal.supervision = supervision
        self.groups = [
            WriteGroup(
                group,
                state.table,
                state,
                self.replication,
                block_bytes_max=min(config.block_bytes_max, batch_bytes_max),
                batch_bytes_max=batch_bytes_max,
            )
            for group in range(groups)
        ]
        self.agreed_clock = AgreedClock(clock, consensus.quorum_times)
        self.producer_expiry = ProducerExpiry(
            clock, self.agreed_clock, self.groups, seconds=config.producer_expiry_seconds
        )
        self.producers = ColdProducers(
            write_files,
            clock,
            self.producer_expiry,
            [group.producers for group in self.groups],
            was_deleted,
            lambda: feature_level() >= FeatureLevel.HARDENED,
            memory_max=config.producers_in_memory,
            count_max=config.producers_max,
        )
        self._recovery = Recovery(write_files, journal, self.groups, state, self.producers, consensus.node_id)
        self.pacing = pacing
        self.write_loop = WriteLoop(
            journal, self.groups, state.journal_map, hard_states, clock, pacing.committed
        )
        sealed = SealedSegments(journal, store.cache, state.index)
        self.read_path = ReadPath(
            state.table, state.index, journal, sealed, store, self.group_of, self._leader_epoch, pacing
        )
        self.record_lookups = RecordLookups(side_work, Turns() if turns is None else turns)
        lookup = OffsetLookup(
            state.table, state.index, journal, store, self.read_path, self.group_of, self.record_lookups
        )
        self.messages = LocalMessageStore(
            self.groups,
            slots,
            self.write_loop,
            self.read_path,
            lookup,
            state.waiters,
            self.producers,
            clock,
            backlog_bytes_max=config.write_backlog_bytes_max,
        )
        self.usage = usage = Usage(state.table, state.index, journal, store, placement.groups_of)
        self.queues = LocalQueueAdmin(self.groups, self.group_of, state.table, self.write_loop, lookup, usage)
        self.damage = Damage(
            write_files, journal, self.groups, clock, consensus.node_id, consensus.calls, store.cache.forget,
            state.journal_map.dead,
        )
        self.read_path.damage_met = self.damage.heard
        self.split_log = LocalSplitLog(
            self.groups, journal, state, self.retention_classes, journal_path, self.damage
        )
        liveness = Liveness(state.table, was_deleted, placement, self._is_gone)
        self.checkpointer = Checkpointer(
            write_files, clock, journal, self.groups, state, self.write_loop, self.producers,
            consensus.node_id,
        )
        self.snapshots = Snapshots(
            consensus.node_id,
            self.groups,
            state,
            store,
            self.checkpointer,
            self.producers,
            placement,
            pacing,
            clock,
            was_deleted,
            consensus.calls,
            bytes_per_second=config.snapshot_bytes_per_second,
        )
        self.repair = RunRepair(
            consensus.node_id,
            self.groups,
            state.table,
            store,
            state.manifest,
            placement,
            self.read_path,
            pacing,
            clock,
            consensus.calls,
            bytes_per_second=config.snapshot_bytes_per_second,
        )
        self.departures = Departures(
            consensus.node_id,
            self.groups,
            state,
            store,
            self.checkpointer,
            self.producers,
            placement,
            self.replication,
            consensus.calls,
        )
        self.rejoining = Rejoining(
            consensus.node_id,
            self.groups,
            self.replication,
            hard_states,
            consensus.calls,
            consensus.forgotten,
            consensus.placements,
            self.write_loop.wake,
        )
        self.replication.drive(
            self.groups, self.write_loop, self.messages, self.snapshots, store.journal_index
        )
        self.pruning = Pruning(
            journal,
            self.groups,
            state,
            self.write_loop,
            self.checkpointer,
            liveness,
            checkpoint_seconds=config.checkpoint_seconds,
        )
        self.disk_watch = DiskWatch(write_files, config, journal, self.messages, self.write_loop)
        self.rewriting = Rewriting(
            journal, self.groups, self.write_loop, clock, lambda: feature_level() >= FeatureLevel.HARDENED
        )
        self.maintenance = Maintenance(
            config,
            clock,
            self.agreed_clock,
            self.producer_expiry,
            journal,
            self.groups,
            state,
            self.disk_watch,
            RetentionPass(
                state.table, journal, store, self.queues, placement, topics, self.agreed_clock, liveness
            ),
            self.pruning,
            self.checkpointer,
            self.write_loop,
            self.rewriting,
            self.damage,
        )
        self.supervision = supervision
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls,
        *,
        write_files: Files,
        store_files: Files,
        clock: Clock,
        config: StorageConfig,
        journal_config: JournalConfig,
        store_config: QueueStoreConfig,
        manifest_path: str,
        journal_path: str,
        slots: Sequence[int],
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        consensus: Consensus | None = None,
        feature_level: Callable[[], FeatureLevel] = FeatureLevel.newest,
        side_work: SideWork | None = None,
        turns: Turns | None = None,
        supervision: Supervision | None = None,
    ) -> Storage:
        """Recover from the directories. `slots` maps each slot to its write group; `journal_path` is the
        absolute path of the journal's directory, for splitters on this host; `topics` lists the topics that
        exist, `was_deleted` knows the numbers of those that did once; without `consensus` the node is alone, and
        without `side_work` it inflates batches within its loop.
        `feature_level`: what all nodes of the cluster read, so that it may be written; it only goes up.
        Raises a `StorageError` naming file and place when what was durable cannot be read back, and no other node
        could be asked for it."""
        consensus = consensus or Consensus()

        async def attempt() -> Storage:
            return await cls._open(
                write_files, store_files, clock, config, journal_config, store_config, manifest_path, journal_path,
                slots, topics, was_deleted, consensus, feature_level, side_work, turns, supervision,
            )  # fmt: skip

        for _ in range(MENDED_AT_START_MAX):
            try:
                return await attempt()
            except CorruptJournal as error:
                if error.hole is None or not await mend_hole(
                    write_files, error.hole, consensus.calls, consensus.others
                ):
                    raise
        return await attempt()

    @classmethod
    async def _open(
        cls,
        write_files: Files,
        store_files: Files,
        clock: Clock,
        config: StorageConfig,
        journal_config: JournalConfig,
        store_config: QueueStoreConfig,
        manifest_path: str,
        journal_path: str,
        slots: Sequence[int],
        topics: Callable[[], Iterable[Topic]],
        was_deleted: Callable[[int], bool],
        consensus: Consensus,
        feature_level: Callable[[], FeatureLevel],
        side_work: SideWork | None,
        turns: Turns | None,
        supervision: Supervision | None,
    ) -> Storage:
        async with AsyncExitStack() as opened:
            journal = await Journal.open(write_files, clock, journal_config)
            opened.push_async_callback(journal.close)
            hard_states = await HardStates.open(write_files, consensus.node_id)
            opened.push_async_callback(hard_states.close)
            pacing = Pacing(
                clock,
                slowdown_max=config.background_slowdown_max,
                bytes_per_second_min=config.background_bytes_per_second_min,
            )
            store = await QueueStore.open(
                store_files, manifest_path, store_config, clock, partial(pacing.take, Lane.DISK)
            )
            opened.push_async_callback(store.close)
            batch_bytes_max = journal_config.block_bytes_max - BLOCK_HEADER_BYTES - DIRECTORY_ROW_BYTES
            storage = cls(
                write_files,
                clock,
                config,
                journal,
                store,
                slots,
                topics,
                was_deleted,
                journal_path,
                batch_bytes_max - BLOCK_ALIGNMENT,
                pacing,
                hard_states,
                consensus,
                feature_level,
                side_work or AtOnce(),
                turns,
                supervision or Supervision(),
            )
            await storage._recover()
            opened.pop_all()
        return storage

    async def _recover(self) -> None:
        recovered = await self._recovery.run()
        self.write_loop.end = recovered.end
        self.checkpointer.recovered(recovered.checkpoint_position)
        alone = partial(self.replication.has_alone, self.hard_states)
        check_replicas(
            self.groups, self.queue_store, lambda group: alone(group) or self.hard_states.left(group)
        )
        if await rejoin_store(
            self.groups, self.state.table, self.queue_store, self.placement, self._topics, alone
        ):
            await self.checkpointer.save()
        log.info(
            "storage recovered: %d blocks in the logs, %d indexed, %d queues, %d write groups",
            recovered.blocks_logged,
            recovered.blocks_indexed,
            len(self.state.table),
            len(self.groups),
        )

    async def start(self) -> None:
        """Begin to write and to take part in the groups' logs. Groups that this node has alone are served when this
        returns: they took a new term and logged a no-op in it; others when their nodes have agreed who leads."""
        start = self.supervision.start
        self._tasks = [
            start(self.state.manifest.run, "manifest", OnDeath.END),
            start(self.write_loop.run, "write loop", OnDeath.END),
        ]
        await self.hard_states.save({})  # counts the starts, and finds out whether the disk can be written
        self._tasks.append(start(self.producers.read, "producers are read"))
        self._tasks.append(start(self.producers.run, "producers"))
        await self.replication.start(self.hard_states)
        await self.departures.finish()
        await self.write_loop.sync()
        consensus = partial(self.replication.run, partial(self.supervision.beat, CONSENSUS_TICKS, TICKS_SECONDS_MAX))
        self._tasks.append(start(consensus, "consensus", OnDeath.END))
        self._tasks.append(start(self.rejoining.run, "rejoining"))
        self._tasks.append(start(self.maintenance.run, "storage maintenance"))
        self._tasks.append(start(self.repair.run, "repair of runs"))

    async def close(self) -> None:
        """Write what was appended, checkpoint, close the files. What a failed disk does not allow is left out:
        the next start does without it."""
        self.supervision.ceased(CONSENSUS_TICKS)
        if self._tasks:
            writing, maintaining = self._tasks[:2], self._tasks[2:]
            await stop(maintaining)
            self.replication.stop()
            await self.snapshots.close()
            await self.write_loop.close()
            if self.write_loop.failure is None:
                await self._last_checkpoint()
            await stop(writing)
        try:
            await self.journal.close()
        finally:
            await self.hard_states.close()
            await self.queue_store.close()

    async def _last_checkpoint(self) -> None:
        try:
            await self.checkpointer.checkpoint()
        except (StorageError, OSError) as error:
            log.error("no checkpoint at the end, the next start takes longer: %s", error)

    def give_up(self, error: Exception) -> None:
        """This node must say nothing more in any write group."""
        self.write_loop.give_up(StorageFailed(str(error)))

    @property
    def failure(self) -> Exception | None:
        """Why this node accepts no more writes; None while it does."""
        return self.write_loop.failure or self.state.manifest.failure

    @property
    def table(self) -> QueueTable:
        """All queues of this node."""
        return self.state.table

    @property
    def index(self) -> UnsplitIndex:
        """The newest blocks, and the write cache."""
        return self.state.index

    @property
    def manifest(self) -> ManifestQueue:
        """How far the split is."""
        return self.state.manifest

    def group_of(self, queue_id: int) -> int:
        return self.placement.group_of(queue_id)

    def _is_gone(self, group: int) -> bool:
        """It left, and is not here again."""
        return self.replication.has_left(group) and not self.groups[group].last_index

    def _leader_epoch(self, queue_id: int) -> int:
        return self.groups[self.group_of(queue_id)].term

    async def retention_classes(self) -> dict[int, str]:
        """Topic number → retention class, of every topic that has data here at the time of the call. A topic that the
        metadata has no record of, neither as existing nor as deleted, is kept for good."""
        held = await topics_with_data(self.state.table)
        classes: dict[int, str] = {}
        for looked_at, topic in enumerate(self._topics(), 1):
            if topic.number in held:
                classes[topic.number] = retention_class(topic.settings, topic.internal)
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        for looked_at, number in enumerate(held - classes.keys(), 1):
            if not self._was_deleted(number):
                classes[number] = "forever"
            if looked_at % TOPICS_PER_TURN == 0:
                await asyncio.sleep(0)
        return classes

    def samples(self) -> Iterable[Sample | HistogramSample]:
        return storage_samples(self)


async def stop(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a storage task had failed: %r", outcome)
