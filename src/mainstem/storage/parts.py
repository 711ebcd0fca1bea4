"""The parts of a node's storage role, put together in the order in which a message meets them. Nothing runs yet.

A part gets what it needs when it is made. Two cycles are real: a journal whose sync failed tells the write loop, which
writes to it (`Disks.sync_failed`); and the write groups tell the replication, which drives them
(`WriteGroupReplication.drive`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainstem.kernel import QueueTable, RecentIndex
from mainstem.late import Late
from mainstem.model import Durability
from mainstem.rpc.messages.tier import GivenUpFile
from mainstem.storage.agreed_clock import AgreedClock
from mainstem.storage.cluster.departures import Departures
from mainstem.storage.cluster.rejoining import Rejoining
from mainstem.storage.cluster.remote_recovery import RemoteRecovery
from mainstem.storage.cluster.slot_mover import SlotMover
from mainstem.storage.cluster.snapshots import Snapshots
from mainstem.storage.cluster.write_group_replication import UNBOUNDED, ReplicationParts, WriteGroupReplication
from mainstem.storage.errors import StorageFailed
from mainstem.storage.journal.journal import Journal
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.placement import NO_OTHERS, NOTHING_MOVED
from mainstem.storage.queue_liveness import QueueLiveness
from mainstem.storage.queue_store.reading.stored_files import StoredFiles
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.queue_store.usage.queue_sums import KeptQueueSums
from mainstem.storage.queues.committed_reads import LocalCommittedReads
from mainstem.storage.queues.message_store import LocalMessageStore
from mainstem.storage.queues.queue_admin import LocalQueueAdmin
from mainstem.storage.queues.transaction_checks import TransactionChecks
from mainstem.storage.queues.transaction_markers import LocalTransactionMarkers
from mainstem.storage.queues.unsplit_topics import UnsplitTopics
from mainstem.storage.queues.usage import TellsStored, Usage
from mainstem.storage.reading.offset_lookup import OffsetLookup
from mainstem.storage.reading.pacing import Pacing
from mainstem.storage.reading.read_path import ReadPath
from mainstem.storage.reading.record_lookups import RecordLookups
from mainstem.storage.reading.sealed_segments import SealedSegments
from mainstem.storage.reading.stored_transactions import LongTermTransactions
from mainstem.storage.remote.chain.owner_beats import OwnerBeats
from mainstem.storage.remote.chain.remote_chain import RemoteChain
from mainstem.storage.remote.chain.topic_list_writing import TopicListWriter
from mainstem.storage.remote.decided.remote_tier import RemoteTier, WaysToLead
from mainstem.storage.remote.reading.remote_history import RemoteHistory
from mainstem.storage.remote.remote_upkeep import RemoteUpkeep
from mainstem.storage.remote.shared_queue_store import SharedQueueStore
from mainstem.storage.repair.file_repair import FileRepair
from mainstem.storage.repair.journal_damage import JournalDamage
from mainstem.storage.repair.losses import Losses
from mainstem.storage.repair.lost_blocks import LostBlocks
from mainstem.storage.repair.producer_mending import ProducerMending
from mainstem.storage.repair.rewriting import Rewriting
from mainstem.storage.repair.stretch_giving import StretchGiving
from mainstem.storage.repair.waiting_write_groups import WaitingWriteGroups
from mainstem.storage.setup import StorageSetup
from mainstem.storage.split.compaction_log import LocalCompactionLog
from mainstem.storage.split.merge_log import LocalMergeLog
from mainstem.storage.split.merge_room import MergeRoom
from mainstem.storage.split.run_ages import RunAges
from mainstem.storage.split.split_log import LocalSplitLog
from mainstem.storage.split.split_recording import OwnRecording, SharedRecording, SplitRecording
from mainstem.storage.split.tier_gaps import GapSources
from mainstem.storage.split.tier_log import LocalTierLog, RemotePlace
from mainstem.storage.state.applied import AppliedState
from mainstem.storage.state.checkpointer import Checkpointer
from mainstem.storage.state.manifest_queue import ManifestQueue
from mainstem.storage.state.producers.awaited_producers import AwaitedProducers
from mainstem.storage.state.producers.cold_producers import ColdProducers
from mainstem.storage.state.producers.producer_expiry import ProducerExpiry
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.state.state_recovery import Recovery
from mainstem.storage.upkeep.disk_watch import DiskWatch
from mainstem.storage.upkeep.given_up_files import GivenUpFiles, LocalAndOtherCopies, NoCopies
from mainstem.storage.upkeep.live_extents import live_extents
from mainstem.storage.upkeep.local_copies import LocalCopies
from mainstem.storage.upkeep.lost_store_files import LostStoreFiles
from mainstem.storage.upkeep.maintenance import Maintenance
from mainstem.storage.upkeep.pruning import Pruning
from mainstem.storage.upkeep.remote_files import TierFiles
from mainstem.storage.upkeep.remote_retention import RemoteRetention
from mainstem.storage.upkeep.restored_objects import RestoredObjects
from mainstem.storage.upkeep.retention import retention_class
from mainstem.storage.upkeep.retention_pass import RetentionPass, TopicClasses
from mainstem.storage.upkeep.scrubbing import Scrubber
from mainstem.storage.upkeep.untiering import Untiering
from mainstem.storage.write_groups.hard_states import HardStates
from mainstem.storage.write_groups.write_group import WriteGroup
from mainstem.storage.write_groups.write_loop import WriteLoop


class Disks(NamedTuple):
    """The files of both disks, open; nothing is read back from them yet."""

    journal: Journal
    journal_map: JournalMap
    hard_states: HardStates
    store: QueueStore
    remote: RemoteTier
    remote_history: RemoteHistory | None
    """None: this node has no way to the remote tier's store."""
    pacing: Pacing
    lost: LostBlocks
    lost_files: LostStoreFiles
    sync_failed: Late[[StorageFailed], None]
    """The journal's report of a sync that failed."""


class StorageParts:
    """Makes the parts and holds them."""

    def __init__(self, setup: StorageSetup, disks: Disks) -> None:
        clock, config, consensus = setup.clock, setup.config, setup.consensus
        node_id, calls = consensus.node_id, consensus.calls
        self.setup = setup
        self.supervision = setup.supervision
        self.journal = journal = disks.journal
        self.queue_store = store = disks.store
        self.remote = remote = disks.remote
        self.remote_history = disks.remote_history
        self.hard_states = disks.hard_states
        self.pacing = pacing = disks.pacing
        self.lost = disks.lost
        self.lost_files = disks.lost_files

        self.placement = placement = setup.placement()
        placement.grow(setup.slots, disks.journal_map.groups)
        self.store_work: QueueStore | SharedQueueStore = store
        """The merges and compactions of this node."""
        if setup.shared:
            assert self.remote_history is not None, "a shared store is an object store"
            self.store_work = SharedQueueStore(remote, self.remote_history, setup.store_config, clock, self.leads)
        self.state = state = AppliedState(
            store, remote, disks.journal_map, setup.was_deleted, placement,
            cache_bytes_max=config.write_cache_bytes, shared=setup.shared,
        )  # fmt: skip
        self.replication = WriteGroupReplication(
            consensus,
            journal,
            state.journal_map,
            self.hard_states,
            state.manifest.journal_index,
            config.snapshot_bytes_per_second or UNBOUNDED,
        )
        self.groups = groups = [self._write_group(group) for group in range(placement.groups)]
        """Those of the cluster, by number, whether or not this node has replicas of them; it grows in place."""
        self.agreed_clock = AgreedClock(clock, consensus.quorum_times)
        self.producer_expiry = ProducerExpiry(clock, self.agreed_clock, groups, seconds=config.producer_expiry_seconds)
        self._producer_states = states = [group.producers for group in groups]
        self.producers = ColdProducers(
            setup.write_files,
            clock,
            self.producer_expiry,
            states,
            setup.was_deleted,
            setup.writes_hardened,
            memory_max=config.producers_in_memory,
            count_max=config.producers_max,
        )
        self.awaited_producers = AwaitedProducers(setup.write_files, self.producer_expiry, states, self.producers)
        self._transactions = [group.transactions for group in groups]
        self.transaction_checks = TransactionChecks(self._transactions)
        self.producer_mending = ProducerMending(node_id, groups, self.producers, clock, calls)
        self.recovery = Recovery(
            setup.write_files,
            journal,
            groups,
            state,
            self.producers,
            node_id,
            self.has_alone,
            state.manifest.written,
            {group: position for group, (position, _by) in self.lost.raises().items()},
        )

        self.write_loop = WriteLoop(
            journal,
            groups,
            state.journal_map,
            self.hard_states,
            clock,
            pacing.committed,
            setup.supervision.disk_failed,
        )
        disks.sync_failed.bind(self.write_loop.disk_has_failed)
        ways = WaysToLead(groups, self.write_loop, setup.writes_tiered, setup.command_bytes_max)
        remote.lead(ways, self.agreed_clock.steady_ms)
        self.damage = JournalDamage(
            setup.write_files, journal, groups, clock, node_id, calls, store.cache.forget,
            state.journal_map.dead, self.lost, consensus.others,
        )  # fmt: skip
        self.losses = Losses(
            setup.write_files, self.lost, groups, journal, state, placement, setup.topics, self.damage.others,
            self.damage, clock,
        )  # fmt: skip
        self.waiting = WaitingWriteGroups(
            len(groups), journal, self.damage, self.replication.silent, self.replication.resume
        )

        self.read_path = ReadPath(
            state.table,
            state.index,
            journal,
            SealedSegments(journal, store.cache, state.index),
            store,
            placement,
            self.leader_epoch,
            pacing,
            self.damage.heard,
            remote=self.remote_history,
            wake=state.waiters.wake,
            supervision=setup.supervision,
            may_have_lost=self._may_have_lost,
        )
        self.stored_transactions = LongTermTransactions(store, self.remote_history, placement)
        self.record_lookups = RecordLookups(setup.side_work, setup.turns)
        lookup = OffsetLookup(
            state.table, state.index, journal, store.history, self.read_path, placement, self.record_lookups
        )
        self.messages = LocalMessageStore(
            groups,
            placement.slots,
            self.write_loop,
            self.read_path,
            lookup,
            state.waiters,
            self.awaited_producers,
            self.transaction_checks,
            clock,
            backlog_bytes_max=config.write_backlog_bytes_max,
        )
        stored: TellsStored = store.stored
        if setup.shared:
            assert self.remote_history is not None, "a shared store is an object store"
            stored = KeptQueueSums(self.remote_history.stored, clock)
        state.moves.changed, state.moves.reached = self._spread, self._has_reached
        state.moves.fence_applied = lambda: self.mover.wake()
        state.moves.has_applied, state.moves.keeps = self._has_applied, self._keeps
        state.moves.unsettled = lambda slot: self.mover.metadata.unsettled().get(slot, ())
        state.moves.known_committed, state.moves.snapshots_from = self._known_committed, state.manifest.written
        self.usage = Usage(state.table, state.index, journal, stored, placement.groups_at)
        self.queues = LocalQueueAdmin(
            groups, self.group_of, state.table, self.write_loop, lookup, self.usage, placement.is_shut
        )
        self.committed_reads = LocalCommittedReads(self._transactions, placement.stays_from, state.table, state.index)
        self.committed_reads.look_into(self.stored_transactions)
        self.markers = LocalTransactionMarkers(
            groups,
            self.group_of,
            state.table,
            self.messages,
            self.awaited_producers,
            self.producers,
            clock,
            setup.has_transactions,
        )
        self.split_log = LocalSplitLog(
            groups,
            journal,
            state,
            TopicClasses(state.table, setup.topics, setup.was_deleted).of_held,
            setup.journal_path,
            self.damage,
            self._recording(),
            setup.run_format,
            self.leads if setup.shared else None,
        )
        self.unsplit_topics = UnsplitTopics(
            journal, state.index, state.journal_map, placement.groups_at, self.split_log.begins
        )
        self.checkpointer = Checkpointer(
            setup.write_files,
            clock,
            journal,
            groups,
            state,
            self.write_loop,
            self.producers,
            node_id,
            held=lambda: self.waiting.holds_checkpoints,
        )

        self.mover = SlotMover(
            state.moves,
            groups,
            state.table,
            self.producers,
            self.write_loop,
            setup.topics,
            setup.was_deleted,
            setup.clock,
            block_bytes_max=setup.block_bytes_max,
        )

        self._meet_other_nodes()
        self._keep_up()

    def _meet_other_nodes(self) -> None:
        """Make the parts that copy from other nodes, and let replicas come, go and return."""
        setup, consensus, groups, state, store = (
            self.setup,
            self.setup.consensus,
            self.groups,
            self.state,
            self.queue_store,
        )
        self.snapshots = Snapshots(
            consensus.node_id,
            groups,
            state,
            store,
            self.checkpointer,
            self.producers,
            self.placement,
            self.pacing,
            setup.clock,
            setup.was_deleted,
            consensus.calls,
            setup.supervision,
            bytes_per_second=setup.config.snapshot_bytes_per_second,
            keeps_own=setup.journal_config.durability is Durability.SYNC,
        )
        self.remote_recovery = RemoteRecovery(self.remote, consensus.calls, consensus.others)
        self.repair = FileRepair(
            consensus.node_id,
            groups,
            state.table,
            store,
            state.manifest,
            self.placement,
            self.pacing,
            setup.clock,
            setup.topics,
            consensus.calls,
        )
        self.stretch_giving = StretchGiving(
            consensus.node_id,
            len(groups),
            state.table,
            store,
            state.manifest,
            self.placement,
            self.read_path,
            self.pacing,
            setup.clock,
            bytes_per_second=setup.config.snapshot_bytes_per_second,
        )
        self.departures = Departures(
            consensus.node_id,
            groups,
            state,
            self.journal,
            store,
            self.checkpointer,
            self.producers,
            self.placement,
            self.replication,
            consensus.calls,
        )
        self.rejoining = Rejoining(
            consensus.node_id,
            groups,
            self.replication,
            self.hard_states,
            consensus.calls,
            consensus.forgotten,
            consensus.placements,
            consensus.leader_heard,
            self.write_loop.wake,
        )
        self.replication.drive(ReplicationParts(groups, self.write_loop, self.messages, self.snapshots, self.waiting))

    def _keep_up(self) -> None:
        """Make the parts that work on their own: retention, pruning, the watch over both disks."""
        setup, groups, state, journal = self.setup, self.groups, self.state, self.journal
        liveness = QueueLiveness(state.table, setup.was_deleted, self.placement, self._is_gone, self._is_here)
        place = None
        if setup.remote_store is not None and not setup.shared:
            place = RemotePlace(setup.remote_store, setup.remote_url, setup.remote_folder, setup.remote_config)
        history = self.remote_history
        tier = TierFiles(self.remote, history.stored if history is not None else None)
        local, remote = (live_extents(one, self.placement, liveness) for one in (self.queue_store.stored, tier))
        self.tier_log = LocalTierLog(
            self.queue_store,
            self.remote,
            place,
            self.placement.groups,
            self.epoch_of,
            setup.writes_tiered,
            setup.topics,
            setup.clock,
            new_id=setup.new_id,
            gaps=GapSources(local, remote),
            shared=setup.shared,
            joins=setup.joins_segments,
        )
        self.run_ages = ages = RunAges(
            self.placement.groups,
            self.placement.ever_of,
            setup.topics,
            lambda: place is not None and setup.writes_tiered(),
            self.agreed_clock,
        )
        self.merge_log = LocalMergeLog(
            self.store_work,
            self.placement.groups,
            self.placement.bounds_in,
            liveness.log_starts,
            self.queues.confirm,
            setup.topics,
            retention_class,
            lambda: setup.writes_merged() and all(map(self._has_applied_files, range(len(groups)))),
            new_id=setup.new_id,
            borders=self.tier_log.borders,
            ages=ages.aged,
            gaps_in=self.placement.gaps_in,
            room=MergeRoom(setup.command_bytes_max) if setup.shared else None,
            joins=setup.merges_joined,
        )
        self.compaction_log = LocalCompactionLog(
            self.store_work,
            self.placement.groups,
            self.placement.bounds_in,
            setup.topics,
            setup.writes_merged,
            self.agreed_clock,
            new_id=setup.new_id,
            joins=setup.merges_joined,
            returned=self.placement.returned,
        )
        self.pruning = Pruning(
            journal,
            groups,
            state,
            self.write_loop,
            self.checkpointer,
            liveness,
            self.committed_reads,
            checkpoint_seconds=setup.config.checkpoint_seconds,
        )
        self.disk_watch = DiskWatch(setup.write_files, setup.config, journal, self.messages, self.write_loop)
        self.rewriting = Rewriting(journal, groups, self.write_loop, setup.clock, setup.writes_hardened)
        self.scrubber = Scrubber(
            setup.write_files, journal, groups, self.damage, self.queue_store, self.pacing, setup.clock, setup.config
        )
        retention = RetentionPass(
            state.table,
            journal,
            self.queue_store,
            self.queues,
            self.placement,
            setup.topics,
            self.agreed_clock,
            liveness,
            tier,
            self._has_applied_files,
        )
        store = setup.remote_store if not setup.read_only else None
        self.remote_upkeep = RemoteUpkeep(self.remote, store, groups) if store is not None else None
        self.remote_chain = RemoteChain(self.remote, store, groups) if store is not None else None
        self.topic_lists = (
            TopicListWriter(self.remote, store, groups, setup.topics_as_of)
            if store is not None and setup.topics_as_of is not None
            else None
        )
        lists = self.topic_lists
        self.owner_beats = (
            OwnerBeats(store, groups, lambda: lists.has_begun, setup.consensus.node_id, setup.clock.now_ms)
            if store is not None and lists is not None
            else None
        )
        self.remote_retention = RemoteRetention(
            tier, self.leads, self.placement, liveness, is_held=self.store_work.is_held
        )
        self.local_copies = LocalCopies(
            state.table,
            journal,
            self.queue_store,
            tier,
            self.placement,
            setup.topics,
            self.agreed_clock,
            liveness,
        )
        tiering = {"remote retention": self.remote_retention.run}
        if not setup.shared:
            tiering["local retention"] = self.local_copies.run
        if history is not None and not setup.shared:
            untiering = Untiering(
                state.table,
                tier,
                self.placement,
                setup.topics,
                lambda: {group.group: group.term for group in groups if group.serving},
                self.queues,
                self.read_path.first_here,
                history.last_offset,
            )
            tiering = {"untiering": untiering.run, **tiering}
        if setup.read_only:
            tiering = {}
        restored, self.given_up_files = None, None
        if history is not None and setup.remote_store is not None:
            restored = RestoredObjects(setup.remote_store, history).run
        if history is not None and store is not None:
            copies = LocalAndOtherCopies(
                setup.consensus.node_id, self.queue_store, self._others, setup.consensus.calls, setup.topics
            )
            self.given_up_files = GivenUpFiles(
                store, history, self.remote, self._led_by, self.store_work.is_held,
                NoCopies() if setup.shared else copies,
            )  # fmt: skip
        self.maintenance = Maintenance(
            setup.config,
            setup.clock,
            self.agreed_clock,
            self.producer_expiry,
            journal,
            groups,
            state,
            self.disk_watch,
            retention if not setup.read_only else None,
            self.pruning,
            self.checkpointer,
            self.write_loop,
            self.rewriting,
            self.damage,
            self.scrubber,
            self.waiting,
            self.losses,
            self._fold,
            tiering,
            restored,
        )

    def _write_group(self, number: int) -> WriteGroup:
        setup, state = self.setup, self.state
        group = WriteGroup(
            number,
            state.table,
            state,
            self.replication,
            block_bytes_max=setup.block_bytes_max,
            batch_bytes_max=setup.batch_bytes_max,
        )
        group.transactions.enabled = setup.has_transactions
        return group

    def _spread(self) -> None:
        """Have batches go where the placement and the fences say, and write groups go on that waited for a fence."""
        self.placement.shut = shut = self.state.moves.shut
        self.messages.spread(self.placement.routes, shut)
        for group in self.groups:
            group.fences_changed()

    def _has_applied_files(self, group: int) -> bool:
        """Whether this node has applied all blocks of a write group that are in its files. Before that, after a start,
        it may not know which queues came to the write group with these blocks: so it merges no files, and removes none
        that may have them."""
        return self._has_reached(group, self.state.manifest.written(group))

    def _known_committed(self, group: int, index: int, term: int) -> None:
        """Have a write group know, at the end of this turn of the event loop, that a block is committed."""
        consensus = self.groups[group].consensus
        core = consensus.core
        if core is not None and core.commit_index < index <= core.last_index:
            asyncio.get_running_loop().call_soon(consensus.known_committed, index, term)

    def _has_reached(self, group: int, index: int) -> bool:
        """Whether a write group's block is applied here, or no replica here will ever apply it."""
        replica = self.groups[group]
        return replica.applied_index >= index or not self.replication.has_part(replica) or self._awaits_leader(group)

    def _has_applied(self, group: int, index: int) -> bool:
        return group < len(self.groups) and self.groups[group].applied_index >= index

    def _keeps(self, group: int) -> bool:
        """Whether placement wants a replica of a write group here."""
        return self.setup.consensus.node_id in self.setup.consensus.placements().get(group, ())

    def _awaits_leader(self, group: int) -> bool:
        """Whether a replica begins here that no leader has added yet, as far as is known: that may take until the log
        begins behind all that this node must not get any more (`SlotMover.has_later`), and nothing waits for it."""
        replica, core = self.groups[group], self.groups[group].consensus.core
        is_empty = core is not None and not core.leader_id and not replica.last_index and not replica.applied_index
        return is_empty and self.hard_states.came_later(group)

    def grow(
        self,
        slots: Sequence[int],
        groups: int,
        numbers: Mapping[int, int] = NOTHING_MOVED,
        others: Mapping[int, Sequence[int]] = NO_OTHERS,
    ) -> None:
        """From now on the cluster has so many write groups, and slots belong to them like this; `numbers`: how often
        each slot has moved that has, `others`: where its queues have records besides (`Placement.grow`). All parts hear
        of it before anything else happens; the new write groups have no leader yet."""
        groups = max(groups, len(self.groups))
        for number in range(len(self.groups), groups):
            self.groups.append(self._write_group(number))
            self._producer_states.append(self.groups[number].producers)
            self._transactions.append(self.groups[number].transactions)
            self.snapshots.grow(self.groups[number])
        self.placement.grow(slots, groups, numbers, others)
        self.state.grow(groups)
        self.producer_expiry.grow()
        self.producers.grow()
        self.awaited_producers.grow()
        self.transaction_checks.grow()
        self.write_loop.grow()
        self._spread()
        self.remote.grow()
        for part in (
            self.waiting, self.stretch_giving, self.tier_log, self.run_ages, self.merge_log, self.compaction_log
        ):  # fmt: skip
            part.grow(groups)
        self.replication.grow()

    async def _fold(self) -> None:
        """Have the manifest keep files in pages, once all nodes may know of them."""
        if self.setup.writes_merged():
            await self.queue_store.changes.fold()

    @property
    def table(self) -> QueueTable:
        """All queues of this node."""
        return self.state.table

    @property
    def index(self) -> RecentIndex:
        """The newest blocks, and the write cache."""
        return self.state.index

    @property
    def manifest(self) -> ManifestQueue | SharedSplits:
        """The positions of the split, and the way into the manifest."""
        return self.state.manifest

    def group_of(self, queue_id: int) -> int:
        return self.placement.group_of(queue_id)

    def leader_epoch(self, queue_id: int) -> int:
        return self.groups[self.group_of(queue_id)].term

    def leads(self, group: int) -> bool:
        """Whether this node leads a write group, and serves it."""
        return self.groups[group].serving

    def _led_by(self, group: int) -> str:
        """Why this node cannot change a write group; empty: it leads it."""
        return "" if self.leads(group) else str(self.groups[group].consensus.refusal())

    def _may_have_lost(self, group: int, queue_id: int) -> bool:
        """Whether files that were given up, of any store, may have had records of a queue."""
        return self.remote.may_have_lost(group, queue_id) or self.lost_files.may_have_lost(group, queue_id)

    async def judge_lost(self, name: str, by: str) -> list[tuple[int, GivenUpFile]]:
        """As `LostStoreFiles.judge`."""
        return await self.lost_files.judge(name, by, self._others, self.store_work.is_held)

    def _others(self, group: int) -> list[int]:
        """The other nodes that have a write group."""
        return sorted(self.groups[group].consensus.voters - {self.setup.consensus.node_id})

    def epoch_of(self, group: int) -> int | None:
        """The term in which this node leads a write group; None: it does not, or does not serve it yet."""
        return self.groups[group].term if self.leads(group) else None

    def _recording(self) -> SplitRecording:
        splits, history = self.state.manifest, self.remote_history
        if isinstance(splits, SharedSplits):
            assert history is not None, "a shared store is an object store"
            return SharedRecording(splits, self.remote, history, self.epoch_of)
        return OwnRecording(splits, self.state.split)

    @property
    def stored(self) -> StoredFiles:
        """The files that splits are made into: those of this node, or of the shared store."""
        return self.store_work.stored

    def has_alone(self, group: int) -> bool:
        """Whether no other node has a replica of a write group."""
        return self.replication.has_alone(group)

    def _is_here(self, group: int) -> bool:
        """Whether this node has a part in a write group, or something of it yet."""
        return self.replication.has_part(self.groups[group]) or self.groups[group].last_index > 0

    def _is_gone(self, group: int) -> bool:
        """Whether the replica of a write group left this node and has not come back."""
        return self.replication.has_left(group) and not self.groups[group].last_index
