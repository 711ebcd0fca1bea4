"""What a leader has taken and not proposed yet: the block that batches are copied into, and those closed before it.

Offsets and producer states of appended batches are an overlay on what is committed (`NEXT_OFFSET` runs ahead of
`COMMITTED_END`). It is discarded when the leadership is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy

from mainstem.kernel import (
    COMMITTED_END,
    NEXT_OFFSET,
    NO_SLOT,
    Arena,
    BlockBuilder,
    GroupLog,
    ProducerStates,
    QueueTable,
)
from mainstem.model import Buffer
from mainstem.storage.journal.format import DIRECTORY_ROW, KIND_DATA
from mainstem.storage.log_block import LogBlock


class OpenBlocks:
    """Of one group. `log` is its hot half: the kernel appends to the open block, and has a new one opened when that is
    full."""

    def __init__(
        self,
        group: int,
        table: QueueTable,
        producers: ProducerStates,
        *,
        block_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        self.log = GroupLog(
            group,
            table,
            producers,
            self._open,  # type: ignore[arg-type]  # one that is opened has a builder
            block_bytes_max=block_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        self.open: LogBlock | None = None
        self.closed: deque[LogBlock] = deque()
        """In the order they are to be proposed in."""
        self.next_index = 0
        """Of the block that is opened next, while this node leads."""
        self._table = table
        self._producers = producers
        self._arena = Arena()

    def begin(self, term: int, next_index: int) -> None:
        """This node leads in `term`; its first block will be `next_index`."""
        assert self.open is None, "nothing is appended before"
        assert not self.closed, "nothing is appended before"
        self.log.term = term
        self.next_index = next_index

    def _open(self) -> LogBlock:
        """A new block for what is appended next; the one before it is closed."""
        self.close()
        self.open = block = self._new(KIND_DATA)
        block.builder = BlockBuilder(self._arena)
        return block

    def add(self, kind: int) -> LogBlock:
        """A block of another kind, behind everything appended so far."""
        self.close()
        block = self._new(kind)
        self.closed.append(block)
        return block

    def _new(self, kind: int) -> LogBlock:
        block = LogBlock(kind, self.log.term, self.next_index)
        self.next_index += 1
        return block

    def close(self) -> None:
        """What is appended from now on goes into another block."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None
            self.log.close()

    def find(self, index: int) -> LogBlock | None:
        if self.open is not None and self.open.index == index:
            return self.open
        return next((block for block in self.closed if block.index == index), None)

    def take_closed(self) -> list[LogBlock]:
        """Those that nobody will propose any more."""
        closed = list(self.closed)
        self.closed.clear()
        return closed

    # --- the overlay --------------------------------------------------------------------------------------

    def discard(self, unapplied: Sequence[LogBlock]) -> None:
        """Forget what is appended and not applied: the batches in these blocks."""
        for block in unapplied:
            if block.builder is not None:
                block.close(block.created_ms)
                self._forget_offsets(block.directory)
                block.builder = None
        self._producers.discard_overlay()
        self.log.applied_bytes(self.log.pending_bytes)

    def _forget_offsets(self, directory: Buffer) -> None:
        for queue_id in numpy.unique(numpy.frombuffer(directory, DIRECTORY_ROW)["queue_id"]).tolist():
            slot = self._table.find(queue_id)
            if slot != NO_SLOT:
                self._table.set(slot, NEXT_OFFSET, self._table.get(slot, COMMITTED_END))
