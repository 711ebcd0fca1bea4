"""A write group: one replicated log of blocks, and the queues whose batches it orders.

The driver of one group, in the order things happen to a batch:

    append    check producer and offsets, copy into the open block (`BlockBuilder`)
    take      close the open blocks: each gets its term and index (the log entry)
    durable   the journal says where the block lies and that it is on disk
    commit    a majority has it — with a single voter, as soon as it is durable here
    apply     the only place where committed state changes: queue table, producers, unsplit index, commands
    resolve   answer whoever waits for the block

`apply` is the same live and at recovery. Offsets of appended blocks are an overlay (`NEXT_OFFSET` runs ahead of
`COMMITTED_END`, producer states have their own); nothing of it is served before `apply`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mainstem.kernel import (
    COMMITTED_END,
    LOG_START,
    NEXT_OFFSET,
    NO_SLOT,
    BlockBuilder,
    ProducerState,
    ProducerStates,
    QueueTable,
)
from mainstem.model import AppendResult, BatchAppend, Outcome
from mainstem.storage import control
from mainstem.storage.journal.format import (
    DIRECTORY_ROW_BYTES,
    KIND_CONTROL,
    KIND_DATA,
    KIND_NO_OP,
    BlockHeader,
)
from mainstem.storage.journal.journal import BlockToWrite

DIRECTORY_CELLS = 8
"""64-bit cells per directory row."""

UNKNOWN_QUEUE = AppendResult(Outcome.UNKNOWN_QUEUE)


class Ticket:
    """One append request on its way: resolves its future when the last of its blocks is committed."""

    __slots__ = ("blocks", "future", "results")

    def __init__(self, future: asyncio.Future[list[AppendResult]], results: list[AppendResult]) -> None:
        self.future = future
        self.results = results
        self.blocks = 0

    def block_committed(self) -> None:
        self.blocks -= 1
        if not self.blocks and not self.future.done():
            self.future.set_result(self.results)

    def failed(self, outcome: Outcome) -> None:
        """Turn every result that would have been a success into `outcome`, and answer now."""
        if not self.future.done():
            self.future.set_result(
                [AppendResult(outcome) if result.outcome is Outcome.OK else result for result in self.results]
            )


class PendingBlock:
    """A block from the moment it opens until it is applied."""

    __slots__ = ("builder", "commands", "created_ms", "index", "kind", "outcome", "term", "tickets")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.term = 0
        self.index = 0
        self.created_ms = 0
        self.builder = BlockBuilder()
        self.commands: Sequence[control.Command] = ()
        self.outcome: asyncio.Future[list[str]] | None = None
        self.tickets: list[Ticket] = []

    def join(self, ticket: Ticket) -> None:
        """Make a ticket wait for this block, once however many of its batches ride here."""
        if not self.tickets or self.tickets[-1] is not ticket:
            self.tickets.append(ticket)
            ticket.blocks += 1


class GroupState(NamedTuple):
    """What a checkpoint keeps of a group, besides its queues."""

    term: int
    applied_index: int
    producers: list[tuple[int, int, ProducerState]]
    """(queue id, producer id, state)"""


class Applier(Protocol):
    """What applying a block does outside the group; one for all groups of a node."""

    def block_applied(
        self, header: BlockHeader, directory: bytes | bytearray, payload: memoryview | None
    ) -> None:
        """Every block, before its commands; `payload` None when only the journal has it."""
        ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        """Apply one command; what it came to, for the proposer."""
        ...


class WriteGroup:
    """The log of one write group on this node."""

    def __init__(self, group: int, table: QueueTable, applier: Applier, block_bytes_max: int) -> None:
        """`block_bytes_max`: directory and payload of a data block, unless a single batch is larger."""
        self.group = group
        self.term = 0
        self.last_index = 0
        self.applied_index = 0
        self.applied_term = 0
        self.producers = ProducerStates()
        self.appended_bytes = 0
        """Bytes of batches appended since the start."""
        self.appended_batches = 0
        self.pending_bytes = 0
        """Of these, not yet committed."""
        self._failure: Exception | None = None
        self._table = table
        self._applier = applier
        self._block_bytes_max = block_bytes_max
        self._open: PendingBlock | None = None
        self._closed: deque[PendingBlock] = deque()
        self._in_flight: deque[PendingBlock] = deque()

    # --- append -----------------------------------------------------------------------------------------

    def append(
        self,
        batch: BatchAppend,
        ticket: Ticket,
        now_ms: int,
        stamp: Callable[[BatchAppend, int], BatchAppend],
    ) -> AppendResult:
        """Put a batch into the open block. The result is final; the ticket says when it is durable."""
        slot = self._table.find(batch.queue_id)
        if slot == NO_SLOT:
            return UNKNOWN_QUEUE
        cells, base = self._table.cells(slot)
        log_start = cells[base + LOG_START]
        idempotent = batch.producer_id >= 0
        if idempotent:
            verdict = self.producers.check(
                batch.queue_id,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
            )
            if verdict.outcome is not Outcome.OK:
                return AppendResult(verdict.outcome)
            if verdict.duplicate is not None:
                self._wait_for(verdict.duplicate.block_index, ticket)
                return AppendResult(Outcome.OK, verdict.duplicate.base_offset, -1, log_start)
        append_time_ms = -1
        if batch.log_append_time:
            append_time_ms = now_ms
            batch = stamp(batch, now_ms)
        size = len(batch.data)
        block = self._open_block(size + DIRECTORY_ROW_BYTES)
        base_offset = cells[base + NEXT_OFFSET]
        cells[base + NEXT_OFFSET] = base_offset + batch.last_offset_delta + 1
        block.builder.add(batch, base_offset, self.term)
        block.join(ticket)
        self.appended_bytes += size
        self.appended_batches += 1
        self.pending_bytes += size
        if idempotent:
            self.producers.appended(
                batch.queue_id,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.record_count,
                base_offset,
                block.index,
                now_ms,
            )
        if block.builder.size >= self._block_bytes_max:
            self._close()
        return AppendResult(Outcome.OK, base_offset, append_time_ms, log_start)

    def propose(self, commands: Sequence[control.Command]) -> asyncio.Future[list[str]]:
        """Log control commands behind everything appended so far; the future brings what applying each
        came to, or the error that nothing will be written after."""
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            outcome.set_exception(self._failure)
            return outcome
        self._close()
        block = self._new_block(KIND_CONTROL if commands else KIND_NO_OP)
        block.commands = commands
        block.outcome = outcome
        self._closed.append(block)
        return outcome

    def _wait_for(self, index: int, ticket: Ticket) -> None:
        """Make a ticket wait until block `index` is committed; nothing when it already is."""
        if index <= self.applied_index:
            return
        for blocks in (self._in_flight, self._closed, (self._open,) if self._open else ()):
            for block in blocks:
                if block.index == index:
                    block.join(ticket)
                    return
        raise AssertionError(f"group {self.group}: block {index} is neither applied nor pending")

    def _open_block(self, size: int) -> PendingBlock:
        """The open block, if a batch that takes `size` bytes still fits into it; a new one otherwise."""
        if self._open is not None and self._open.builder.size + size > self._block_bytes_max:
            self._close()
        if self._open is None:
            self._open = self._new_block(KIND_DATA)
        return self._open

    def _new_block(self, kind: int) -> PendingBlock:
        block = PendingBlock(kind)
        self.last_index += 1
        block.index = self.last_index
        block.term = self.term
        return block

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None

    # --- take, durable, commit ----------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._open is not None or bool(self._closed)

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        """Close the open block and hand over the next blocks, at least one and about `bytes_max` of them."""
        self._close()
        blocks = []
        while self._closed and bytes_max > 0:
            block = self._closed.popleft()
            block.created_ms = now_ms
            self._in_flight.append(block)
            payload: Sequence[bytes | bytearray] = (block.builder.payload,)
            if block.kind == KIND_CONTROL:
                payload = (control.encode(block.commands),)
            blocks.append(
                BlockToWrite(
                    block.kind,
                    self.group,
                    block.term,
                    block.index,
                    bytes(block.builder.directory),
                    block.builder.batch_count,
                    payload,
                    now_ms,
                )
            )
            bytes_max -= block.builder.size
        return blocks

    def durable(self, header: BlockHeader) -> None:
        """The oldest block in flight is on this node's disk. A single voter commits by that alone."""
        block = self._in_flight[0]  # left there until it is applied: should that fail, `fail` answers its tickets
        assert block.index == header.index, (block.index, header.index)
        payload = memoryview(block.builder.payload) if block.kind == KIND_DATA else None
        outcomes = self.apply(header, block.builder.directory, payload, block.commands)
        self._in_flight.popleft()
        self.pending_bytes -= len(block.builder.payload)
        for ticket in block.tickets:
            ticket.block_committed()
        if block.outcome is not None and not block.outcome.done():
            block.outcome.set_result(outcomes)

    def fail(self, outcome: Outcome, error: Exception) -> None:
        """The disk failed, or nobody writes any more: nothing that is pending will ever be acknowledged."""
        self._failure = error
        self._close()
        self.pending_bytes = 0
        for block in (*self._in_flight, *self._closed):
            for ticket in block.tickets:
                ticket.failed(outcome)
            if block.outcome is not None and not block.outcome.done():
                block.outcome.set_exception(error)
        self._in_flight.clear()
        self._closed.clear()

    # --- apply --------------------------------------------------------------------------------------------

    def apply(
        self,
        header: BlockHeader,
        directory: bytes | bytearray,
        payload: memoryview | None,
        commands: Sequence[control.Command],
    ) -> list[str]:
        """Make a committed block part of the state."""
        assert header.index == self.applied_index + 1, (self.group, header.index, self.applied_index)
        self.applied_index = header.index
        self.applied_term = header.term
        if header.kind == KIND_DATA:
            self._apply_rows(header, memoryview(directory).cast("q"))
        self._applier.block_applied(header, directory, payload)
        return [self._apply_command(header.index, command) for command in commands]

    def _apply_rows(self, header: BlockHeader, rows: memoryview) -> None:
        table, producers = self._table, self.producers
        for row in range(0, header.batch_count * DIRECTORY_CELLS, DIRECTORY_CELLS):
            queue_id = rows[row]
            slot = table.find(queue_id)
            if slot == NO_SLOT:
                continue
            cells, base = table.cells(slot)
            base_offset, counts = rows[row + 1], rows[row + 5]
            end = base_offset + (counts & 0xFFFFFFFF) + 1
            cells[base + COMMITTED_END] = end
            if cells[base + NEXT_OFFSET] < end:
                cells[base + NEXT_OFFSET] = end
            producer_id = rows[row + 3]
            if producer_id >= 0:
                packed = rows[row + 6]
                producers.applied(
                    queue_id,
                    producer_id,
                    signed(packed >> 32, 16),
                    signed(packed, 32),
                    counts >> 32,
                    base_offset,
                    header.index,
                    header.created_ms,
                )

    def _apply_command(self, index: int, command: control.Command) -> str:
        if isinstance(command, control.QueuesDeleted):
            self.producers.forget_topic(command.topic_number)
        return self._applier.command_applied(self.group, index, command)

    # --- recovery -----------------------------------------------------------------------------------------

    def recovered(self, header: BlockHeader, directory: bytes, commands: Sequence[control.Command]) -> None:
        """Apply a block read back from the journal; its payload stays there."""
        self.apply(header, directory, None, commands)
        self.last_index = header.index
        self.term = header.term

    def dump(self) -> GroupState:
        """The applied state, for a checkpoint."""
        return GroupState(self.applied_term, self.applied_index, self.producers.dump())

    def load(self, state: GroupState) -> None:
        self.term = self.applied_term = state.term
        self.last_index = self.applied_index = state.applied_index
        self.producers.load(state.producers)


def signed(value: int, bits: int) -> int:
    """The low `bits` of `value` as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value
