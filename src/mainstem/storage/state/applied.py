"""The applied state of a node: everything that committed blocks have changed, except each write group's producers.

One object serves all write groups. It is called in the order of each write group's log, live and at recovery alike.
Readers and pruning hold this object too; only applying a block changes what is in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NO_SLOT, QueueTable, RecentIndex
from mainstem.model import Buffer, partition_of, topic_number_of
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW, DIRECTORY_ROW_BYTES, KIND_DATA, BlockHeader
from mainstem.storage.journal.encoding.framing import size_of
from mainstem.storage.journal.journal_map import JournalMap
from mainstem.storage.placement import Placement
from mainstem.storage.queue_liveness import UNKNOWN
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state.busy_queues import BusyQueues
from mainstem.storage.state.manifest_queue import RECORDED, ManifestQueue
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.state.slot_moves import SlotMoves
from mainstem.storage.state.waiters import Waiters
from mainstem.storage.store_files.store_file import StoreFile
from mainstem.storage.write_groups import control

QUEUE_IDS = struct.Struct(f"<Q{DIRECTORY_ROW_BYTES - 8}x")
"""The queue ids of a directory, which stand first in each row."""
assert DIRECTORY_ROW.fields is not None
assert DIRECTORY_ROW.fields["queue_id"][1] == 0

FEW_ROWS = 16
"""Up to this many rows, a Python loop is cheaper than numpy."""


class AppliedState:
    """Applies the committed blocks of all write groups of a node (`write_group_ports.Applier`): queues, the recent
    index, control commands, waiting readers."""

    def __init__(
        self,
        store: QueueStore,
        remote: RemoteTier,
        journal_map: JournalMap,
        was_deleted: Callable[[int], bool],
        placement: Placement,
        *,
        cache_bytes_max: int,
        shared: bool = False,
    ) -> None:
        """`was_deleted(topic number)` tells whether a topic existed and was deleted. `shared`: all files of the queue
        store are in the remote tier."""
        self._was_deleted = was_deleted
        self.table = QueueTable()
        self.moves = SlotMoves(self.table, placement)
        self.index = RecentIndex(self.table, cache_bytes_max)
        self.journal_map = journal_map
        self.manifest: ManifestQueue | SharedSplits = (
            SharedSplits(remote, journal_map.groups, journal_map.cut)
            if shared
            else ManifestQueue(store, journal_map.groups)
        )
        self.remote = remote
        self.waiters = Waiters(self.table)
        self.busy_queues = BusyQueues()

    def grow(self, groups: int) -> None:
        """From now on blocks of so many write groups are applied."""
        self.journal_map.grow(groups)
        self.manifest.grow(groups)

    def queues_seen(self, directory: Buffer) -> None:
        """Create the queues of a block from another node before it is applied. Their creation may stand in the log of
        another write group that lags behind here."""
        if size_of(directory) <= FEW_ROWS * DIRECTORY_ROW_BYTES:
            find = self.table.find
            if all(find(queue_id) != NO_SLOT for (queue_id,) in QUEUE_IDS.iter_unpack(directory)):
                return
        queue_ids = numpy.frombuffer(directory, DIRECTORY_ROW)["queue_id"]
        unknown = self.table.column(queue_ids, LOG_START, UNKNOWN) == UNKNOWN
        if not unknown.any():
            return
        for queue_id in numpy.unique(queue_ids[unknown]).tolist():
            if not self._was_deleted(topic_number_of(queue_id)):
                self.table.create(topic_number_of(queue_id), 0, partition_of(queue_id) + 1)

    def block_applied(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        watched: Sequence[tuple[int, int]],
    ) -> None:
        self.manifest.block_applied(header)
        if header.kind == KIND_DATA:
            self.index.add(header, directory, payload)
            self.waiters.committed(watched)
            self.busy_queues.applied(header.group, directory, header.payload_length)

    def awaits(self, group: int, command: control.Command) -> bool:
        return isinstance(command, control.QueuesArrived) and self.moves.awaits(group, command)

    def holds(self, group: int) -> bool:
        return self.moves.holds(group)

    def transactions_ended(self, queue_ids: Sequence[int]) -> None:
        self.waiters.wake(queue_ids)  # those who read committed transactions alone may read on by more than the markers

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        match command:
            case control.QueuesCreated(topic_number, first_partition, count):
                # its deletion may stand in the log of another group, which is ahead here
                if not self._was_deleted(topic_number):
                    self.table.create(topic_number, first_partition, count)
            case control.QueuesDeleted(topic_number):
                # of every write group: where another one had no leader to be told, its log may never say it, as its
                # next leader finds nothing to delete once it has applied this
                self.table.drop(topic_number)
                self.waiters.wake_topic(topic_number)
            case control.LogStartMoved(starts):
                for queue_id, start in starts:
                    self._move_log_start(queue_id, start)
            case control.SplitRecorded(after, upto, files):  # in journals of version 0.1
                self.split(group, after, upto, list(map(StoreFile.of, files)))
            case control.RemoteChanged():
                return self.remote.applied(group, command, index)
            case control.SlotFenced():
                return self.moves.fenced(group, index, command)
            case control.QueuesArrived():
                return self.moves.arrived(group, index, command)
        return control.DONE

    def split(self, group: int, after: int, upto: int, files: Sequence[StoreFile]) -> str:
        """Record that blocks (after, upto] of a write group are in these runs, if that continues its split. Returns
        `RECORDED`, `REPLAYED` or `refused: …`. Durable once `manifest.drained`."""
        outcome = self.manifest.decide(group, after, upto, files)
        if outcome == RECORDED:
            self.journal_map.cut()
        return outcome

    async def pass_over(self, group: int, upto: int) -> None:
        """Move a write group's split on to this block, as nothing before it is worth one; with a shared store the
        leader does. Durable once `manifest.drained`."""
        if await self.manifest.pass_over(group, upto):
            self.journal_map.cut()

    def _move_log_start(self, queue_id: int, start: int) -> None:
        slot = self.table.find(queue_id)
        if slot == NO_SLOT:
            return
        start = min(start, self.table.get(slot, COMMITTED_END))
        if start > self.table.get(slot, LOG_START):
            self.table.set(slot, LOG_START, start)
            self.waiters.wake([queue_id])
