"""A write group: one replicated log of blocks, and the queues whose batches it orders, on one of its nodes.

In the order things happen to a batch on the leader:

    append    check producer and offsets, copy into the open block (`kernel.GroupLog`, `open_blocks`)
    take      close the open blocks and propose them: each becomes the log's next entry and leaves for the followers
    written   the journal has it, durably; so the core is told, and that counts as one copy
    commit    a majority has it — with a single voter, as soon as it is durable here (`group_consensus`)
    apply     the only place where committed state changes: queue table, producers, unsplit index, commands
    answer    whoever waits for the block, or for more than that (`group_waiters`)

A follower enters at `GroupConsensus.received`: the blocks a leader sent go to the journal the same way. `apply` is the
same on every node, live and at recovery. Offsets of appended blocks are an overlay; nothing of it is served before
`apply`, and it is discarded when the leadership is lost. A leader takes batches only once its own no-op is applied, so
that it begins with no overlay.

Who appended a batch hears a refusal only if the batch is in no log: clients take refusals for that, and may send it
again in a way that nobody recognizes. So a leader that is deposed lets them wait until the next one has decided: its
blocks are committed or replaced. Only when that takes too long are they told that it is not known. (That the disk has
failed is told at once; no client takes it for an answer.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from mainstem.kernel import ProducerState, ProducerStates, QueueTable
from mainstem.model import Buffer, Outcome
from mainstem.raft import MembershipChange, NotLeader, NotReady, RaftCore, Snapshot
from mainstem.storage import control
from mainstem.storage.group_blocks import GroupBlocks
from mainstem.storage.group_consensus import GroupConsensus
from mainstem.storage.group_ports import Applier, Watcher
from mainstem.storage.group_waiters import GroupWaiters
from mainstem.storage.journal.format import KIND_CONTROL, KIND_DATA, KIND_NO_OP, BlockHeader
from mainstem.storage.journal.framing import BlockToWrite
from mainstem.storage.log_block import Ticket
from mainstem.storage.open_blocks import OpenBlocks

FATE_TICKS = 30
"""How long after the end of a leadership those wait who do not know what became of their batches: 1.5 s, an election
that takes its longest, and half as much again."""


class GroupState(NamedTuple):
    """What a checkpoint keeps of a group, besides its queues and its log."""

    term: int
    applied_index: int
    producers: list[tuple[int, int, ProducerState]]
    """(queue id, producer id, state)"""


class WriteGroup:
    """One write group on this node."""

    def __init__(
        self,
        group: int,
        table: QueueTable,
        applier: Applier,
        watcher: Watcher,
        *,
        block_bytes_max: int,
        batch_bytes_max: int,
    ) -> None:
        """`block_bytes_max`: directory and payload of a data block, unless a single batch is larger; batches
        larger than `batch_bytes_max` are refused. It takes part in consensus from `consensus.join` on."""
        self.group = group
        self.blocks = GroupBlocks()
        """The log."""
        self.applied_term = 0
        self.serving = False
        """This node leads, and takes batches."""
        self.producers = ProducerStates()
        self._open = OpenBlocks(
            group, table, self.producers, block_bytes_max=block_bytes_max, batch_bytes_max=batch_bytes_max
        )
        self.log = self._open.log
        """Its hot half: what a batch meets."""
        self._applier = applier
        self._watcher = watcher
        self._waiters = GroupWaiters()
        self.consensus = GroupConsensus(group, self.blocks, self, self._waiters, watcher)
        """With the other nodes; also where this node is the only one."""
        self._fate_ticks = 0
        """How much longer appenders wait for what a later leader decides; 0: nobody does."""

    @property
    def term(self) -> int:
        core = self.consensus.core
        return core.term if core is not None else self.applied_term

    @property
    def last_index(self) -> int:
        """The last block of the log, committed or not."""
        return self.blocks.last_index()

    @property
    def applied_index(self) -> int:
        return self.log.applied_index

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self.log.applied_index = index

    # --- append -------------------------------------------------------------------------------------------

    def wait_for(self, index: int, ticket: Ticket, *, here: bool = False) -> None:
        """Make a ticket wait until block `index` is committed, unless it is; with `here`, until it is durable on this
        node."""
        if index <= self.applied_index:  # that of a duplicate
            return
        block = self.blocks.held(index) or self._open.find(index)
        if block is None:
            raise AssertionError(f"group {self.group}: block {index} is neither applied nor pending")
        if not here or block.header is None:
            block.join(ticket, here=here)

    def wait_for_copies(self, index: int, ticket: Ticket, copies_min: int) -> None:
        """Make a ticket wait until block `index` is committed, and durable on that many nodes: more than a majority,
        or `wait_for` would do."""
        self._waiters.await_copies(index, copies_min, ticket)
        self._settle_copies()

    def _settle_copies(self) -> None:
        core = self.consensus.core
        if core is not None:
            self._waiters.settle_copies(self.applied_index, core.durable_index)

    def propose(self, commands: Sequence[control.Command]) -> asyncio.Future[list[str]]:
        """Log control commands behind everything appended so far; the future brings what applying each came to,
        or the error that nothing will be written after, or `NotTheLeader`."""
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        if self.consensus.failure is not None or not self.serving:
            outcome.set_exception(self.consensus.refusal())
            return outcome
        block = self._open.add(KIND_CONTROL if commands else KIND_NO_OP)
        block.commands = commands
        block.outcome = outcome
        return outcome

    def propose_membership(self, change: MembershipChange, now_ms: int) -> int:
        """Log the membership after one change, behind everything appended so far; its index. Raises `NotTheLeader`,
        `raft.NotReady` and `raft.MembershipRefused`."""
        self._open.close()
        self._propose_closed(now_ms)
        core = self.consensus.core
        if core is None or not self.serving:
            raise self.consensus.not_the_leader()
        if self._open.closed:
            raise NotReady(f"write group {self.group}: blocks wait to be proposed")
        entry = core.propose_membership(change)
        self._open.next_index = entry.index + 1
        self.consensus.pump()
        return entry.index

    # --- take and written ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Time passes by one tick."""
        self.consensus.tick()
        if self._fate_ticks:
            self._fate_ticks -= 1
            if not self._fate_ticks:
                self._leave_undecided()
        if self._open.closed:  # the core took no proposals when their turn came
            self._watcher.wake()

    @property
    def has_work(self) -> bool:
        return (
            self._open.open is not None
            or bool(self._open.closed)
            or bool(self.blocks.to_write)
            or self.consensus.hard_state_due is not None
        )

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        """Close and propose what was appended, and hand over the next blocks to write, at least one and about
        `bytes_max` of them."""
        self._open.close()
        self._propose_closed(now_ms)
        to_write = self.blocks.to_write
        blocks = []
        while to_write and bytes_max > 0:
            block = to_write.popleft()
            blocks.append(block.to_write(self.group))
            bytes_max -= block.size
        return blocks

    def _propose_closed(self, now_ms: int) -> None:
        core, closed = self.consensus.core, self._open.closed
        if core is None or not closed:
            return
        if self.serving and core.alone:
            self._append_closed(core, now_ms)
            return
        try:
            while closed:
                block = closed[0]
                block.close(now_ms)
                entry = core.propose(block, block.size, block.kind)
                assert (entry.index, entry.term) == (block.index, block.term), (
                    entry,
                    block.index,
                    block.term,
                )
                closed.popleft()
        except NotReady:  # handing over, or too much is on its way: later, or `stop_serving` answers
            pass
        except NotLeader:
            pass
        self.consensus.pump()

    def _append_closed(self, core: RaftCore, now_ms: int) -> None:
        """The short way of a group of one."""
        closed = self._open.closed
        while closed:
            block = closed[0]
            block.close(now_ms)
            index = core.append_alone()
            assert (index, core.term) == (block.index, block.term), (self.group, index, block.index)
            self.blocks.append(closed.popleft())

    def written(self, header: BlockHeader) -> bool:
        """A block lies in the journal, durably; False when the log has dropped it meanwhile. `flushed` follows."""
        live = self.blocks.written(header)
        if live:
            block = self.blocks.held(header.index)
            if block is not None:
                block.durable_here()
        if self._waiters.written is not None and self.blocks.is_written:
            self._waiters.all_written()
        return live

    def copied(self, headers: Sequence[BlockHeader], sources: Sequence[int]) -> dict[int, int]:
        """Blocks of the undecided end of the log lie in the journal once more, durably: those that are undecided still,
        and were not moved or replaced since, count there from now on. Where each of them lay, by its new place."""
        return {
            header.position: self.blocks.moved(header)
            for header, source in zip(headers, sources, strict=True)
            if header.index > self.applied_index
            and self.blocks.position_of(header.index) == source
            and self.blocks.term(header.index) == header.term
        }

    def flushed(self, header: BlockHeader) -> None:
        """Everything up to this block, which is live, is durable: the core is told, what that commits is applied."""
        core = self.consensus.core
        if core is None:
            return
        if self.serving and core.alone:
            if core.persisted_alone(header.index, header.term):
                for index in range(self.applied_index + 1, header.index + 1):
                    self.commit(index)
                core.applied_alone(header.index)
            if self._waiters.copies:
                self._settle_copies()
        else:
            core.persisted(header.index, header.term)
            self.consensus.pump()

    async def all_written(self) -> None:
        """Until the whole log lies in the journal, or nothing is written any more. While a snapshot is installed
        nothing comes to it."""
        if self.consensus.failure is None and not self.blocks.is_written:
            await self._waiters.await_written()

    def fail(self, error: Exception) -> None:
        """The disk failed, or nobody writes any more: nothing that is pending will ever be acknowledged."""
        self.consensus.end(error)
        self.stop_serving(Outcome.STORAGE_FAILED, error)
        for block in self.blocks.all_held():  # one that could not be applied is among them
            block.given_up(self.group, Outcome.STORAGE_FAILED, error)
        self.blocks.to_write.clear()
        self._waiters.all_written()

    # --- leading: `group_consensus.Driven` ----------------------------------------------------------------

    def begin_serving(self, term: int, next_index: int) -> None:
        """This node leads, and all that was ever committed is applied: it takes batches from block `next_index` on."""
        self._fate_ticks = 0  # all that was appended here before is applied
        self._open.begin(term, next_index)
        self.serving = True
        self._watcher.serving_changed(self.group, serving=True)

    def stop_serving(self, outcome: Outcome, error: Exception) -> None:
        """What was proposed and is not committed may still be, or not: nothing is built on it. `outcome` is for what
        was not."""
        self.serving = False
        self._open.close()
        self._watcher.serving_changed(self.group, serving=False)
        proposed, unproposed = self.blocks.unapplied(self.applied_index), self._open.take_closed()
        self._open.discard([*proposed, *unproposed])
        for block in unproposed:
            block.given_up(self.group, outcome, error)
        for block in proposed:
            block.deposed(error)
        self._waiters.give_up(self.group, error)
        self._fate_ticks = FATE_TICKS

    def _leave_undecided(self) -> None:
        """Nobody is heard of who would decide about what was appended here, or the log is replaced as a whole."""
        self._fate_ticks = 0
        for block in self.blocks.all_held():
            block.given_up(self.group, Outcome.UNDECIDED, self.consensus.not_the_leader())

    def commit(self, index: int) -> None:
        """A block is committed, and durable here: apply it, and answer who waits for it."""
        block = self.blocks.held(index)
        assert block is not None, (self.group, index)
        assert block.header is not None, "what is committed is durable here"
        payload = memoryview(block.payload) if block.kind == KIND_DATA and block.payload is not None else None
        own = block.builder is not None
        outcomes = self.apply(block.header, block.directory, payload, block.commands, own=own)
        if block.builder is not None:
            self.log.applied_bytes(block.builder.payload_bytes)
            block.builder = None
        block.committed(outcomes)
        self.blocks.applied(block, followed=self.consensus.followed)

    # --- apply --------------------------------------------------------------------------------------------

    def apply(
        self,
        header: BlockHeader,
        directory: Buffer,
        payload: memoryview | None,
        commands: Sequence[control.Command],
        *,
        own: bool,
    ) -> list[str]:
        """Make a committed block part of the state. `own`: its batches were appended here, to queues that exist."""
        assert header.index == self.applied_index + 1, (self.group, header.index, self.applied_index)
        self.applied_term = header.term
        if header.kind == KIND_DATA and not own:
            self._applier.queues_seen(directory)
        watched = self.log.apply(directory, header.index, header.created_ms)
        self._applier.block_applied(header, directory, payload, watched)
        deleted = [command.topic_number for command in commands if isinstance(command, control.QueuesDeleted)]
        if deleted:
            self.producers.forget_topics(deleted)  # together: it looks at every producer
        return [self._applier.command_applied(self.group, header.index, command) for command in commands]

    # --- recovery -----------------------------------------------------------------------------------------

    def dump(self, *, with_producers: bool = True) -> GroupState:
        """The applied state, for a checkpoint; the producers of one that names files of them are there."""
        producers = self.producers.dump() if with_producers else []
        return GroupState(self.applied_term, self.applied_index, producers)

    def load(self, state: GroupState) -> None:
        self.applied_term = state.term
        self.applied_index = state.applied_index
        self.producers.load(state.producers)

    def begin_anew(self) -> list[int]:
        """An empty log, and a state that nothing has led to; queues and producers are the caller's. Returns the journal
        positions of the blocks that were in the log."""
        places = self.blocks.places()
        self._leave_undecided()
        self.blocks.begin_behind(0, 0)
        self.blocks.memberships = {}
        self.applied_index = self.applied_term = 0
        return places

    def restart_behind(self, snapshot: Snapshot) -> list[int]:
        """A snapshot takes the place of the log and, with what the caller put into queues and producers, of the
        applied state. Returns the journal positions of the blocks that were in the log."""
        places = self.blocks.places()
        self._leave_undecided()
        self.blocks.begin_behind(snapshot.index, snapshot.term)
        self.blocks.memberships = {snapshot.index: snapshot.membership}
        self.applied_index, self.applied_term = snapshot.index, snapshot.term
        return places
