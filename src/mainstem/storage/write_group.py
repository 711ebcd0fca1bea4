"""A write group: one replicated log of blocks, and the queues whose batches it orders.

The driver of one group, in the order things happen to a batch:

    append    check producer and offsets, copy into the open block (`kernel.GroupLog`)
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
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mainstem.kernel import (
    Arena,
    BlockBuilder,
    GroupLog,
    ProducerState,
    ProducerStates,
    ProduceScan,
    QueueTable,
    Verdict,
)
from mainstem.model import AppendResult, Buffer, Outcome
from mainstem.prompt_future import PromptFuture
from mainstem.storage import control
from mainstem.storage.journal.format import KIND_CONTROL, KIND_DATA, KIND_NO_OP, BlockHeader
from mainstem.storage.journal.journal import BlockToWrite


class Ticket(PromptFuture[list[AppendResult]]):
    """One append request on its way: settled when the last of its blocks is committed."""

    __slots__ = ("blocks", "results")

    def __init__(self, results: list[AppendResult]) -> None:
        super().__init__()
        self.results = results
        """One per batch; or the kernel's scan, which has them written into it (see `ports.MessageStore`)."""
        self.blocks = 0

    def block_committed(self) -> None:
        self.blocks -= 1
        if not self.blocks and not self.done():
            self.set_result(self.results)

    def failed(self) -> None:
        """Turn every result that would have been a success into a failure of the storage, and answer now."""
        if self.done():
            return
        if isinstance(self.results, ProduceScan):
            self.results.fail(Verdict.STORAGE_FAILED)
        else:
            self.results = [
                AppendResult(Outcome.STORAGE_FAILED) if result.outcome is Outcome.OK else result
                for result in self.results
            ]
        self.set_result(self.results)


class PendingBlock:
    """A block from the moment it opens until it is applied."""

    __slots__ = ("builder", "commands", "content", "index", "kind", "outcome", "term", "tickets")

    def __init__(self, kind: int, term: int, index: int, builder: BlockBuilder) -> None:
        self.kind = kind
        self.term = term
        self.index = index
        self.builder = builder
        self.content: BlockToWrite | None = None
        """What is in it, from when it is taken."""
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
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        watched: Sequence[tuple[int, int]],
    ) -> None:
        """Every block, before its commands; `payload` None when only the journal has it. `watched`: (queue id,
        bytes) of the batches of queues that somebody waits for."""
        ...

    def command_applied(self, group: int, index: int, command: control.Command) -> str:
        """Apply one command; what it came to, for the proposer."""
        ...


class WriteGroup:
    """The log of one write group on this node."""

    def __init__(
        self, group: int, table: QueueTable, applier: Applier, *, block_bytes_max: int, batch_bytes_max: int
    ) -> None:
        """`block_bytes_max`: directory and payload of a data block, unless a single batch is larger; batches
        larger than `batch_bytes_max` are refused."""
        self.group = group
        self.last_index = 0
        self.applied_term = 0
        self.producers = ProducerStates()
        self.log = GroupLog(
            group,
            table,
            self.producers,
            self._open_block,
            block_bytes_max=block_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        """Its hot half: what a batch meets."""
        self._failure: Exception | None = None
        self._applier = applier
        self._arena = Arena()
        self._open: PendingBlock | None = None
        self._closed: deque[PendingBlock] = deque()
        self._in_flight: deque[PendingBlock] = deque()

    @property
    def term(self) -> int:
        return self.log.term

    @term.setter
    def term(self, term: int) -> None:
        self.log.term = term

    @property
    def applied_index(self) -> int:
        return self.log.applied_index

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self.log.applied_index = index

    # --- append -----------------------------------------------------------------------------------------

    def wait_for(self, index: int, ticket: Ticket) -> None:
        """Make a ticket wait until block `index`, which is not applied yet, is committed."""
        if self._open is not None and self._open.index == index:
            self._open.join(ticket)
            return
        for block in (*self._in_flight, *self._closed):  # it was appended earlier, or the block is full
            if block.index == index:
                block.join(ticket)
                return
        raise AssertionError(f"group {self.group}: block {index} is neither applied nor pending")

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

    def _open_block(self) -> PendingBlock:
        """A new block for what is appended next; the one before it is closed."""
        self._close()
        self._open = self._new_block(KIND_DATA)
        return self._open

    def _new_block(self, kind: int) -> PendingBlock:
        self.last_index += 1
        return PendingBlock(kind, self.term, self.last_index, BlockBuilder(self._arena))

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
            self.log.close()

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
            self._in_flight.append(block)
            builder = block.builder
            payload = control.encode(block.commands) if block.kind == KIND_CONTROL else builder.payload
            block.content = BlockToWrite(
                block.kind,
                self.group,
                block.term,
                block.index,
                builder.directory,
                builder.batch_count,
                (payload,),
                now_ms,
            )
            blocks.append(block.content)
            bytes_max -= builder.size
        return blocks

    def durable(self, header: BlockHeader) -> None:
        """The oldest block in flight is on this node's disk. A single voter commits by that alone."""
        block = self._in_flight[0]  # left there until it is applied: should that fail, `fail` answers its tickets
        content = block.content
        assert content is not None, "it was taken"
        assert block.index == header.index, (block.index, header.index)
        payload = block.builder.payload if block.kind == KIND_DATA else None
        outcomes = self.apply(header, content.directory, payload, block.commands)
        self._in_flight.popleft()
        self.log.applied_bytes(block.builder.payload_bytes)
        for ticket in block.tickets:
            ticket.block_committed()
        if block.outcome is not None and not block.outcome.done():
            block.outcome.set_result(outcomes)

    def fail(self, error: Exception) -> None:
        """The disk failed, or nobody writes any more: nothing that is pending will ever be acknowledged."""
        self._failure = error
        self._close()
        self.log.applied_bytes(self.log.pending_bytes)
        for block in (*self._in_flight, *self._closed):
            for ticket in block.tickets:
                ticket.failed()
            if block.outcome is not None and not block.outcome.done():
                block.outcome.set_exception(error)
        self._in_flight.clear()
        self._closed.clear()

    # --- apply --------------------------------------------------------------------------------------------

    def apply(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        commands: Sequence[control.Command],
    ) -> list[str]:
        """Make a committed block part of the state."""
        assert header.index == self.applied_index + 1, (self.group, header.index, self.applied_index)
        self.applied_term = header.term
        watched = self.log.apply(directory, header.index, header.created_ms)
        self._applier.block_applied(header, directory, payload, watched)
        deleted = [command.topic_number for command in commands if isinstance(command, control.QueuesDeleted)]
        if deleted:
            self.producers.forget_topics(deleted)  # together: it looks at every producer
        return [self._applier.command_applied(self.group, header.index, command) for command in commands]

    # --- recovery -----------------------------------------------------------------------------------------

    def recovered(self, header: BlockHeader, directory: Buffer, commands: Sequence[control.Command]) -> None:
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

