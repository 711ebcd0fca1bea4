"""Everything that applying a block changes on this node besides the group's own queues and producers.

One object for all write groups, called in journal order, live and at recovery alike.
"""

from __future__ import annotations

from mainstem.storage import control
from mainstem.storage.journal.format import KIND_DATA, BlockHeader
from mainstem.storage.journal_map import JournalMap
from mainstem.storage.manifest_queue import ManifestQueue
from mainstem.storage.queue_table import COMMITTED_END, LOG_START, NO_SLOT, QueueTable
from mainstem.storage.unsplit_index import UnsplitIndex
from mainstem.storage.waiters import Waiters


class AppliedState:
    """`write_group.Applier` of a node."""

    def __init__(
        self,
        table: QueueTable,
        index: UnsplitIndex,
        journal_map: JournalMap,
        manifest: ManifestQueue,
        waiters: Waiters,
    ) -> None:
        self._table = table
        self._index = index
        self._map = journal_map
        self._manifest = manifest
        self._waiters = waiters
        self.end = 0
        """Journal position behind the last applied block."""

    def block_applied(
        self, header: BlockHeader, directory: bytes | bytearray, payload: memoryview | None
    ) -> None:
        self._map.add(header)
        self._manifest.block_applied(header)
        self.end = header.end
        if header.kind == KIND_DATA:
            self._index.add(header, directory, payload)
            self._waiters.committed(memoryview(directory).cast("q"))

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        match command:
            case control.QueuesCreated(topic_number, first_partition, count):
                self._table.create(topic_number, first_partition, count)
            case control.QueuesDeleted(topic_number):
                self._table.drop(topic_number)
            case control.LogStartMoved(starts):
                for queue_id, start in starts:
                    self._move_log_start(queue_id, start)
            case control.SplitCommitted():
                self._map.cut()
                return self._manifest.decide(group, index, command)
        return "done"

    def _move_log_start(self, queue_id: int, start: int) -> None:
        slot = self._table.find(queue_id)
        if slot == NO_SLOT:
            return
        start = min(start, self._table.get(slot, COMMITTED_END))
        if start > self._table.get(slot, LOG_START):
            self._table.set(slot, LOG_START, start)
            self._waiters.wake([queue_id])
