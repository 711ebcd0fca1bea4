"""The storage role of a node, put together: disk 1, disk 2, and the ports that brokers and splitters hold.

Opening recovers; `run` writes and maintains until cancelled; `close` writes what was appended, checkpoints and
closes the files. Parts are made here and nowhere else, top to bottom in the order a message meets them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from mainstem.kernel import QueueTable, RecentIndex
from mainstem.model import FeatureLevel, HistogramSample, Sample, Topic
from mainstem.ports import Clock, Files, SideWork
from mainstem.side_thread import AtOnce
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.cluster.departures import Departures
from mainstem.storage.cluster.rejoining import Rejoining
from mainstem.storage.cluster.replication import Consensus, WriteGroupReplication
from mainstem.storage.cluster.snapshots import Snapshots
from mainstem.storage.config import StorageConfig
from mainstem.storage.errors import CorruptJournal, StorageError, StorageFailed
from mainstem.storage.groups.hard_states import HardStates
from mainstem.storage.groups.write_group import WriteGroup
from mainstem.storage.groups.write_loop import WriteLoop
from mainstem.storage.journal.config import JournalConfig
from mainstem.storage.journal.format import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, DIRECTORY_ROW_BYTES
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.segment_files import DIRECTORY as JOURNAL
from mainstem.storage.journal.segment_files import SEGMENT
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.config import QueueStoreConfig
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.queues.queue_admin import LocalQueueAdmin
from mainstem.storage.queues.usage import Usage
from mainstem.storage.reading.offset_lookup import OffsetLookup
from mainstem.storage.reading.pacing import Lane, Pacing
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.reading.record_lookups import RecordLookups
from mainstem.storage.reading.sealed_segments import SealedSegments
from mainstem.storage.repair.damage import JournalDamage, mend_hole
from mainstem.storage.repair.losses import Losses, refused
from mainstem.storage.repair.lost_blocks import LostBlocks
from mainstem.storage.repair.producer_mending import ProducerMending
from mainstem.storage.repair.rewriting import Rewriting
from mainstem.storage.repair.run_repair import RunRepair
from mainstem.storage.repair.waiting_groups import WaitingGroups
from mainstem.storage.samples import storage_samples
from mainstem.storage.split.split_log import LocalSplitLog
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.cold_producers import ColdProducers
from mainstem.storage.state.manifest_queue import ManifestQueue
from mainstem.storage.state.producer_expiry import ProducerExpiry
from mainstem.storage.state.queue_scan import topics_with_data
from mainstem.storage.state.recovery import RecoveredState, Recovery, check_replicas, rejoin_store
from mainstem.storage.upkeep.disk_watch import DiskWatch
from mainstem.storage.upkeep.maintenance import Maintenance
from mainstem.storage.upkeep.pruning import Pruning
from mainstem.storage.upkeep.retention import retention_class
from mainstem.storage.upkeep.retention_pass import TOPICS_PER_TURN, RetentionPass
from mainstem.storage.upkeep.scrubbing import Scrubber
from mainstem.supervised import OnDeath, Supervision
from mainstem.turns import Turns

log = logging.getLogger(__name__)


CONSENSUS_TICKS = "the clock of the write groups' consensus"
TICKS_SECONDS_MAX = 30.0
"""Long enough for a hundred elections: a machine that is merely slow does not stand still for as long."""

MENDED_AT_START_MAX = 16
"""Damaged blocks that one start makes whole: each costs it a walk through the journal. With more, the start reports the
rest, and the next start goes on."""


class Storage:
    """Holds the parts of a node's storage role and runs its tasks. Make it with `open`."""

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
        lost: LostBlocks,
    ) -> None:
        self._lost = lost
        self.feature_level = feature_level
        """The feature level that may be written now; see `open`."""
        self.placement = placement = Placement(slots)
        groups = placement.groups
        self._topics = topics
        self._was_deleted = was_deleted
        self.journal = journal
        self.queue_store = store
        self.state = state = AppliedState(store, groups, was_deleted, cache_bytes_max=config.write_cache_bytes)
        self.hard_states = hard_states
        self.replication = WriteGroupReplication(consensus, journal, state.journal_map)
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
        self.producer_mending = ProducerMending(consensus.node_id, self.groups, self.producers, clock, consensus.calls)
        self._recovery = Recovery(
            write_files,
            journal,
            self.groups,
            state,
            self.producers,
            consensus.node_id,
            partial(self.replication.has_alone, hard_states),
            store.commits.split_position,
            {group: position for group, (position, _by) in lost.raises().items()},
        )
        self.pacing = pacing
        self.write_loop = WriteLoop(journal, self.groups, state.journal_map, hard_states, clock, pacing.committed)
        self.write_loop.disk_failed = supervision.disk_failed
        journal.sync_failed = self.write_loop.disk_has_failed
        sealed = SealedSegments(journal, store.cache, state.index)
        self.read_path = ReadPath(
            state.table, state.index, journal, sealed, store, placement, self._leader_epoch, pacing
        )
        self.record_lookups = RecordLookups(side_work, Turns() if turns is None else turns)
        lookup = OffsetLookup(
            state.table, state.index, journal, store.history, self.read_path, placement, self.record_lookups
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
        self.usage = usage = Usage(state.table, state.index, journal, store.runs, placement.groups_at)
        self.queues = LocalQueueAdmin(self.groups, self.group_of, state.table, self.write_loop, lookup, usage)
        self.damage = JournalDamage(
            write_files, journal, self.groups, clock, consensus.node_id, consensus.calls, store.cache.forget,
            state.journal_map.dead, consensus.others,
        )  # fmt: skip
        self.losses = Losses(
            write_files, lost, self.groups, journal, state, placement, topics, self.damage.others, self.damage, clock
        )
        self.waiting = WaitingGroups(groups, journal, self.damage, self.replication.silent)
        self.waiting.resume = self.replication.resume
        self.replication.waits = self.waiting
        self._forgotten = consensus.forgotten
        """This start has found less in the journal than this node may have acknowledged."""
        self.read_path.damage_met = self.damage.heard
        self.split_log = LocalSplitLog(self.groups, journal, state, self.retention_classes, journal_path, self.damage)
        liveness = QueueLiveness(state.table, was_deleted, placement, self._is_gone)
        self.checkpointer = Checkpointer(
            write_files,
            clock,
            journal,
            self.groups,
            state,
            self.write_loop,
            self.producers,
            consensus.node_id,
        )
        self.checkpointer.held = lambda: self.waiting.holds_checkpoints
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
            supervision,
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
        self.replication.drive(self.groups, self.write_loop, self.messages, self.snapshots, store.commits.journal_index)
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
        self.scrubber = Scrubber(write_files, journal, self.groups, self.damage, store, pacing, clock, config)
        self.maintenance = Maintenance(
            config,
            clock,
            self.agreed_clock,
            self.producer_expiry,
            journal,
            self.groups,
            state,
            self.disk_watch,
            RetentionPass(state.table, journal, store, self.queues, placement, topics, self.agreed_clock, liveness),
            self.pruning,
            self.checkpointer,
            self.write_loop,
            self.rewriting,
            self.damage,
            self.scrubber,
            self.waiting,
            self.losses,
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
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> Storage:
        """Recover from the directories. `slots` maps each slot to its write group; `journal_path` is the absolute path
        of the journal's directory, for splitters on this host; `topics` lists the topics that exist, `was_deleted`
        tells whether a topic number existed and was deleted; without `consensus` the node is alone, and without
        `side_work` it inflates batches within its loop. `feature_level`: the level that all nodes of the cluster can
        read, so that it may be written; it only rises. `new_id` gives ids to a new queue store and to runs that stand
        for damaged ones. Raises a `StorageError` naming file and place when durable data cannot be read back, and no
        other node can give it."""
        consensus = consensus or Consensus()
        lost = await LostBlocks.open(write_files)
        for part in await lost.replace(clock.now_ms()):
            if consensus.forgotten is not None:
                await consensus.forgotten.got_back(part.group)
        await lost.look({int(name[:20]) for name in await write_files.names(JOURNAL) if name.endswith(SEGMENT)})

        async def attempt(*, over_holes: bool = False) -> Storage:
            return await cls._open(
                over_holes,
                write_files, store_files, clock, config, journal_config, store_config, manifest_path, journal_path,
                slots, topics, was_deleted, consensus, feature_level, side_work, turns, supervision, lost, new_id,
            )  # fmt: skip

        for _ in range(MENDED_AT_START_MAX):
            try:
                return await attempt()
            except CorruptJournal as error:
                if error.hole is None or not await mend_hole(
                    write_files, error.hole, consensus.calls, consensus.others
                ):
                    break
        return await attempt(over_holes=True)

    @classmethod
    async def _open(
        cls,
        over_holes: bool,
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
        lost: LostBlocks,
        new_id: Callable[[], uuid.UUID],
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
                store_files, manifest_path, store_config, clock, partial(pacing.take, Lane.DISK), supervision, new_id
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
                lost,
            )
            await storage._recover(over_holes=over_holes)
            opened.pop_all()
        return storage

    async def _recover(self, *, over_holes: bool) -> None:
        recovered = await self._recovery.run(over_holes=over_holes, before_cut=self._end_cut)
        await self._judge(recovered)
        self.write_loop.end = recovered.end
        self.checkpointer.recovered(recovered.checkpoint_position)
        alone = partial(self.replication.has_alone, self.hard_states)
        check_replicas(
            self.groups,
            self.queue_store,
            lambda group: (
                alone(group) or self.hard_states.left(group) or group in recovered.torn or self._has_lost(group)
            ),
        )
        if await rejoin_store(
            self.groups, self.state.table, self.queue_store, self.placement, self._topics,
            lambda group: alone(group) and group not in self.waiting,
        ):  # fmt: skip
            await self.checkpointer.save()
        log.info(
            "storage recovered: %d blocks in the logs, %d indexed, %d queues, %d write groups",
            recovered.blocks_logged,
            recovered.blocks_indexed,
            len(self.state.table),
            len(self.groups),
        )

    def _has_lost(self, group: int) -> bool:
        """Whether this node knows, from this start or an earlier one, that it lacks blocks it had promised to keep."""
        return self._forgotten is not None and self._forgotten.has_lost(group)

    async def _end_cut(self, what: str) -> None:
        """What a start cuts off at the journal's end was torn, or acknowledged and damaged since: other nodes may rely
        on it. Noted before the journal is changed: the start after this one could not tell any more."""
        if self._forgotten is None or all(
            self.replication.has_alone(self.hard_states, group.group) for group in self.groups
        ):
            return
        why = f"the journal ends at {what}: a write was torn there, or went bad since"
        log.warning("%s; until the leaders of its write groups have told what it lacks, this node has no vote", why)
        await self._forgotten.ends_lost(why)

    async def _judge(self, recovered: RecoveredState) -> None:
        """Decide which write groups must wait because the journal lacks blocks of theirs. Raises `CorruptJournal` when
        none is left to be served, and `StorageError`."""
        for hole in recovered.holes:
            self.damage.hole(hole.start, hole.end)
        await self.losses.found(recovered)
        missing = {
            group: (upto, name) for group, (upto, name) in recovered.missing.items()
            if not self.losses.given_up(group, upto, name)
        }  # fmt: skip
        for group in recovered.missing.keys() - missing.keys():
            upto, name = recovered.missing[group]
            log.warning("write group %d: blocks up to %d, gone with journal/%s, are given up", group, upto, name)
            self.state.split(group, self.state.manifest.reached(group), upto, ())
        concerned = {*recovered.torn, *missing, *(place.group for place in recovered.unread)}
        concerned = {group for group in concerned if not self.hard_states.left(group)}
        alone = {group for group in concerned if self.replication.has_alone(self.hard_states, group)}
        if len(alone) == len(self.groups):
            raise refused(CorruptJournal(
                f"{next(iter(recovered.reasons()))}. All write groups may have lost blocks, and no other node has "
                "them. Nothing was given up: restore the file", alone,
            ), self._lost)  # fmt: skip
        unread = [place for place in recovered.unread if place.group in concerned]
        for place in unread:
            self.damage.lost(place)
        self.waiting.for_blocks(unread)
        for group, (upto, name) in missing.items():
            what = f"journal/{name} is missing, and with it blocks up to {upto} that are not split"
            if group in alone:
                self.waiting.for_file(group, what, torn=False)
            elif group in concerned:
                lost_run = f"lost-{group}-{upto}.run"
                log.error("write group %d: %s; run %s is made of them from other replicas", group, what, lost_run)
                await self.state.manifest.lose(group, upto, lost_run, what)
        for group in concerned & recovered.torn.keys():
            if group in alone:
                self.waiting.for_file(group, recovered.torn[group], torn=True)
            else:
                self.waiting.for_leader(group)
        torn = {group: what for group, what in recovered.torn.items() if group in concerned - alone}
        if torn:
            if self._forgotten is None:
                raise CorruptJournal(f"{next(iter(torn.values()))}: restore the file, or replace the node", torn)
            await self._forgotten.blocks_lost(torn, len(self.groups), next(iter(torn.values())))
        self.waiting.tell()

    async def start(self) -> None:
        """Begin to write and to take part in the groups' logs. Write groups that this node has alone are served when
        this returns: they took a new term and logged a no-op in it. Others are served once their nodes have elected a
        leader."""
        start = self.supervision.start
        self._tasks = [
            start(self.state.manifest.run, "manifest", OnDeath.END),
            start(self.write_loop.run, "write loop", OnDeath.END),
        ]
        self.losses.begin(self._recovery.batches_behind)
        await self.hard_states.save({})  # counts the starts, and tests whether the disk can be written
        self._tasks.append(start(self.producers.read, "producers are read"))
        self._tasks.append(start(self.producers.run, "producers"))
        self._tasks.append(start(self.producer_mending.run, "damaged producers"))
        await self.replication.start(self.hard_states)
        await self.departures.finish()
        await self.write_loop.sync()
        consensus = partial(self.replication.run, partial(self.supervision.beat, CONSENSUS_TICKS, TICKS_SECONDS_MAX))
        self._tasks.append(start(consensus, "consensus", OnDeath.END))
        self._tasks.append(start(self.rejoining.run, "rejoining"))
        self._tasks.append(start(self.maintenance.run, "storage maintenance"))
        self._tasks.append(start(self.repair.run, "repair of runs"))

    async def close(self) -> None:
        """Write what was appended, checkpoint, close the files. Steps that a failed disk does not allow are left out:
        the next start does without them."""
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
        """End all write groups: this node must send nothing more in any of them."""
        self.write_loop.give_up(StorageFailed(str(error)))

    @property
    def failure(self) -> Exception | None:
        """The error because of which this node accepts no more writes; None while it does."""
        return self.write_loop.failure or self.state.manifest.failure

    @property
    def table(self) -> QueueTable:
        """All queues of this node."""
        return self.state.table

    @property
    def index(self) -> RecentIndex:
        """The newest blocks, and the write cache."""
        return self.state.index

    @property
    def manifest(self) -> ManifestQueue:
        """The positions of the split, and the way into the manifest."""
        return self.state.manifest

    def group_of(self, queue_id: int) -> int:
        return self.placement.group_of(queue_id)

    def _is_gone(self, group: int) -> bool:
        """Whether the replica of a write group left this node and has not come back."""
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
