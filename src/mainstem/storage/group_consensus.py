"""The driver of one consensus core: hands it what arrives, and does what it wants done.

Of what comes in one `Ready`: who leads, terms and votes, dropped blocks, blocks to write, messages, blocks to apply,
reads; in this order (`raft/__init__.py` says why). Nothing here waits: what has to be written is left to the write
loop, which tells when it is (`hard_state_saved`, `WriteGroup.flushed`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Protocol

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
from mainstem.raft.messages import InstallSnapshot, TimeoutNow
from mainstem.raft.progress import PeerView
from mainstem.storage.errors import NotTheLeader
from mainstem.storage.group_blocks import GroupBlocks
from mainstem.storage.group_ports import Watcher
from mainstem.storage.group_waiters import GroupWaiters
from mainstem.storage.log_block import LogBlock

log = logging.getLogger(__name__)


class Driven(Protocol):
    """What stands on the log."""

    @property
    def serving(self) -> bool:
        """Between `begin_serving` and `stop_serving`."""
        ...

    @property
    def applied_index(self) -> int: ...

    def begin_serving(self, term: int, next_index: int) -> None:
        """This node leads, and all that was ever committed is applied; the next block will be `next_index`."""
        ...

    def stop_serving(self, outcome: Outcome, error: Exception) -> None:
        """It leads no more; what to answer where that decides, and what to raise."""
        ...

    def commit(self, index: int) -> None:
        """A block is committed, and durable here: apply it."""
        ...

    def fail(self, error: Exception) -> None:
        """Nothing more is believed or said for this group; calls `GroupConsensus.end`."""
        ...


class GroupConsensus:
    """This node's part in the consensus of one write group, from `join` on."""

    def __init__(
        self, group: int, blocks: GroupBlocks, driven: Driven, waiters: GroupWaiters, watcher: Watcher
    ) -> None:
        self.core: RaftCore | None = None
        """None: this node has no part in the group, or writes no more."""
        self.hard_state_due: HardState | None = None
        """To be made durable before anything else."""
        self.reluctant = False
        """This node leads only if it is elected: it does not take over from a leader that is well."""
        self.followed = False
        """Other nodes take part in the group."""
        self.failure: Exception | None = None
        """Why nothing is written any more; None as long as it is."""
        self._group = group
        self._blocks = blocks
        self._driven = driven
        self._waiters = waiters
        self._watcher = watcher
        self._pumping = False
        self._confirms_soon = False
        """What was asked to be confirmed in this turn is passed on at its end."""

    @property
    def leads(self) -> bool:
        """This node leads, though it may not serve yet."""
        return self.core is not None and self.core.role is Role.LEADER

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

    def peers(self) -> list[PeerView]:
        """On the leader, what it knows of the other members; empty elsewhere."""
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
        """Take part in the group, which began with `membership`, unless the log knows better. Everything in the log
        is durable. A node that is the only voter leads at once. What the options are says `RaftCore`."""
        blocks = self._blocks
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
        """Time passes by one tick."""
        if self.core is not None and self.followed:
            self.core.tick()
            self.pump()

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

    def unreachable(self, node_id: int) -> None:
        if self.core is not None:
            self.core.report_unreachable(node_id)
            self.pump()

    def gone(self, node_id: int) -> None:
        """A node has ended."""
        if self.core is not None:
            self.core.report_gone(node_id)
            self.pump()

    def hard_state_saved(self, state: HardState) -> None:
        """A hard state that was due is durable."""
        if self.core is not None:
            self.core.hard_state_persisted(state)
            self.pump()

    def _broken(self, error: BrokenInvariant) -> None:
        """What must not be has been seen. Other groups go on."""
        log.critical(
            "write group %d: %s; this node has no part in the group any more. Keep its directory, and replace the node",
            self._group,
            error,
        )
        self._driven.fail(error)

    def end(self, error: Exception) -> None:
        """Have no part in the group any more."""
        self.failure = error
        self.core = None
        self.hard_state_due = None

    # --- leading ------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """This node is no member any more, and does not lead: it has no part in the group until it joins again."""
        assert not self._driven.serving, f"write group {self._group} is served here"
        self.core = None
        self.followed = False

    def refusal(self) -> Exception:
        """Why this node takes nothing for the group, to be raised."""
        return self.failure or self.not_the_leader()

    def not_the_leader(self) -> NotTheLeader:
        leader = f"node {self.leader_id} leads" if self.leader_id else "no leader is known"
        return NotTheLeader(f"write group {self._group} is not led by this node: {leader}")

    def confirm(self) -> asyncio.Future[None]:
        """Make sure that this node still leads: the future is done when a majority has confirmed it after this call, so
        that everything that was acknowledged before it, by whomever, is applied here; or brings `NotTheLeader`, or the
        error that nothing will be written after. A leader that finds no majority ceases to lead within an election
        timeout. All calls of a turn of the event loop are confirmed by the same heartbeats, which leave at its end."""
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        core = self.core
        if core is None or not self._driven.serving:
            confirmed.set_exception(self.refusal())
            return confirmed
        try:
            core.read_index(confirmed)
        except (NotLeader, NotReady):  # so many ask that it cannot be told in time
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
        self.pump()

    # --- what the core wants done -------------------------------------------------------------------------

    def pump(self) -> None:
        """Do everything that can be done at once."""
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
        if self._waiters.copies and self.core is core:
            self._waiters.settle_copies(self._driven.applied_index, core.durable_index)
        if core.serves and not self._driven.serving and self.core is core:
            self._driven.begin_serving(core.term, core.last_index + 1)
        if self._blocks.to_write or self.hard_state_due is not None:
            self._watcher.wake()

    def _do_ready(self, core: RaftCore) -> None:
        group, driven = self._group, self._driven
        while (ready := core.ready()) is not None:
            if ready.role_change is not None:
                if driven.serving and ready.role_change.role is not Role.LEADER:
                    driven.stop_serving(Outcome.NOT_LEADER, self.not_the_leader())
                self._watcher.leader_changed(group, ready.role_change.leader_id, ready.role_change.term)
            if ready.hard_state is not None:
                self.hard_state_due = ready.hard_state
            if ready.truncate_from:
                self._truncate(ready.truncate_from)
            for entry in ready.entries:
                self._put(entry)
            if ready.snapshot is not None:
                self._watcher.install_snapshot(group, ready.snapshot)
            if ready.messages:
                self._watcher.send(group, ready.messages)
            for message in ready.snapshots_to_send:
                self._watcher.send_snapshot(group, message)
            for entry in ready.committed:
                driven.commit(entry.index)
            for read in ready.reads:
                self._waiters.confirmed(read, self.not_the_leader)
            core.advance(ready)

    def _put(self, entry: Entry) -> None:
        """An entry, from here or from the leader, is to be written."""
        block = entry.data
        if not isinstance(block, LogBlock):  # a no-op or a membership, which the core makes itself
            block = LogBlock(entry.kind, entry.term, entry.index)
            block.membership = entry.data if isinstance(entry.data, Membership) else None
            block.close(0)
        self._blocks.append(block)
        if block.membership is not None:
            self._membership_changed()

    def _truncate(self, first: int) -> None:
        """A new leader's log goes on elsewhere from block `first` on."""
        dropped, places = self._blocks.truncate(first)
        for block in dropped:
            block.given_up(self._group, Outcome.NOT_LEADER, self.not_the_leader())
        self._watcher.superseded(self._group, first, places)
        self._membership_changed()

    def _membership_changed(self) -> None:
        core = self.core
        self.followed = core is not None and bool(core.membership.members - {core.node_id})

    # --- snapshots ----------------------------------------------------------------------------------------

    def snapshot_received(self, sender: int, term: int, snapshot: Snapshot) -> None:
        """The content of a snapshot that the leader of a term sent is here. If it is wanted, `install_snapshot` is
        called on the way."""
        if self.core is not None:
            self.received([InstallSnapshot(sender, self.core.node_id, term, snapshot)])

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
