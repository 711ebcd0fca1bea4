"""Holds the blocks that a leader has not proposed yet: the open block that batches are copied into, and those closed
before it.

Offsets and producer states of appended batches are an overlay on the committed state (`NEXT_OFFSET` runs ahead of
`COMMITTED_END`), discarded when this node loses the leadership.
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
    ProducerStates,
    QueueTable,
    WriteGroupLog,
)
from mainstem.model import Buffer
from mainstem.storage.journal.encoding.format import DIRECTORY_ROW, KIND_DATA
from mainstem.storage.write_groups.log_block import LogBlock


class OpenBlocks:
    """The unproposed blocks of one write group. Through `log` the kernel appends to the open block, and has a new one
    opened when that is full."""

    def __init__(
        self,
        group: int,
        table: QueueTable,
        producers: ProducerStates,
        *,
        block_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        self.log = WriteGroupLog(
            group,
            table,
            producers,
            self._open,  # type: ignore[arg-type]  # an opened block has a builder
            block_bytes_max=block_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        self.open: LogBlock | None = None
        self.closed: deque[LogBlock] = deque()
        """Blocks closed and not proposed yet, in the order of their indexes."""
        self.next_index = 0
        """Index of the block that is opened next, while this node leads."""
        self._table = table
        self._producers = producers
        self._arena = Arena()

    def begin(self, term: int, next_index: int) -> None:
        """Begin to take batches for `term`; the first block will be `next_index`."""
        assert self.open is None, "nothing is appended before `begin`"
        assert not self.closed, "nothing is appended before `begin`"
        self.log.term = term
        self.next_index = next_index

    def _open(self) -> LogBlock:
        """Open a new block for the next batches, and close the one before it."""
        self.close()
        self.open = block = self._new(KIND_DATA)
        block.builder = BlockBuilder(self._arena)
        return block

    def add(self, kind: int) -> LogBlock:
        """Add a block of another kind, behind everything appended so far."""
        self.close()
        block = self._new(kind)
        self.closed.append(block)
        return block

    def _new(self, kind: int) -> LogBlock:
        block = LogBlock(kind, self.log.term, self.next_index)
        self.next_index += 1
        return block

    def close(self) -> None:
        """Close the open block; the next batch goes into a new one."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None
            self.log.close()

    def find(self, index: int) -> LogBlock | None:
        if self.open is not None and self.open.index == index:
            return self.open
        return next((block for block in self.closed if block.index == index), None)

    def take_closed(self) -> list[LogBlock]:
        """Take out the closed blocks, because no caller will propose them any more."""
        closed = list(self.closed)
        self.closed.clear()
        return closed

    # --- the overlay --------------------------------------------------------------------------------------

    def discard(self, unapplied: Sequence[LogBlock]) -> None:
        """Forget the overlay of the batches in these blocks, which are appended and not applied."""
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
