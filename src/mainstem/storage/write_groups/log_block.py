"""One block of a write group's log on this node. It exists from the moment it opens here, arrives from the leader or is
read back, until it is applied and no follower is behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from mainstem.kernel import BlockBuilder, ProduceScan, Verdict
from mainstem.model import AppendResult, Buffer, Outcome
from mainstem.prompt_future import PromptFuture
from mainstem.raft import Membership
from mainstem.storage.errors import FormatError
from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    KIND_CONTROL,
    KIND_DATA,
    KIND_MEMBERSHIP,
    BlockHeader,
)
from mainstem.storage.journal.encoding.framing import BlockToWrite, size_of
from mainstem.storage.write_groups import control

VERDICTS = {
    Outcome.NOT_LEADER: Verdict.NOT_LEADER,
    Outcome.STORAGE_BUSY: Verdict.STORAGE_BUSY,
    Outcome.STORAGE_FAILED: Verdict.STORAGE_FAILED,
    Outcome.UNDECIDED: Verdict.UNDECIDED,
}
"""Answers the batches of a block that will not be acknowledged."""


class Ticket(PromptFuture[list[AppendResult]]):
    """One append request on its way, settled when the last of its blocks is as safe as the request asked for."""

    __slots__ = ("blocks", "results")

    def __init__(self, results: list[AppendResult]) -> None:
        super().__init__()
        self.results = results
        """One result per batch; or the kernel's scan, which the results are written into (see `ports.MessageStore`)."""
        self.blocks = 0

    def block_safe(self) -> None:
        self.blocks -= 1
        if not self.blocks and not self.done():
            self.set_result(self.results)

    def block_failed(self, group: int, index: int, outcome: Outcome) -> None:
        """Turn the successes in a block that will not become safe into `outcome`. If it is not known which results lie
        in that block, this answers the whole request now: as undecided where there are several results, since others of
        them may still be committed or appended."""
        if self.done():
            return
        if isinstance(self.results, ProduceScan):
            self.results.fail(VERDICTS[outcome], group, index)
            self.block_safe()
            return
        taken = sum(result.outcome in WITHOUT_REFUSAL for result in self.results)
        told = AppendResult(outcome if taken == 1 or outcome in UNKNOWN_FATES else Outcome.UNDECIDED)
        self.set_result([
            told if result.outcome is Outcome.OK
            else AppendResult(Outcome.UNDECIDED) if result.outcome is Outcome.COLD_PRODUCER
            else result
            for result in self.results
        ])  # fmt: skip


WITHOUT_REFUSAL = frozenset({Outcome.OK, Outcome.COLD_PRODUCER})
"""The outcomes of batches that were taken, or that are judged once their producer's state has been read."""

UNKNOWN_FATES = frozenset({Outcome.UNDECIDED, Outcome.STORAGE_FAILED})
"""The outcomes of batches that may be in the log in spite of them."""


class LogBlock:
    """One block with its content and the tickets that wait for it; it gets its `header`, with its place in the journal,
    when it is written."""

    __slots__ = (
        "batch_count", "builder", "commands", "created_ms", "directory", "header", "index", "kind", "membership",
        "outcome", "payload", "size", "term", "tickets", "tickets_here",
    )  # fmt: skip

    def __init__(self, kind: int, term: int, index: int) -> None:
        self.kind = kind
        self.term = term
        self.index = index
        self.created_ms = 0
        self.batch_count = 0
        self.directory: Buffer = b""
        self.payload: Buffer | None = b""
        """The payload; None: only the journal has it."""
        self.size = 0
        """Bytes in the journal and on the wire, without padding; set when the block is closed."""
        self.header: BlockHeader | None = None
        self.commands: Sequence[control.Command] = ()
        self.membership: Membership | None = None
        self.builder: BlockBuilder | None = None
        """The builder of a data block that was opened here."""
        self.outcome: asyncio.Future[list[str]] | None = None
        """Brings the outcomes of the block's commands to their proposer."""
        self.tickets: list[Ticket] = []
        """Tickets that wait until the block is committed."""
        self.tickets_here: list[Ticket] = []
        """Tickets that wait until the block is durable on this node."""

    def close(self, now_ms: int) -> None:
        """Close the block: its content does not change any more."""
        self.created_ms = now_ms
        if self.builder is not None:
            self.directory = self.builder.directory
            self.payload = self.builder.payload
            self.batch_count = self.builder.batch_count
            self.size = BLOCK_HEADER_BYTES + self.builder.size
            return
        if self.kind == KIND_CONTROL:
            self.payload = control.encode(self.commands)
        elif self.membership is not None:
            self.payload = encode_membership(self.membership)
        self.size = _size(self.directory, self.payload)

    def to_write(self, group: int) -> BlockToWrite:
        assert self.payload is not None, "the block is in the journal already"
        return BlockToWrite(
            self.kind,
            group,
            self.term,
            self.index,
            self.directory,
            self.batch_count,
            (self.payload,),
            self.created_ms,
        )

    def join(self, ticket: Ticket, *, here: bool = False) -> None:
        """Make a ticket wait for this block, once, however many of its batches are in it."""
        tickets = self.tickets_here if here else self.tickets
        if not tickets or tickets[-1] is not ticket:
            tickets.append(ticket)
            ticket.blocks += 1

    def durable_here(self) -> None:
        """Answer the tickets that wait only for this node's disk."""
        if self.tickets_here:
            tickets, self.tickets_here = self.tickets_here, []
            for ticket in tickets:
                ticket.block_safe()

    def committed(self, outcomes: list[str]) -> None:
        """Answer all tickets: the block is applied, with these outcomes of its commands."""
        self.durable_here()
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            ticket.block_safe()
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(outcomes)

    def given_up(self, group: int, outcome: Outcome, error: Exception) -> None:
        """Fail all tickets: the block will not be committed, or the wait for its decision is over."""
        for ticket in (*self.tickets_here, *self.tickets):
            ticket.block_failed(group, self.index, outcome)
        self.tickets_here, self.tickets = [], []
        self.deposed(error)

    def deposed(self, error: Exception) -> None:
        """Keep the batches waiting, because another leader decides about the block; fail its commands, whose outcomes
        only the leader tells."""
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_exception(error)


def received_block(
    kind: int,
    term: int,
    index: int,
    created_ms: int,
    batch_count: int,
    directory: memoryview,
    payload: memoryview,
) -> LogBlock:
    """Make a block from what a leader sent. Raises `FormatError` when the commands or the membership in it cannot be
    read."""
    block = LogBlock(kind, term, index)
    block.created_ms = created_ms
    block.batch_count = batch_count
    block.directory = directory
    block.payload = payload
    block.size = _size(directory, payload)
    _read(block, payload, f"block {index} of term {term} from the leader")
    return block


def recovered_block(header: BlockHeader, directory: bytes, payload: bytes, where: str) -> LogBlock:
    """Make a block from what the journal holds. Raises `FormatError` naming `where`."""
    block = LogBlock(header.kind, header.term, header.index)
    block.created_ms = header.created_ms
    block.batch_count = header.batch_count
    block.directory = directory
    block.payload = None if header.kind == KIND_DATA else payload
    block.header = header
    block.size = _size(directory, block.payload)
    _read(block, payload, where)
    return block


def _size(directory: Buffer, payload: Buffer | None) -> int:
    return BLOCK_HEADER_BYTES + size_of(directory) + (size_of(payload) if payload is not None else 0)


def _read(block: LogBlock, payload: Buffer, where: str) -> None:
    if block.kind == KIND_CONTROL:
        block.commands = control.decode(bytes(payload), where)
    elif block.kind == KIND_MEMBERSHIP:
        block.membership = decode_membership(bytes(payload), where)


_membership_decoder = msgspec.msgpack.Decoder(tuple[list[int], list[int]])


def encode_membership(membership: Membership) -> bytes:
    return msgspec.msgpack.encode((sorted(membership.voters), sorted(membership.learners)))


def decode_membership(payload: bytes, where: str) -> Membership:
    """The membership in a payload. Raises `FormatError` naming `where`."""
    try:
        voters, learners = _membership_decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{where}: membership cannot be read: {error}") from error
    return Membership.of(voters, learners)
