"""A write group is one replicated log of blocks, and the queues whose batches it orders; this is the replica of one
node. On the leader a batch goes through these steps, in this order:

    append    check producer and offsets, copy into the open block (`kernel.WriteGroupLog`, `open_blocks`)
    take      close the open blocks and propose them: each becomes the log's next entry and leaves for the followers
    written   the journal has it, durably; so the core is told, and that counts as one copy
    commit    a majority has it; with a single voter, as soon as it is durable here (`write_group_consensus`)
    apply     the only place where committed state changes: queue table, producers, recent index, commands
    answer    everybody who waits for the block, or for more than that (`write_group_waiters`)

A follower enters at `WriteGroupConsensus.received`: it writes the blocks that a leader sent to the journal in the
same way. `apply` is the same on every node, live and at recovery. The offsets of appended blocks are an
overlay: no read sees them before `apply`, and the write group discards them when this node loses the leadership. A
leader takes batches only once its own no-op is applied, so that it begins with no overlay.

The write group refuses a batch only if the batch is in no log: a client takes a refusal to mean that, and may send the
batch again in a way that no broker recognizes. So a deposed leader keeps its appenders waiting until the next leader
has decided, by committing its blocks or by replacing them. Only when that takes too long does it answer that the
outcome is not known. (It reports a failed disk at once; no client takes that for an answer.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mainstem.errors import MainstemError
from mainstem.kernel import (
    NEXT_OFFSET,
    NO_SLOT,
    FollowedLog,
    ProducerState,
    ProducerStates,
    QueueTable,
)
from mainstem.kernel.pure.producer_states import ROW as PRODUCER_ROW
from mainstem.model import BatchAppend, Buffer, Outcome
from mainstem.protocol.records import build_empty_batch
from mainstem.raft import MembershipChange, NotLeader, NotReady, RaftCore, Role, Snapshot
from mainstem.storage.journal.encoding.format import KIND_CONTROL, KIND_DATA, KIND_NO_OP, BlockHeader
from mainstem.storage.journal.encoding.framing import BlockToWrite
from mainstem.storage.write_groups import control
from mainstem.storage.write_groups.log_block import LogBlock, Ticket
from mainstem.storage.write_groups.open_blocks import OpenBlocks
from mainstem.storage.write_groups.owners import QueueOwners
from mainstem.storage.write_groups.write_group_blocks import WriteGroupBlocks
from mainstem.storage.write_groups.write_group_consensus import WriteGroupConsensus
from mainstem.storage.write_groups.write_group_ports import Applier, Watcher
from mainstem.storage.write_groups.write_group_transactions import WriteGroupTransactions
from mainstem.storage.write_groups.write_group_waiters import WriteGroupWaiters

FATE_TICKS = 30
"""After the end of a leadership, appenders wait this long to hear what became of their batches: 1.5 s, an election that
takes its longest, and half as much again."""

READABLE_LAG_BLOCKS = 1_000
"""Committed blocks that a follower may have yet to apply while its readers stay with it: about those of a second under
full load. Readers of one that lags more go back to the leader."""


class WriteGroupState(NamedTuple):
    """The part of a write group that a checkpoint keeps besides the group's queues and its log."""

    term: int
    applied_index: int
    producers: list[tuple[int, int, ProducerState]]
    """(queue id, producer id, state)"""


class WriteGroup:
    """This node's replica of one write group: takes batches while the node leads, and applies what is committed."""

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
        """`block_bytes_max` bounds directory and payload of a data block, unless a single batch is larger; batches
        larger than `batch_bytes_max` are refused. The write group takes part in consensus from `consensus.join` on."""
        self.group = group
        self.blocks = WriteGroupBlocks()
        """The log."""
        self.applied_term = 0
        self.serving = False
        """True while this node leads and takes batches."""
        self._held = False
        """True while the blocks behind a snapshot wait for other write groups."""
        self.producers = ProducerStates()
        self.transactions = WriteGroupTransactions(group, table)
        self.owners = QueueOwners()
        """The writers of internal queues, as this leader has admitted them."""
        self._open = OpenBlocks(
            group, table, self.producers, block_bytes_max=block_bytes_max, batch_bytes_max=batch_bytes_max
        )
        self.log = self._open.log
        """The kernel's half of the write group: it checks batches and copies them into the open block."""
        self.log.transactions = self.transactions
        self._applier = applier
        self._watcher = watcher
        self._waiters = WriteGroupWaiters()
        self.consensus = WriteGroupConsensus(group, self.blocks, self, self._waiters, watcher)
        """The write group's consensus with its other nodes; it runs on a node alone as well."""
        self.raises: Callable[[], Sequence[tuple[int, int]]] | None = None
        """(queue id, offset to go on at) of queues of which nobody knows how many offsets were given out, as the blocks
        are lost; asked when this node begins to serve the write group, until it is None."""
        self.raised_at = 0
        """The block with which the last of them goes on; 0: none was raised."""
        self._table = table
        self._fate_ticks = 0
        """Ticks for which appenders still wait for the decision of a later leader; 0: no appender waits."""
        self._dropped: list[LogBlock] = []
        """Blocks that the log has dropped, and whose appenders wait until a block in their place is committed. Until
        then another member that has them may lead, and commit them."""

    @property
    def term(self) -> int:
        core = self.consensus.core
        return core.term if core is not None else self.applied_term

    def followed(self) -> FollowedLog | None:
        """This replica for readers of its committed batches, while another node leads; None: it is not to be read, as
        this node hears no leader, has no vote, lags behind, in this write group or in one that queues came from, or
        replaces its state by a snapshot."""
        core = self.consensus.core
        if core is None or core.role is not Role.FOLLOWER or not core.leader_id or core.installing is not None:
            return None
        lags = core.commit_index - self.applied_index > READABLE_LAG_BLOCKS
        lags = lags or self._held or self.applied_index < self.transactions.as_of
        if lags or core.node_id not in core.membership.voters:
            return None
        return FollowedLog(core.term)

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
        if index <= self.log.applied_index:  # that of a duplicate
            return
        block = self._open.find(index) or self.blocks.held(index)
        if block is None:
            raise AssertionError(f"group {self.group}: block {index} is neither applied nor pending")
        if not here or block.header is None:
            block.join(ticket, here=here)

    def wait_for_copies(self, index: int, ticket: Ticket, copies_min: int) -> None:
        """Make a ticket wait until block `index` is committed, and durable on that many nodes: more than
        `consensus.quorum_fewest`, otherwise `wait_for` is enough."""
        self._waiters.await_copies(index, copies_min, ticket)
        if (core := self.consensus.core) is not None:
            core.copies_awaited()
            if core.withholds:
                self.consensus.pump()
        self._settle_copies()

    def _settle_copies(self) -> None:
        core = self.consensus.core
        if core is not None:
            self._waiters.settle_copies(self.applied_index, core.durable_index)

    def propose(self, commands: Sequence[control.Command]) -> asyncio.Future[list[str]]:
        """Log control commands behind everything appended so far. The future brings the outcome of applying each
        command, or `NotTheLeader`, or the error that ended all writing."""
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        if self.consensus.failure is not None or not self.serving:
            outcome.set_exception(self.consensus.refusal())
            return outcome
        block = self._open.add(KIND_CONTROL if commands else KIND_NO_OP)
        block.commands = commands
        block.outcome = outcome
        return outcome

    def propose_membership(self, change: MembershipChange, now_ms: int) -> int:
        """Log the membership after one change, behind everything appended so far, and return the block's index. Raises
        `NotTheLeader`, `raft.NotReady` and `raft.MembershipRefused`."""
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

    def transfer_leadership(self, to: int, now_ms: int) -> None:
        """Have another voter lead, and log everything appended so far before. Raises `NotTheLeader`, `raft.NotReady`
        and `raft.MembershipRefused`."""
        self._open.close()
        self._propose_closed(now_ms)
        if self.serving and self._open.closed:
            raise NotReady(f"write group {self.group}: blocks wait to be proposed")
        self.consensus.transfer_leadership(to)

    def lead_anew(self, term: int, now_ms: int) -> None:
        """As the leader: lead in a later term, which is `term` at least, and log everything appended so far before.
        Raises `NotTheLeader`."""
        self._open.close()
        self._propose_closed(now_ms)
        self.consensus.lead_anew(term)

    # --- take and written ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Count one tick: the core's timeouts, and the time appenders of a deposed leader still wait."""
        self.consensus.tick()
        if self._fate_ticks:
            self._fate_ticks -= 1
            if not self._fate_ticks:
                self._leave_undecided()
        if self._open.closed:  # the core took no proposals when their turn came
            self._watcher.wake()

    @property
    def has_work(self) -> bool:
        opened, to_write = self._open, self.blocks.to_write
        if opened.open is not None or opened.closed or self.consensus.hard_state_due is not None:
            return True
        return bool(to_write) and not self._waits(to_write[0])

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        """Close and propose what was appended, and hand over the next blocks to write, about `bytes_max` of them and at
        least one, if there is one that need not wait."""
        self._open.close()
        self._propose_closed(now_ms)
        to_write = self.blocks.to_write
        blocks = []
        while to_write and bytes_max > 0:
            if (self._held or to_write[0].kind == KIND_CONTROL) and self._waits(to_write[0]):
                break
            block = to_write.popleft()
            blocks.append(block.to_write(self.group))
            bytes_max -= block.size
        return blocks

    def _waits(self, block: LogBlock) -> bool:
        """Whether a block goes neither to the journal nor into the applied state yet: queues arrive with it, or came
        with a snapshot, whose last batches in another write group are not applied here. So a queue's batches are in
        order on each disk, too."""
        if self._held and self._is_held():
            return True
        if block.kind != KIND_CONTROL:
            return False
        return any(
            isinstance(one, control.QueuesArrived) and self._applier.awaits(self.group, one) for one in block.commands
        )

    def hold(self) -> None:
        """Have the next block wait for other write groups if it must: a snapshot or a checkpoint is loaded."""
        self._held = True

    def _is_held(self) -> bool:
        self._held = self._applier.holds(self.group)
        return self._held

    @property
    def waits_for_another(self) -> bool:
        """Whether a committed block has to wait for another write group."""
        return self.consensus.core is not None and self.consensus.core.applying_waits

    @property
    def is_held_back(self) -> bool:
        """Whether a committed block, or the next one that is to be written, has to wait for another write group."""
        return self.waits_for_another or (self._held and self._is_held())

    def fences_changed(self) -> None:
        """Go on with blocks that waited, at the end of this turn of the event loop: another write group, which applies
        a block just now, may have come to their fences."""
        freed, to_write = self._held and not self._is_held(), self.blocks.to_write
        if freed or self.waits_for_another or (to_write and to_write[0].kind == KIND_CONTROL):
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self.consensus.go_on()
        self._watcher.wake()

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
        except NotReady:  # the core hands over, or too much is on its way: tried again later, or `stop_serving` answers
            pass
        except NotLeader:
            pass
        self.consensus.pump()

    def _append_closed(self, core: RaftCore, now_ms: int) -> None:
        """Append the closed blocks to the log of a write group with a single member, without a Ready."""
        closed = self._open.closed
        while closed:
            block = closed[0]
            block.close(now_ms)
            index = core.append_alone()
            assert (index, core.term) == (block.index, block.term), (self.group, index, block.index)
            self.blocks.append(closed.popleft())

    def written(self, header: BlockHeader) -> bool:
        """Note that a block lies in the journal, durably. Returns False when the log has dropped the block meanwhile. A
        call of `flushed` follows."""
        live = self.blocks.written(header)
        if live:
            block = self.blocks.held(header.index)
            if block is not None and block.tickets_here:
                block.durable_here()
        if self._waiters.written is not None and self._is_written:
            self._waiters.wake_written()
        return live

    @property
    def _is_written(self) -> bool:
        """Whether no block of the log is on its way to the journal."""
        blocks = self.blocks
        if blocks.to_write and self._waits(blocks.to_write[0]):
            before = blocks.to_write[0].index - 1
            return before < blocks.first_index() or blocks.position_of(before) != 0
        return blocks.is_written

    def copied(self, headers: Sequence[BlockHeader], sources: Sequence[int]) -> dict[int, int]:
        """Note that blocks of the undecided end of the log lie in the journal once more, durably. The log points to the
        new place of each block that is still undecided and was not moved or replaced since. Returns the old place of
        each of these blocks, by its new place."""
        return {
            header.position: self.blocks.moved(header)
            for header, source in zip(headers, sources, strict=True)
            if header.index > self.applied_index
            and self.blocks.position_of(header.index) == source
            and self.blocks.term(header.index) == header.term
        }

    def flushed(self, header: BlockHeader) -> None:
        """Tell the core that everything up to this block, which is live, is durable, and apply what that commits."""
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
        """Return when the whole log lies in the journal, but for blocks that wait for another write group, and the term
        is durable, or when writing has ended. No block is added to the log while a snapshot is installed."""
        while self.consensus.failure is None and not (self._is_written and self.consensus.is_vote_durable):
            await self._waiters.await_written()

    def fail(self, error: MainstemError) -> None:
        """Give up everything pending: the disk failed or the write loop ended, so none of it will be acknowledged."""
        self.consensus.end(error)
        self.stop_serving(Outcome.STORAGE_FAILED, error)
        for block in (*self.blocks.all_held(), *self._dropped):  # a block that could not be applied is among them
            block.given_up(self.group, Outcome.STORAGE_FAILED, error)
        self._dropped = []
        self.blocks.to_write.clear()
        self._waiters.wake_written()

    # --- leading: `write_group_consensus.Driven` ----------------------------------------------------------------

    def begin_serving(self, term: int, next_index: int) -> None:
        """Take batches from block `next_index` on: this node leads, and has applied all that was ever committed."""
        self._fate_ticks = 0  # all that was appended here before is applied
        self._open.begin(term, next_index)
        self.owners.begin(term)
        self.serving = True
        if self.raises is not None:
            self._raise_ends(self.raises())
        self._watcher.serving_changed(self.group, serving=True)

    def _raise_ends(self, ends: Sequence[tuple[int, int]]) -> None:
        """Have queues go on at higher offsets, before a client's batch can take the next: an empty batch in the log
        takes each of these offsets, so that every replica goes on behind it. Readers pass over the gap before it."""
        for queue_id, offset in ends:
            slot = self._table.find(queue_id)
            if slot == NO_SLOT or self._table.get(slot, NEXT_OFFSET) >= offset:
                continue
            self._table.set(slot, NEXT_OFFSET, offset)
            result, index = self.log.append(empty_batch(queue_id), 0)
            assert result.outcome is Outcome.OK, result
            self.raised_at = index
        self._watcher.wake()

    def stop_serving(self, outcome: Outcome, error: Exception) -> None:
        """Take no more batches. Proposed blocks may still be committed by a later leader, so their appenders wait; what
        was not proposed is answered with `outcome`."""
        self.serving = False
        self._open.close()
        self._watcher.serving_changed(self.group, serving=False)
        proposed, unproposed = self.blocks.unapplied(self.applied_index), self._open.take_closed()
        self._open.discard([*proposed, *unproposed])
        self.transactions.discard_ahead()
        for block in unproposed:
            block.given_up(self.group, outcome, error)
        for block in proposed:
            block.deposed(error)
        self._waiters.give_up(self.group, error)
        self._fate_ticks = FATE_TICKS

    def _leave_undecided(self) -> None:
        """Answer the waiting appenders that the outcome is not known: no leader decided in time, or the whole log is
        replaced."""
        self._fate_ticks = 0
        for block in (*self.blocks.all_held(), *self._dropped):
            block.given_up(self.group, Outcome.UNDECIDED, self.consensus.not_the_leader())
        self._dropped = []

    def dropped(self, blocks: Sequence[LogBlock], error: Exception) -> None:
        """Keep the appenders of blocks that the log has dropped, until `commit` decides."""
        for block in blocks:
            block.deposed(error)
        self._dropped += [block for block in blocks if block.tickets or block.tickets_here]

    def _decide(self, committed: LogBlock) -> None:
        """Answer the appenders of dropped blocks that a committed block decides about. No log without it can win an
        election any more, so a block of an older term, or of another term in its place or before it, is lost."""
        undecided = []
        for block in self._dropped:
            if (block.index, block.term) == (committed.index, committed.term):
                block.committed([])  # another member had it
            elif block.index <= committed.index or block.term < committed.term:
                block.given_up(self.group, Outcome.NOT_LEADER, self.consensus.not_the_leader())
            else:
                undecided.append(block)
        self._dropped = undecided

    def commit(self, index: int) -> bool:
        """Apply a block that is committed and durable here, and answer everybody who waits for it. Returns False if the
        block has to wait for another write group."""
        block = self.blocks.held(index)
        assert block is not None, (self.group, index)
        assert block.header is not None, "a committed block is durable here"
        if (self._held or block.kind == KIND_CONTROL) and self._waits(block):
            return False  # after a start: what lies in the journal did not wait before
        payload = memoryview(block.payload) if block.kind == KIND_DATA and block.payload is not None else None
        own = block.builder is not None
        outcomes = self.apply(block.header, block.directory, payload, block.commands, own=own)
        if block.builder is not None:
            self.log.applied_bytes(block.builder.payload_bytes)
            block.builder = None
        block.committed(outcomes)
        if self._dropped:
            self._decide(block)
        self.blocks.applied(block, followed=self.consensus.followed)
        return True

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
        """Make a committed block part of the applied state. `own` says that its batches were appended here, to queues
        that exist."""
        assert header.index == self.applied_index + 1, (self.group, header.index, self.applied_index)
        self.applied_term = header.term
        if header.kind == KIND_DATA and not own:
            self._applier.queues_seen(directory)
        watched = self.log.apply(directory, header.index, header.created_ms)
        ended: Sequence[int] = ()
        if self.log.marked:
            ended = self.transactions.applied(directory, self.log.marked, header.index, header.created_ms)
        self._applier.block_applied(header, directory, payload, watched)
        if ended:
            self._applier.transactions_ended(ended)
        deleted = [command.topic_number for command in commands if isinstance(command, control.QueuesDeleted)]
        if deleted:
            self.producers.forget_topics(deleted)  # together: it looks at every producer
            self.transactions.forget_topics(deleted)
        outcomes = []
        for command in commands:
            outcomes.append(outcome := self._applier.command_applied(self.group, header.index, command))
            if isinstance(command, control.QueuesArrived) and outcome == control.DONE:
                self._take_over(command, header)
        return outcomes

    def _take_over(self, arrival: control.QueuesArrived, header: BlockHeader) -> None:
        """Know the producers of queues that come from another write group, as that one knew them, whatever was known of
        them here when the queues were here before. Their batches are applied there, so whoever sends one again need not
        wait for a block of this log."""
        known = bytearray()
        for row in PRODUCER_ROW.iter_unpack(arrival.producers):
            queue_id, producer_id, last_ms, epoch, count, *seen = row
            seen[3 : 4 * count : 4] = [header.index] * count
            if count:
                known += PRODUCER_ROW.pack(queue_id, producer_id, last_ms, epoch, count, *seen)
        self.producers.load_image(bytes(known))
        self.transactions.take_over(arrival.coordinators)

    # --- recovery -----------------------------------------------------------------------------------------

    def dump(self, *, with_producers: bool = True) -> WriteGroupState:
        """Return the applied state, for a checkpoint. It omits the producers where the checkpoint names producer
        files."""
        producers = self.producers.dump() if with_producers else []
        return WriteGroupState(self.applied_term, self.applied_index, producers)

    def load(self, state: WriteGroupState) -> None:
        self.applied_term = state.term
        self.applied_index = state.applied_index
        self.producers.load(state.producers)

    def begin_anew(self) -> list[int]:
        """Begin with an empty log and an empty applied state; the caller resets queues and producers. Returns the
        journal positions of the blocks that were in the log."""
        places = self.blocks.places()
        self._leave_undecided()
        self.blocks.begin_behind(0, 0)
        self.blocks.memberships = {}
        self.transactions.clear()
        self.applied_index = self.applied_term = 0
        return places

    def restart_behind(self, snapshot: Snapshot) -> list[int]:
        """Put a snapshot in the place of the log and, with what the caller put into queues and producers, of the
        applied state. Returns the journal positions of the blocks that were in the log."""
        places = self.blocks.places()
        self._leave_undecided()
        self.blocks.begin_behind(snapshot.index, snapshot.term)
        self.blocks.memberships = {snapshot.index: snapshot.membership}
        self.applied_index, self.applied_term = snapshot.index, snapshot.term
        return places


def empty_batch(queue_id: int) -> BatchAppend:
    """A batch without records that takes one offset, as compaction leaves them."""
    return build_empty_batch().to_append(queue_id)
