"""The driver of one consensus core hands it everything that arrives, and does what its `Ready` asks for.

It works through one `Ready` in this order: the leader, terms and votes, dropped blocks, blocks to write, messages,
blocks to apply, reads (`raft/__init__.py` says why). No call here waits: the driver leaves all writing to the write
loop, which reports when a write is durable (`hard_state_saved`, `WriteGroup.flushed`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from typing import Protocol

from mainstem.errors import MainstemError
from mainstem.model import Outcome
from mainstem.raft import (
    BrokenInvariant,
    Entry,
    HardState,
    LoggedMembership,
    Membership,
    Message,
    NotLeader,
    NotReady,
    RaftConfig,
    RaftCore,
    Role,
    Snapshot,
)
from mainstem.raft.leader.progress import PeerView
from mainstem.raft.messages import InstallSnapshot, TimeoutNow
from mainstem.storage.errors import NotTheLeader, WriteGroupEnded
from mainstem.storage.write_groups.log_block import LogBlock
from mainstem.storage.write_groups.write_group_blocks import WriteGroupBlocks
from mainstem.storage.write_groups.write_group_ports import Watcher
from mainstem.storage.write_groups.write_group_waiters import WriteGroupWaiters

log = logging.getLogger(__name__)


class Driven(Protocol):
    """The state machine on top of the log: it serves while this node leads, and applies committed blocks."""

    @property
    def serving(self) -> bool:
        """True between `begin_serving` and `stop_serving`."""
        ...

    @property
    def applied_index(self) -> int: ...

    def begin_serving(self, term: int, next_index: int) -> None:
        """Begin to take batches: this node leads, and has applied all that was ever committed; `next_index` is the next
        block."""
        ...

    def stop_serving(self, outcome: Outcome, error: Exception) -> None:
        """Stop taking batches: this node leads no more. `outcome` answers the batches that were not proposed, `error`
        is raised in the callers that wait."""
        ...

    def dropped(self, blocks: Sequence[LogBlock], error: Exception) -> None:
        """Hear that the log has dropped these blocks, for a later leader's log has others there. Its blocks may be
        replaced as well, before it is committed. `error` is raised in the callers that wait for commands."""
        ...

    def commit(self, index: int) -> bool:
        """Apply a block that is committed and durable here. Returns False if it has to wait for blocks of another write
        group; `WriteGroupConsensus.go_on` comes when these are applied."""
        ...

    def fail(self, error: MainstemError) -> None:
        """End this node's part in the write group, after an error; calls `WriteGroupConsensus.end`."""
        ...


class WriteGroupConsensus:
    """Takes this node's part in the consensus of one write group, from `join` until `leave` or `end`."""

    def __init__(
        self, group: int, blocks: WriteGroupBlocks, driven: Driven, waiters: WriteGroupWaiters, watcher: Watcher
    ) -> None:
        self.core: RaftCore | None = None
        """None while this node has no part in the write group, and after writing ended."""
        self.hard_state_due: HardState | None = None
        """Term and vote that must be made durable before anything else; None: none are due."""
        self.reluctant = False
        """True while this node must not take over from a healthy leader: it ignores requests to stand at once, and
        leads only if an election timeout makes it."""
        self.followed = False
        """True when other nodes are members of the write group."""
        self.failure: MainstemError | None = None
        """The error that ended writing; None while blocks are written."""
        self._group = group
        self._blocks = blocks
        self._driven = driven
        self._waiters = waiters
        self._watcher = watcher
        self._pumping = False
        self._hands_over = False
        """True while this node serves, and asks another one to lead."""
        self._gathered_to = 0
        """The last entry at the last call of `send_withheld` that withheld some; 0: it withheld none."""
        self._confirms_soon = False
        """True when `confirm` was called in this turn of the event loop; the core is asked at the end of the turn."""

    @property
    def leads(self) -> bool:
        """Whether this node leads; it may not serve yet."""
        return self.core is not None and self.core.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """The node that leads, as far as this node knows; 0: it knows of no leader."""
        return self.core.leader_id if self.core is not None else 0

    @property
    def is_vote_durable(self) -> bool:
        """Whether the term and the vote of the replica here are durable."""
        return self.core is None or self.core.is_vote_durable

    @property
    def voters(self) -> frozenset[int]:
        """Ids of the nodes whose votes count."""
        return self.core.membership.voters if self.core is not None else frozenset()

    @property
    def learners(self) -> frozenset[int]:
        """Ids of the members without a vote."""
        return self.core.membership.learners if self.core is not None else frozenset()

    @property
    def committed_membership(self) -> Membership:
        """The newest membership that this node knows to be committed; without a member while it has no part in the
        write group."""
        return self.core.membership_at(self.core.commit_index) if self.core is not None else Membership.of(())

    @property
    def quorum_fewest(self) -> int:
        """How many voters commit what is appended now, at least: before that a voter may be taken away, as at the end
        of a move, and then a majority is one of those that are left."""
        return (len(self.core.membership.voters) - 1) // 2 + 1 if self.core is not None else 0

    def peers(self) -> list[PeerView]:
        """The progress of every other member, on the leader; empty elsewhere."""
        return self.core.peers() if self.core is not None else []

    # --- taking part --------------------------------------------------------------------------------------

    def join(
        self,
        config: RaftConfig,
        hard_state: HardState,
        membership: Membership,
        randomness: random.Random,
        *,
        committed_index: int = 0,
        abstains_to: int = 0,
        waits_for_leader: bool = False,
    ) -> None:
        """Take part in the write group. `membership` is the one it began with; newer ones in the log take precedence,
        from their blocks on: they may not be committed, and a leader may replace them. Everything in the log must be
        durable. A node that is the only voter leads at once. `RaftCore` describes the options."""
        blocks = self._blocks
        first = blocks.first_index()
        if min(blocks.memberships, default=first) >= first:  # it joins first, or has made no checkpoint since
            blocks.memberships[first - 1] = membership
        last_term = blocks.term(blocks.last_index())
        if hard_state.term < last_term:  # the journal of a single node, from before terms had a file of their own
            hard_state = HardState(last_term)
        self.core = RaftCore(
            config,
            blocks,
            hard_state,
            [LoggedMembership(index, one) for index, one in sorted(blocks.memberships.items())],
            randomness,
            applied_index=self._driven.applied_index,
            committed_index=committed_index,
            abstains_to=abstains_to,
            waits_for_leader=waits_for_leader,
        )
        self._membership_changed()
        if self.core.membership.voters == {config.node_id}:
            self.core.campaign()
        self.pump()

    def tick(self) -> None:
        """Count one tick of the core's timeouts."""
        if self.core is not None and self.followed:
            self.core.tick()
            self.pump()

    def received(self, messages: Iterable[Message]) -> None:
        """Step the core with messages from other nodes."""
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

    def unreachable(self, node_id: int) -> None:
        if self.core is not None:
            self.core.report_unreachable(node_id)
            self.pump()

    def gone(self, node_id: int) -> None:
        """Tell the core that a node's process has ended, so that a dead leader is replaced at once."""
        if self.core is not None:
            self.core.report_gone(node_id)
            self.pump()

    def send_withheld(self, *, late: bool) -> bool:
        """Send entries that were gathered for members which are not counted on; unless it is `late`, only if those that
        there were at the last call are not committed. Returns whether it withholds any from now on."""
        core = self.core
        if core is None or not core.withholds:
            self._gathered_to = 0
            return False
        if not late and core.commit_index >= self._gathered_to:
            self._gathered_to = core.last_index
            return True
        self._gathered_to = 0
        core.send_withheld()
        self.pump()
        return False

    def hard_state_saved(self, state: HardState) -> None:
        """Tell the core that a term and vote are durable."""
        if self.core is not None:
            self.core.hard_state_persisted(state)
            self.pump()
        self._waiters.wake_written()

    def _broken(self, error: BrokenInvariant) -> None:
        """End this write group here because its core saw a broken invariant; other write groups go on."""
        log.critical(
            "write group %d: %s; this node has no part in the group any more. Keep its directory, and replace the node",
            self._group,
            error,
        )
        ended = WriteGroupEnded(f"write group {self._group}: this node has no part in it any more: {error}")
        ended.__cause__ = error
        self._driven.fail(ended)

    def end(self, error: MainstemError) -> None:
        """End this node's part in the write group for good; `error` is why."""
        self.failure = error
        self.core = None
        self.hard_state_due = None

    def abstain_no_more(self, *, waits_for_leader: bool) -> None:
        """Vote again without what this node lacks, as members agreed on; stand at once, or wait for a leader."""
        if self.core is not None:
            self.core.abstain_no_more(waits_for_leader=waits_for_leader)
            if not waits_for_leader:
                self.core.campaign()
            self.pump()

    # --- leading ------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Take no part until the next `join`: this node is no member any more, and does not lead."""
        assert not self._driven.serving, f"write group {self._group} is served here"
        self.core = None
        self.followed = False

    def refusal(self) -> MainstemError:
        """The error to raise when this node takes nothing for the write group."""
        return self.failure or self.not_the_leader()

    def not_the_leader(self) -> NotTheLeader:
        leader = f"node {self.leader_id} leads" if self.leader_id else "no leader is known"
        return NotTheLeader(f"write group {self._group} is not led by this node: {leader}")

    def confirm(self) -> asyncio.Future[None]:
        """Make sure that this node still leads. The future is done when a majority has confirmed it after this call:
        everything that any leader acknowledged before the call is then applied here. Otherwise it brings
        `NotTheLeader`, or the error that ended writing. A leader that finds no majority ceases to lead within an
        election timeout. The same heartbeats, sent at the end of the event loop's turn, confirm all calls of that
        turn."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        core = self.core
        if core is None or not self._driven.serving:
            confirmed.set_exception(self.refusal())
            return confirmed
        try:
            core.read_index(confirmed)
        except (NotLeader, NotReady):  # too many ask at once for an answer in time
            confirmed.set_exception(self.refusal())
            return confirmed
        self._waiters.await_confirmation(confirmed)
        if not self._confirms_soon:
            self._confirms_soon = True
            asyncio.get_running_loop().call_soon(self._confirm_together)
        return confirmed

    def _confirm_together(self) -> None:
        self._confirms_soon = False
        self.pump()

    def transfer_leadership(self, to: int) -> None:
        """Have another voter lead. Raises `NotTheLeader`, `raft.MembershipRefused`."""
        if self.core is None or not self._driven.serving:
            raise NotTheLeader(f"write group {self._group} is not led by this node")
        self.core.transfer_leadership(to)
        self._begin_hand_over()
        self.pump()

    def _begin_hand_over(self) -> None:
        if self.core is not None and self.core.transfer_to and self._driven.serving and not self._hands_over:
            self._hands_over = True
            self._watcher.hand_over_changed(self._group, begun=True)

    def lead_anew(self, term: int) -> None:
        """As the leader: lead in a later term, which is `term` at least. The write group takes nothing until the term
        is durable and the others have voted. Raises `NotTheLeader`."""
        if self.core is None or not self._driven.serving:
            raise self.not_the_leader()
        try:
            self.core.lead_anew(term)
        except NotReady as error:
            raise self.not_the_leader() from error
        self.pump()

    def known_committed(self, index: int, term: int) -> None:
        """Take note that a block is committed, if the log here has it: a block of another write group says so."""
        if self.core is not None and self.core.known_committed(index, term):
            self.pump()

    def go_on(self) -> None:
        """Apply on: the blocks of another write group are applied that this one waited for."""
        if self.core is not None and self.core.applying_waits:
            self.core.go_on()
            self.pump()

    def give_way(self) -> bool:
        """Ask the voter that lacks the least of the log to lead, because this node cannot go on leading. Returns
        whether there is such a voter."""
        core = self.core
        if core is None or core.role is not Role.LEADER:
            return False
        able = [peer for peer in core.peers() if peer.active and peer.node_id in core.membership.voters]
        if not able:
            return False
        core.transfer_leadership(max(able, key=lambda peer: peer.match_index).node_id)
        self._begin_hand_over()
        self.pump()
        return True

    # --- what the core wants done -------------------------------------------------------------------------

    def pump(self) -> None:
        """Carry out every `Ready` of the core until it has none."""
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
        if self._hands_over and not (self._driven.serving and core.transfer_to):
            self._hands_over = False
            if self._driven.serving:
                self._watcher.hand_over_changed(self._group, begun=False)
        if self._waiters.copies and self.core is core:
            self._waiters.settle_copies(self._driven.applied_index, core.durable_index)
        if not self._driven.serving and core.serves and self.core is core:
            log.info("write group %d is led by this node, in term %d", self._group, core.term)
            self._driven.begin_serving(core.term, core.last_index + 1)
        if self._blocks.to_write or self.hard_state_due is not None:
            self._watcher.wake()
        if core.withholds:
            self._watcher.withholds(self._group)

    def _do_ready(self, core: RaftCore) -> None:
        group, driven = self._group, self._driven
        while (ready := core.ready()) is not None:
            messages, hard_state, truncate_from, entries, snapshot, snapshots, committed, reads, role_change = ready
            if role_change is not None:
                if driven.serving and role_change.role is not Role.LEADER:
                    driven.stop_serving(Outcome.NOT_LEADER, self.not_the_leader())
                self._watcher.leader_changed(group, role_change.leader_id, role_change.term)
            if hard_state is not None:
                self.hard_state_due = hard_state
            if truncate_from:
                self._truncate(truncate_from)
            for entry in entries:
                self._put(entry)
            if snapshot is not None:
                self._watcher.install_snapshot(group, snapshot)
            if messages:
                self._watcher.send(group, messages)
            for message in snapshots:
                self._watcher.send_snapshot(group, message)
            applied_to: int | None = None
            for entry in committed:
                if not driven.commit(entry.index):
                    applied_to = entry.index - 1
                    break
            for read in reads:
                self._waiters.confirmed(read, self.not_the_leader)
            core.advance(ready, applied_to=applied_to)

    def _put(self, entry: Entry) -> None:
        """Add an entry, of this node or from the leader, to the log and leave it to the write loop."""
        block = entry.data
        if not isinstance(block, LogBlock):  # a no-op or a membership, made by the core itself
            block = LogBlock(entry.kind, entry.term, entry.index)
            block.membership = entry.data if isinstance(entry.data, Membership) else None
            block.close(0)
        self._blocks.append(block)
        if block.membership is not None:
            self._membership_changed()

    def _truncate(self, first: int) -> None:
        """Drop the blocks from `first` on, because a new leader's log differs from there on."""
        dropped, places = self._blocks.truncate(first)
        self._driven.dropped(dropped, self.not_the_leader())
        self._watcher.superseded(self._group, first, places, self._blocks.last_data_before(first))
        self._membership_changed()

    def _membership_changed(self) -> None:
        core = self.core
        self.followed = core is not None and bool(core.membership.members - {core.node_id})

    # --- snapshots ----------------------------------------------------------------------------------------

    def snapshot_received(self, sender: int, term: int, snapshot: Snapshot) -> None:
        """Step the core with a snapshot whose content the leader of `term` sent and this node holds. If the core wants
        it, this calls `install_snapshot`."""
        if self.core is not None:
            self.received([InstallSnapshot(sender, self.core.node_id, term, snapshot)])

    def snapshot_installed(self, snapshot: Snapshot) -> None:
        """Tell the core that state and log are replaced, durably."""
        if self.core is not None:
            self.core.snapshot_installed(snapshot)
            self._membership_changed()
            self.pump()

    def snapshot_failed(self, snapshot: Snapshot) -> None:
        """Tell the core that the snapshot is not installed and nothing has changed."""
        if self.core is not None:
            self.core.snapshot_failed(snapshot)
            self.pump()

    def snapshot_sent(self, peer: int, *, ok: bool) -> None:
        """Tell the core that sending a snapshot to a member ended; `ok` says whether it succeeded."""
        if self.core is not None:
            self.core.report_snapshot(peer, ok)
            self.pump()
