"""The applied state of a node: everything that committed blocks have changed, besides each group's producers.

One object for all write groups, called in the order of each group's log, live and at recovery alike. Who reads or
prunes holds this object; only applying changes what is in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import numpy

from mainstem.kernel import COMMITTED_END, LOG_START, NO_SLOT, QueueTable, UnsplitIndex
from mainstem.model import Buffer, partition_of, topic_number_of
from mainstem.rpc.split import RunFile
from mainstem.storage import control
from mainstem.storage.journal.format import DIRECTORY_ROW, DIRECTORY_ROW_BYTES, KIND_DATA, BlockHeader
from mainstem.storage.journal.framing import size_of
from mainstem.storage.journal_map import JournalMap
from mainstem.storage.liveness import UNKNOWN
from mainstem.storage.manifest_queue import COMMITTED, ManifestQueue
from mainstem.storage.queue_store.store import QueueStore
from mainstem.storage.waiters import Waiters

QUEUE_IDS = struct.Struct(f"<Q{DIRECTORY_ROW_BYTES - 8}x")
"""The first column of a directory; it stands first in each row."""
assert DIRECTORY_ROW.fields is not None
assert DIRECTORY_ROW.fields["queue_id"][1] == 0

FEW_ROWS = 16
"""Up to so many, one by one is cheaper than numpy."""


class AppliedState:
    """What a node knows of everything committed; `group_ports.Applier` of all its groups."""

    def __init__(
        self, store: QueueStore, groups: int, was_deleted: Callable[[int], bool], *, cache_bytes_max: int
    ) -> None:
        """`was_deleted` knows the numbers of topics that existed once."""
        self._was_deleted = was_deleted
        self.table = QueueTable()
        self.index = UnsplitIndex(self.table, cache_bytes_max)
        self.journal_map = JournalMap(groups)
        self.manifest = ManifestQueue(store, groups)
        self.waiters = Waiters(self.table)

    def queues_seen(self, directory: Buffer) -> None:
        """Before a block from elsewhere is applied: its queues exist. Where their creation stands in the log of another
        group, that may be behind, here."""
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

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        match command:
            case control.QueuesCreated(topic_number, first_partition, count):
                # its deletion may stand in the log of another group, which is ahead here
                if not self._was_deleted(topic_number):
                    self.table.create(topic_number, first_partition, count)
            case control.QueuesDeleted(topic_number):
                self.table.drop(topic_number)
                self.waiters.wake_topic(topic_number)
            case control.LogStartMoved(starts):
                for queue_id, start in starts:
                    self._move_log_start(queue_id, start)
            case control.SplitCommitted(after, upto, files):  # in journals of version 0.1
                self.split(group, after, upto, files)
        return "done"

    def split(self, group: int, after: int, upto: int, files: Sequence[RunFile]) -> str:
        """Blocks (after, upto] of a group are in these runs, if that continues its split: `committed`, `replayed` or
        `refused: …`. Durable once `manifest.drained`."""
        outcome = self.manifest.commit(group, after, upto, files)
        if outcome == COMMITTED:
            self.journal_map.cut()
        return outcome

    def _move_log_start(self, queue_id: int, start: int) -> None:
        slot = self.table.find(queue_id)
        if slot == NO_SLOT:
            return
        start = min(start, self.table.get(slot, COMMITTED_END))
        if start > self.table.get(slot, LOG_START):
            self.table.set(slot, LOG_START, start)
            self.waiters.wake([queue_id])
