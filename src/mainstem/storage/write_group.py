"""A write group: one replicated log of blocks, and the queues whose batches it orders, on one of its nodes.

The driver of one consensus core, in the order things happen to a batch on the leader:

    append    check producer and offsets, copy into the open block (`kernel.GroupLog`)
    take      close the open blocks and propose them: each becomes the log's next entry and leaves for the followers
    written   the journal has it, durably; so the core is told, and that counts as one copy
    commit    a majority has it — with a single voter, as soon as it is durable here
    apply     the only place where committed state changes: queue table, producers, unsplit index, commands
    answer    whoever waits for the block

A follower enters at `received`: the blocks a leader sent go to the journal the same way. `apply` is the same on every
node, live and at recovery. Offsets of appended blocks are an overlay (`NEXT_OFFSET` runs ahead of `COMMITTED_END`,
producer states have their own); nothing of it is served before `apply`, and it is discarded when the leadership is
lost. A leader takes batches only once its own no-op is applied, so that it begins with no overlay.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy

from mainstem.kernel import (
    COMMITTED_END,
    NEXT_OFFSET,
    NO_SLOT,
    Arena,
    BlockBuilder,
    GroupLog,
    ProducerState,
    ProducerStates,
    QueueTable,
)
from mainstem.model import Buffer, Outcome
from mainstem.raft import (
    BrokenInvariant,
    Entry,
    HardState,
    LoggedMembership,
    Membership,
    MembershipChange,
    Message,
    NotLeader,
    NotReady,
    RaftConfig,
    RaftCore,
    ReadResult,
    Role,
    Snapshot,
)
from mainstem.raft.messages import InstallSnapshot, TimeoutNow
from mainstem.raft.progress import PeerView
from mainstem.storage import control
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.group_blocks import GroupBlocks
from mainstem.storage.journal.format import (
    DIRECTORY_ROW,
    KIND_CONTROL,
    KIND_DATA,
    KIND_NO_OP,
    BlockHeader,
)
from mainstem.storage.journal.framing import BlockToWrite
from mainstem.storage.log_block import LogBlock, Ticket

__all__ = ["Applier", "GroupState", "Ticket", "Watcher", "WriteGroup"]


IN_SYNC_LAG_BLOCKS = 1_000
"""What a replica that is in sync may lack: about the blocks of a second under full load."""


log = logging.getLogger(__name__)


class GroupState(NamedTuple):
    """What a checkpoint keeps of a group, besides its queues and its log."""

    term: int
    applied_index: int
    producers: list[tuple[int, int, ProducerState]]
    """(queue id, producer id, state)"""


class Applier(Protocol):
    """What applying a block does outside the group; one for all groups of a node."""

    def queues_seen(self, directory: Buffer) -> None:
        """The queues of this directory, of a block that was not appended here, exist."""
        ...

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


class Watcher(Protocol):
    """Who is told what becomes of the groups of a node."""

    def send(self, group: int, messages: Iterable[Message]) -> None:
        """To other nodes of the group; never blocks, and may lose them."""
        ...

    def wake(self) -> None:
        """There is something to write."""
        ...

    def superseded(self, group: int, first_index: int, positions: Sequence[int]) -> None:
        """Blocks from `first_index` on have left the log; these places in the journal are dead."""
        ...

    def send_snapshot(self, group: int, message: InstallSnapshot) -> None:
        """Have a member fetch the newest snapshot; then `snapshot_sent`."""
        ...

    def install_snapshot(self, group: int, snapshot: Snapshot) -> None:
        """State and log are to be replaced by this one, whose content is here; then `snapshot_installed`, or
        `snapshot_failed`. Neither at once."""
        ...

    def leader_changed(self, group: int, leader_id: int, term: int) -> None:
        """Who leads, 0: nobody known."""
        ...

    def serving_changed(self, group: int, *, serving: bool) -> None:
        """Whether this node takes batches for the group, and answers reads of it."""
        ...


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
        larger than `batch_bytes_max` are refused. It takes part in consensus from `join` on."""
        self.group = group
        self.blocks = GroupBlocks()
        """The log."""
        self.core: RaftCore | None = None
        """None: this node has no part in the group, or writes no more."""
        self.hard_state_due: HardState | None = None
        """To be made durable before anything else."""
        self.applied_term = 0
        self.serving = False
        """This node leads, and takes batches."""
        self.reluctant = False
        """This node leads only if it is elected: it does not take over from a leader that is well."""
        self.producers = ProducerStates()
        self.log = GroupLog(
            group,
            table,
            self.producers,
            self._open_block,  # type: ignore[arg-type]  # one that is opened has a builder
            block_bytes_max=block_bytes_max,
            batch_bytes_max=batch_bytes_max,
        )
        """Its hot half: what a batch meets."""
        self._table = table
        self._applier = applier
        self._watcher = watcher
        self.failure: Exception | None = None
        """Why nothing is written any more; None as long as it is."""
        self._arena = Arena()
        self._next_index = 0
        """Of the block that is opened next, while serving."""
        self._open: LogBlock | None = None
        self._closed: deque[LogBlock] = deque()
        """Not proposed yet."""
        self._to_write: deque[LogBlock] = deque()
        self._copies_awaited: list[tuple[int, int, Ticket]] = []
        """(block index, copies, who waits)"""
        self._confirming: dict[asyncio.Future[None], None] = {}
        """Who waits to hear that this node still leads."""
        self._all_written: asyncio.Future[None] | None = None
        """Somebody waits until the whole log lies in the journal."""
        self._pumping = False
        self._followed = False
        """Other nodes take part in the group."""

    @property
    def term(self) -> int:
        return self.core.term if self.core is not None else self.applied_term

    @property
    def leader_id(self) -> int:
        """The node that leads, as far as is known here; 0: nobody known."""
        return self.core.leader_id if self.core is not None else 0

    @property
    def voters(self) -> frozenset[int]:
        """The nodes that make majorities."""
        return self.core.membership.voters if self.core is not None else frozenset()

    @property
    def learners(self) -> frozenset[int]:
        """The members that have no say."""
        return self.core.membership.learners if self.core is not None else frozenset()

    @property
    def quorum(self) -> int:
        """How many nodes make a majority."""
        return self.core.membership.quorum if self.core is not None else 0

    @property
    def last_index(self) -> int:
        """The last block of the log, committed or not."""
        return self.blocks.last_index()

    def in_sync(self) -> list[int]:
        """On the leader, the nodes that hold all but the newest blocks, this one first; empty elsewhere."""
        core = self.core
        if core is None or not self.leads:
            return []
        near = core.commit_index - IN_SYNC_LAG_BLOCKS
        return [core.node_id, *(peer.node_id for peer in core.peers() if peer.active and peer.match_index >= near)]

    def peers(self) -> list[PeerView]:
        """On the leader, what it knows of the other members; empty elsewhere."""
        return self.core.peers() if self.core is not None else []

    @property
    def applied_index(self) -> int:
        return self.log.applied_index

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self.log.applied_index = index

    # --- taking part --------------------------------------------------------------------------------------

    def join(
        self, config: RaftConfig, hard_state: HardState, membership: Membership, randomness: random.Random
    ) -> None:
        """Take part in the group, which began with `membership`, unless the log knows better. Everything in the log
        is durable. A node that is the only voter leads at once."""
        blocks = self.blocks
        if not blocks.memberships:
            blocks.memberships[blocks.first_index() - 1] = membership
        last_term = blocks.term(blocks.last_index())
        if hard_state.term < last_term:  # a journal from before terms were kept apart: of a single node
            hard_state = HardState(last_term)
        self.core = RaftCore(
            config,
            blocks,
            hard_state,
            [LoggedMembership(index, one) for index, one in sorted(blocks.memberships.items())],
            randomness,
            applied_index=self.applied_index,
        )
        self._membership_changed()
        if self.core.membership.voters == {config.node_id}:
            self.core.campaign()
        self.pump()

    def tick(self) -> None:
        """Time passes by one tick."""
        if self.core is not None and self._followed:
            self.core.tick()
            self.pump()
            if self._closed:  # the core took no proposals when their turn came
                self._watcher.wake()

    def received(self, messages: Iterable[Message]) -> None:
        """Messages of other nodes arrived."""
        if self.core is None:
            return
        try:
            for message in messages:
                if not (self.reluctant and isinstance(message, TimeoutNow)):
                    self.core.step(message)
        except BrokenInvariant as error:
            self._broken(error)
        else:
            self.pump()

    def _broken(self, error: BrokenInvariant) -> None:
        """What must not be has been seen: nothing more is believed or said for this group. Others go on."""
        log.critical(
            "write group %d: %s; this node has no part in the group any more. Keep its directory, and replace the node",
            self.group,
            error,
        )
        self.fail(error)

    def transfer_leadership(self, to: int) -> None:
        """Have another voter lead. Raises `NotTheLeader`, `raft.MembershipRefused`."""
        if self.core is None or not self.serving:
            raise NotTheLeader(f"write group {self.group} is not led by this node")
        self.core.transfer_leadership(to)
        self.pump()

    def unreachable(self, node_id: int) -> None:
        if self.core is not None:
            self.core.report_unreachable(node_id)
            self.pump()

    def gone(self, node_id: int) -> None:
        """A node has ended."""
        if self.core is not None:
            self.core.report_gone(node_id)
            self.pump()

    # --- append -----------------------------------------------------------------------------------------

    def wait_for_copies(self, index: int, ticket: Ticket, copies_min: int) -> None:
        """Make a ticket wait until block `index` is committed, and durable on that many nodes: more than a majority,
        or `wait_for` would do."""
        ticket.blocks += 1
        self._copies_awaited.append((index, copies_min, ticket))
        self._settle_copies()

    def _settle_copies(self) -> None:
        """Answer who waited for more copies than a majority."""
        core = self.core
        if core is None or not self._copies_awaited:
            return
        awaited, self._copies_awaited = self._copies_awaited, []
        for index, copies_min, ticket in awaited:
            if index <= self.applied_index and index <= core.durable_index(copies_min):
                ticket.block_safe()
            else:
                self._copies_awaited.append((index, copies_min, ticket))

    def wait_for(self, index: int, ticket: Ticket, *, here: bool = False) -> None:
        """Make a ticket wait until block `index`, which is not applied yet, is committed; with `here`, until it is
        durable on this node."""
        block = self.blocks.held(index) or self._pending(index)
        if block is None:
            raise AssertionError(f"group {self.group}: block {index} is neither applied nor pending")
        if not here or block.header is None:
            block.join(ticket, here=here)

    def _pending(self, index: int) -> LogBlock | None:
        if self._open is not None and self._open.index == index:
            return self._open
        return next((block for block in self._closed if block.index == index), None)

    def confirm(self) -> asyncio.Future[None]:
        """Make sure that this node still leads: the future is done when a majority has confirmed it after this call, so
        that everything that was acknowledged before it, by whomever, is applied here; or brings `NotTheLeader`, or the
        error that nothing will be written after. Who finds no majority ceases to lead within an election timeout."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        core = self.core
        if core is None or not self.serving:
            confirmed.set_exception(self.failure or self.not_the_leader())
            return confirmed
        try:
            core.read_index(confirmed)
        except (NotLeader, NotReady):  # so many ask that it cannot be told in time
            confirmed.set_exception(self.not_the_leader())
            return confirmed
        self._confirming[confirmed] = None
        self.pump()
        return confirmed

    def propose(self, commands: Sequence[control.Command]) -> asyncio.Future[list[str]]:
        """Log control commands behind everything appended so far; the future brings what applying each came to,
        or the error that nothing will be written after, or `NotTheLeader`."""
        outcome: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        if self.failure is not None or not self.serving:
            outcome.set_exception(self.refusal())
            return outcome
        self._close()
        block = self._new_block(KIND_CONTROL if commands else KIND_NO_OP)
        block.commands = commands
        block.outcome = outcome
        self._closed.append(block)
        return outcome

    @property
    def leads(self) -> bool:
        """This node leads, though it may not serve yet."""
        return self.core is not None and self.core.role is Role.LEADER

    def refusal(self) -> Exception:
        """Why this node takes nothing for the group, to be raised."""
        return self.failure or self.not_the_leader()

    def not_the_leader(self) -> NotTheLeader:
        leader = f"node {self.leader_id} leads" if self.leader_id else "no leader is known"
        return NotTheLeader(f"write group {self.group} is not led by this node: {leader}")

    def _open_block(self) -> LogBlock:
        """A new block for what is appended next; the one before it is closed."""
        self._close()
        self._open = block = self._new_block(KIND_DATA)
        block.builder = BlockBuilder(self._arena)
        return block

    def _new_block(self, kind: int) -> LogBlock:
        block = LogBlock(kind, self.log.term, self._next_index)
        self._next_index += 1
        return block

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
            self.log.close()

    # --- take and written ---------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return (
            self._open is not None
            or bool(self._closed)
            or bool(self._to_write)
            or self.hard_state_due is not None
        )

    def take(self, now_ms: int, bytes_max: int) -> list[BlockToWrite]:
        """Close and propose what was appended, and hand over the next blocks to write, at least one and about
        `bytes_max` of them."""
        self._close()
        self._propose_closed(now_ms)
        blocks = []
        while self._to_write and bytes_max > 0:
            block = self._to_write.popleft()
            blocks.append(block.to_write(self.group))
            bytes_max -= block.size
        return blocks

    def _propose_closed(self, now_ms: int) -> None:
        core = self.core
        if core is None or not self._closed:
            return
        if self.serving and core.alone:
            self._append_closed(core, now_ms)
            return
        try:
            while self._closed:
                block = self._closed[0]
                block.close(now_ms)
                entry = core.propose(block, block.size, block.kind)
                assert (entry.index, entry.term) == (block.index, block.term), (
                    entry,
                    block.index,
                    block.term,
                )
                self._closed.popleft()
        except NotReady:  # handing over, or too much is on its way: later, or `_stop_serving` answers
            pass
        except NotLeader:
            pass
        self.pump()

    def _append_closed(self, core: RaftCore, now_ms: int) -> None:
        """The short way of a group of one."""
        while self._closed:
            block = self._closed[0]
            block.close(now_ms)
            index = core.append_alone()
            assert (index, core.term) == (block.index, block.term), (self.group, index, block.index)
            self.blocks.append(block)
            self._to_write.append(self._closed.popleft())

    def propose_membership(self, change: MembershipChange, now_ms: int) -> int:
        """Log the membership after one change, behind everything appended so far; its index. Raises `NotTheLeader`,
        `raft.NotReady` and `raft.MembershipRefused`."""
        self._close()
        self._propose_closed(now_ms)
        core = self.core
        if core is None or not self.serving:
            raise self.not_the_leader()
        if self._closed:
            raise NotReady(f"write group {self.group}: blocks wait to be proposed")
        entry = core.propose_membership(change)
        self._next_index = entry.index + 1
        self.pump()
        return entry.index

    def hard_state_saved(self, state: HardState) -> None:
        """A hard state that was due is durable."""
        if self.core is not None:
            self.core.hard_state_persisted(state)
            self.pump()

    def written(self, header: BlockHeader) -> bool:
        """A block lies in the journal, durably; False when the log has dropped it meanwhile. `flushed` follows."""
        live = self.blocks.written(header)
        if live:
            block = self.blocks.held(header.index)
            if block is not None:
                block.durable_here()
        self._look_whether_written()
        return live

    def flushed(self, header: BlockHeader) -> None:
        """Everything up to this block, which is live, is durable: the core is told, what that commits is applied."""
        core = self.core
        if core is None:
            return
        if self.serving and core.alone:
            if core.persisted_alone(header.index, header.term):
                for index in range(self.applied_index + 1, header.index + 1):
                    self._commit(index)
                core.applied_alone(header.index)
            self._settle_copies()
        else:
            core.persisted(header.index, header.term)
            self.pump()

    def fail(self, error: Exception) -> None:
        """The disk failed, or nobody writes any more: nothing that is pending will ever be acknowledged."""
        self.failure = error
        self.core = None
        self._stop_serving(Outcome.STORAGE_FAILED, error)
        for block in self.blocks.all_held():  # one that could not be applied is among them
            block.given_up(Outcome.STORAGE_FAILED, error)
        self._to_write.clear()
        self.hard_state_due = None
        self._look_whether_written()

    # --- what the core wants done -------------------------------------------------------------------------

    def pump(self) -> None:
        """Do everything that can be done at once; what has to be written is left to the write loop."""
        core = self.core
        if core is None or self._pumping:
            return
        self._pumping = True
        try:
            self._do_ready(core)
        except BrokenInvariant as error:
            self._broken(error)
            return
        finally:
            self._pumping = False
        if self._copies_awaited:
            self._settle_copies()
        if core.serves and not self.serving and self.core is core:
            self._begin_serving()
        if self._to_write or self.hard_state_due is not None:
            self._watcher.wake()

    def _do_ready(self, core: RaftCore) -> None:
        while (ready := core.ready()) is not None:
            if ready.role_change is not None:
                if self.serving and ready.role_change.role is not Role.LEADER:
                    self._stop_serving(Outcome.NOT_LEADER, self.not_the_leader())
                self._watcher.leader_changed(self.group, ready.role_change.leader_id, ready.role_change.term)
            if ready.hard_state is not None:
                self.hard_state_due = ready.hard_state
            if ready.truncate_from:
                self._truncate(ready.truncate_from)
            for entry in ready.entries:
                self._put(entry)
            if ready.snapshot is not None:
                self._watcher.install_snapshot(self.group, ready.snapshot)
            if ready.messages:
                self._watcher.send(self.group, ready.messages)
            for message in ready.snapshots_to_send:
                self._watcher.send_snapshot(self.group, message)
            for entry in ready.committed:
                self._commit(entry.index)
            for read in ready.reads:
                self._confirmed(read)
            core.advance(ready)

    def _confirmed(self, read: ReadResult) -> None:
        assert isinstance(read.context, asyncio.Future), read
        self._confirming.pop(read.context, None)
        if read.context.done():  # nobody waits any more
            return
        if read.granted:
            read.context.set_result(None)
        else:
            read.context.set_exception(self.not_the_leader())

    def _put(self, entry: Entry) -> None:
        """An entry, from here or from the leader, is to be written."""
        block = entry.data
        if not isinstance(block, LogBlock):  # a no-op or a membership, which the core makes itself
            block = LogBlock(entry.kind, entry.term, entry.index)
            block.membership = entry.data if isinstance(entry.data, Membership) else None
            block.close(0)
        self.blocks.append(block)
        self._to_write.append(block)
        if block.membership is not None:
            self._membership_changed()

    def _truncate(self, first: int) -> None:
        """A new leader's log goes on elsewhere from block `first` on."""
        dropped, places = self.blocks.truncate(first)
        self._to_write = deque(block for block in self._to_write if block.index < first)
        for block in dropped:
            block.given_up(Outcome.NOT_LEADER, self.not_the_leader())
        self._watcher.superseded(self.group, first, places)
        self._membership_changed()

    def _membership_changed(self) -> None:
        core = self.core
        self._followed = core is not None and bool(core.membership.members - {core.node_id})

    def _commit(self, index: int) -> None:
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
        self.blocks.applied(block, followed=self._followed)

    # --- leading ------------------------------------------------------------------------------------------

    def _begin_serving(self) -> None:
        core = self.core
        assert core is not None, "it serves"
        assert self._open is None, "nothing is appended before"
        assert not self._closed, "nothing is appended before"
        self.log.term = core.term
        self._next_index = core.last_index + 1
        self.serving = True
        self._watcher.serving_changed(self.group, serving=True)

    def _stop_serving(self, outcome: Outcome, error: Exception) -> None:
        """What was appended and is not committed may still be, or not: nobody is told, and nothing is built on it."""
        self.serving = False
        self._close()
        self._watcher.serving_changed(self.group, serving=False)
        unapplied = [*self.blocks.unapplied(self.applied_index), *self._closed]
        self._closed.clear()
        for block in unapplied:
            if block.builder is not None:
                block.close(block.created_ms)
                self._discard_overlay(block.directory)
                block.builder = None
            block.given_up(outcome, error)
        for _index, _copies, ticket in self._copies_awaited:
            ticket.failed(outcome)
        self._copies_awaited.clear()
        for confirmed in self._confirming:
            if not confirmed.done():
                confirmed.set_exception(error)
        self._confirming.clear()
        self.producers.discard_overlay()
        self.log.applied_bytes(self.log.pending_bytes)

    def _discard_overlay(self, directory: Buffer) -> None:
        for queue_id in numpy.unique(numpy.frombuffer(directory, DIRECTORY_ROW)["queue_id"]).tolist():
            slot = self._table.find(queue_id)
            if slot != NO_SLOT:
                self._table.set(slot, NEXT_OFFSET, self._table.get(slot, COMMITTED_END))

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

    # --- snapshots ----------------------------------------------------------------------------------------

    def snapshot_received(self, sender: int, term: int, snapshot: Snapshot) -> None:
        """The content of a snapshot that the leader of a term sent is here. If it is wanted, `install_snapshot` is
        called on the way."""
        if self.core is not None:
            self.received([InstallSnapshot(sender, self.core.node_id, term, snapshot)])

    async def all_written(self) -> None:
        """Until the whole log lies in the journal, or nothing is written any more. While a snapshot is installed
        nothing comes to it."""
        if self.failure is None and not self.blocks.is_written:
            if self._all_written is None:
                self._all_written = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._all_written)

    def _look_whether_written(self) -> None:
        if self._all_written is not None and (self.failure is not None or self.blocks.is_written):
            self._all_written.set_result(None)
            self._all_written = None

    def restart_behind(self, snapshot: Snapshot) -> list[int]:
        """A snapshot takes the place of the log and, with what the caller put into queues and producers, of the
        applied state. Returns the journal positions of the blocks that were in the log."""
        places = self.blocks.places()
        self.blocks.begin_behind(snapshot.index, snapshot.term)
        self.blocks.memberships = {snapshot.index: snapshot.membership}
        self.applied_index, self.applied_term = snapshot.index, snapshot.term
        return places

    def snapshot_installed(self, snapshot: Snapshot) -> None:
        """State and log are replaced, durably."""
        if self.core is not None:
            self.core.snapshot_installed(snapshot)
            self._membership_changed()
            self.pump()

    def snapshot_failed(self, snapshot: Snapshot) -> None:
        """It is not installed, nothing has changed."""
        if self.core is not None:
            self.core.snapshot_failed(snapshot)
            self.pump()

    def snapshot_sent(self, peer: int, *, ok: bool) -> None:
        """Sending a snapshot to a member ended."""
        if self.core is not None:
            self.core.report_snapshot(peer, ok)
            self.pump()

    # --- recovery -----------------------------------------------------------------------------------------

    def dump(self) -> GroupState:
        """The applied state, for a checkpoint."""
        return GroupState(self.applied_term, self.applied_index, self.producers.dump())

    def load(self, state: GroupState) -> None:
        self.applied_term = state.term
        self.applied_index = state.applied_index
        self.producers.load(state.producers)
