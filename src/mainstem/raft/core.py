"""One node's part in one Raft group: `RaftCore` passes each event to the part it concerns, and collects the work for
the driver in a Ready.

Terms, votes and roles are in `elections`; a leader's work is in `leadership`, a follower's in `followership`.

Messages wait in the outbox until term and vote are durable. Events only note what is due; `ready` builds the messages
once for all events since the last Ready.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from mainstem.raft.config import RaftConfig
from mainstem.raft.elections import Elections
from mainstem.raft.entry import KIND_DATA, NOBODY, Entry, HardState, Snapshot
from mainstem.raft.errors import BrokenInvariant, NotLeader, NotReady, RaftError
from mainstem.raft.followership import Followership
from mainstem.raft.leader.leadership import Leadership
from mainstem.raft.leader.progress import PeerView
from mainstem.raft.log import Log, LogStore
from mainstem.raft.membership import LoggedMembership, Membership, MembershipChange
from mainstem.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
    ReadIndex,
    ReadIndexResponse,
    RequestVote,
    TimeoutNow,
    VoteResponse,
)
from mainstem.raft.reads import PendingReads
from mainstem.raft.ready import Ready
from mainstem.raft.roles import Cause, Role

REQUEST_BITS = 62
"""The numbers of forwarded reads fit into an i64, however many there are."""

WAITS_TIMEOUTS_MAX = 20
"""Election timeouts for which a member waits for an announced leader: ten seconds or more in production, in which the
node with the longest log could be elected several times over."""

FROM_LEADERS = (Append, Heartbeat, InstallSnapshot)


class RaftCore:
    """One node's part in one Raft group. It is not reentrant but in one way: between `ready` and `advance` a driver may
    call everything; `ready` then returns None. After a `BrokenInvariant` it must not be used again."""

    _log_class = Log
    _elections_class = Elections
    _leadership_class = Leadership
    _followership_class = Followership

    def __init__(
        self,
        config: RaftConfig,
        log: LogStore,
        hard_state: HardState,
        memberships: Sequence[LoggedMembership],
        random: random.Random,
        *,
        applied_index: int = 0,
        committed_index: int = 0,
        abstains_to: int = 0,
        waits_for_leader: bool = False,
    ) -> None:
        """`memberships`, oldest first: the one of the snapshot the log begins behind (index 0: what the group began
        with), then one for each membership entry in the log. `applied_index`: the last entry that the driver's state
        already has; at least `log.first_index() - 1`. `committed_index`: an entry of the log that is known to be
        committed. Everything in `log` and `hard_state` is durable.

        A member that has forgotten votes or entries names in `abstains_to` an entry that a leader logged and a majority
        committed while this member was silent (`member_forgot`): until it has that entry it neither votes nor stands.
        With `waits_for_leader` it does not stand before it heard a leader, or `WAITS_TIMEOUTS_MAX` election timeouts
        went by."""
        self._config = config
        self.node_id = config.node_id
        self._log = self._log_class(log, memberships, applied_index)
        if committed_index > applied_index:
            self._log.commit_to(committed_index)
        self._outbox: list[Message] = []
        self._touched = committed_index > applied_index
        self._out: Ready | None = None
        self._applying_waits = False
        """The driver cannot apply the next committed entry yet."""
        self._elections = self._elections_class(config, self._log, hard_state, random, self._outbox, self._entering)
        self._leadership: Leadership | None = None
        self._reads = PendingReads(random.getrandbits(REQUEST_BITS))
        self._followership = self._followership_class(config, self._log, self._outbox, forgetful=abstains_to > 0)
        self._followership.enter(self.term, NOBODY)
        self._abstains_to = abstains_to
        self._waits_timeouts = WAITS_TIMEOUTS_MAX if waits_for_leader else 0
        if self._may_stand:
            self._elections.started()
        self._steps: dict[type[Any], Callable[[Any], None]] = {
            Append: self._append,
            AppendResponse: self._append_response,
            Heartbeat: self._heartbeat,
            HeartbeatResponse: self._leader_step(Leadership.heartbeat_response),
            RequestVote: self._request_vote,
            VoteResponse: self._vote_response,
            InstallSnapshot: self._install_snapshot,
            InstallSnapshotResponse: self._leader_step(Leadership.snapshot_response),
            TimeoutNow: self._timeout_now,
            ReadIndex: self._leader_step(Leadership.read_index_asked),
            ReadIndexResponse: self._reads.answered,
        }

    # --- what can be seen, any time ------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._elections.role

    @property
    def term(self) -> int:
        return self._elections.term

    @property
    def vote(self) -> int:
        """The node it voted for in its term; 0: none."""
        return self._elections.vote

    @property
    def is_vote_durable(self) -> bool:
        """Whether its term, and its vote in it, are known to be durable."""
        elections, durable = self._elections, self._elections.durable
        return durable.term == elections.term and durable.vote == elections.vote

    @property
    def leader_id(self) -> int:
        """The leader of its term; 0: none is known."""
        return self._elections.leader_id

    @property
    def serves(self) -> bool:
        """Whether it leads and has applied an entry of its own term: then all that was ever committed is applied."""
        return self._leadership is not None and self._log.applied_index >= self._leadership.term_start_index

    @property
    def abstains(self) -> bool:
        """Whether it has forgotten votes or entries and not regained them yet: until then it neither votes nor
        stands."""
        return self._log.applicable_index < self._abstains_to

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, committed or not."""
        return self._log.memberships.current

    def membership_at(self, index: int) -> Membership:
        """The membership in force at `index`, which is applied or newer: for a snapshot of that point."""
        return self._log.memberships.at(index)

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def commit_index(self) -> int:
        return self._log.commit_index

    @property
    def applied_index(self) -> int:
        return self._log.applied_index

    @property
    def persisted_index(self) -> int:
        return self._log.persisted_index

    @property
    def installing(self) -> Snapshot | None:
        """The snapshot that the driver installs just now."""
        return self._followership.installing

    @property
    def timeout_ticks(self) -> int:
        """After how many more ticks this node stands for election, or as a leader sends its next heartbeat."""
        return self._elections.due - self._elections.elapsed

    @property
    def transfer_to(self) -> int:
        """The node that the leadership is being handed to; 0: none."""
        return self._leadership.transfer_to if self._leadership is not None else NOBODY

    @property
    def withholds(self) -> bool:
        """Whether it leads, and gathers entries for members that it does not count on (`RaftConfig.entries_wait`)."""
        return self._leadership is not None and self._leadership.replication.withholds

    def durable_index(self, count: int) -> int:
        """Leader: the highest index that at least `count` voters hold durably; from a majority on never beyond the
        commit index. 0 elsewhere, or if there are fewer voters."""
        if self._leadership is None:
            return 0
        index = self._leadership.replication.held_by(count)
        return min(index, self._log.commit_index) if count >= self.membership.quorum else index

    def peers(self) -> list[PeerView]:
        """On the leader, the progress of the other members. Empty elsewhere."""
        if self._leadership is None:
            return []
        return [progress.view for progress in self._leadership.replication.peers.values()]

    # --- what is asked for ---------------------------------------------------------------------------------

    def propose(self, data: object, size: int, kind: int = KIND_DATA) -> Entry:
        """Put one entry behind the log, and return it with its index and term. It is committed later, or truncated if
        this node ceases to lead. Raises `NotLeader`; `NotReady` while handing over or when too much is uncommitted."""
        entry = self._leading().propose(kind, size, data)
        self._touched = True
        return entry

    def propose_membership(self, change: MembershipChange) -> Entry:
        """Log the membership after one change; it counts at once. Raises `NotLeader`, `NotReady` (nothing of this
        term is committed yet, another change is under way) or `MembershipRefused`."""
        entry = self._leading().propose_membership(change)
        self._after_leader()
        return entry

    def transfer_leadership(self, to: int) -> None:
        """Have a voter catch up and lead; given up after an election timeout. Raises `NotLeader`, or
        `MembershipRefused` if it has no vote."""
        self._leading().transfer(to)
        self._touched = True

    def read_index(self, context: object) -> None:
        """Ask when the applied state may answer a read that came in now: `Ready.reads` then brings `context` back. A
        follower asks its leader, and the answer may get lost: use a timeout. Raises `NotLeader` (no leader is known),
        `NotReady` (nothing of this term is committed yet, too many reads wait)."""
        leadership = self._leadership
        waiting = self._reads.waiting + (leadership.reads.waiting if leadership is not None else 0)
        if waiting >= self._config.reads_waiting_max:
            raise NotReady(f"{waiting} reads wait, as many as reads_waiting_max allows: try again")
        if leadership is not None:
            leadership.read_index(context)
        elif self.leader_id != NOBODY:
            request = self._reads.send_on(context)
            self._outbox.append(ReadIndex(self.node_id, self.leader_id, self.term, request))
        else:
            raise NotLeader(self.node_id, NOBODY)
        self._touched = True

    def member_forgot(self, peer: int) -> None:
        """Note that a silent member lacks entries it has acknowledged, or does not know its votes any more: the leader
        forgets its progress. Entries proposed from now on are committed without it, until it sends messages again.
        Raises `NotLeader`."""
        self._leading().replication.member_forgot(peer)
        self._touched = True

    def copies_awaited(self) -> None:
        """Note that somebody waits until more members than a majority hold an entry."""
        if self._leadership is not None:
            self._leadership.replication.ask_all()
            self._look_again(self._leadership)

    def send_withheld(self) -> None:
        """Send what `withholds`. A driver calls it a moment after that became true; otherwise the answers to heartbeats
        have it sent."""
        if self._leadership is not None:
            self._leadership.replication.release()
            self._look_again(self._leadership)

    def campaign(self) -> None:
        """Stand for election now, if this node may."""
        if self.role is not Role.LEADER:
            self._election_timeout()

    def abstain_no_more(self, *, waits_for_leader: bool) -> None:
        """Vote and stand again without what this node lacks, as no member that is left has it. Its own votes must be
        known. `waits_for_leader` as at the beginning."""
        self._abstains_to = 0
        self._waits_timeouts = WAITS_TIMEOUTS_MAX if waits_for_leader else 0

    def _leading(self) -> Leadership:
        if self._leadership is None:
            raise NotLeader(self.node_id, self.leader_id)
        return self._leadership

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Count one tick of all timeouts."""
        elections = self._elections
        elections.elapsed += 1
        if elections.elapsed >= elections.due:
            self._tick_due()

    def _tick_due(self) -> None:
        if self._leadership is None:
            self._election_timeout()
            return
        self._elections.elapsed = 0
        self._leadership.beat()
        self._after_leader()

    # --- roles ---------------------------------------------------------------------------------------------

    def _entering(self, term: int, leader_id: int) -> None:
        """Begin a term, or follow another leader, or none."""
        if term > self.term or leader_id != self.leader_id:
            self._reads.leader_gone()
        self._followership.enter(term, leader_id)

    def _follow(self, term: int, leader_id: int, cause: Cause) -> None:
        """Become a follower in `term`, or the follower of another leader."""
        self._touched = True
        if self._leadership is not None:
            self._reads.refuse(self._leadership.reads.own_waiting())
            self._leadership = None
        self._elections.follow(term, leader_id, cause)

    @property
    def _may_stand(self) -> bool:
        return (
            self._followership.installing is None
            and not self.abstains
            and not self._waits_timeouts
            and self._log.memberships.knows_voter(self.node_id, self._log.commit_index)
        )

    def _election_timeout(self) -> None:
        self._touched = True
        self._waits_timeouts = max(0, self._waits_timeouts - 1)
        self._settle(self._elections.timed_out(may_stand=self._may_stand))

    def _settle(self, cause: Cause | None) -> None:
        """Act on the outcome of an election, if there is one."""
        if cause is None:
            return
        self._touched = True
        if cause is Cause.ELECTION_WON:
            self._lead()
        elif cause is Cause.ELECTION_LOST:
            self._follow(self.term, NOBODY, cause)

    def _lead(self) -> None:
        self._elections.lead()
        self._leadership = self._leadership_class(self._config, self.term, self._log, self._reads, self._outbox)

    def _after_leader(self) -> None:
        self._touched = True
        if self._leadership is not None and self._leadership.over is not None:
            self._follow(self.term, NOBODY, self._leadership.over)

    # --- messages ------------------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Take in a message for this node."""
        if message.to != self.node_id:
            raise RaftError(
                f"a message for node {message.to} came to node {self.node_id}: check the routing of messages"
            )
        if message.term == self._elections.term or self._settle_terms(message):
            self._steps[type(message)](message)

    def _settle_terms(self, message: Message) -> bool:
        """Settle a message of another term. Returns whether to handle the message further."""
        self._touched = True
        if message.term < self.term:
            self._answer_from_the_past(message)
            return False
        if isinstance(message, RequestVote):
            if self._elections.protects_leader and not message.transfer:
                return False
            if message.pre_vote:
                return True
        elif isinstance(message, VoteResponse) and message.pre_vote and message.granted:
            return True
        leader_id = message.sender if isinstance(message, FROM_LEADERS) else NOBODY
        self._follow(message.term, leader_id, Cause.HIGHER_TERM)
        return True

    def _answer_from_the_past(self, message: Message) -> None:
        """Tell a node of an older term, which may believe that it leads, that there is a newer one."""
        if isinstance(message, FROM_LEADERS):
            self._outbox.append(AppendResponse(self.node_id, message.sender, self.term, 0, rejected=True))
        elif isinstance(message, RequestVote):
            self._outbox.append(VoteResponse(self.node_id, message.sender, self.term, False, message.pre_vote))

    def _leader_step(self, handle: Callable[[Leadership, Any], None]) -> Callable[[Any], None]:
        """Wrap a handler so that it runs only while this node leads."""

        def step(message: Message) -> None:
            if self._leadership is not None:
                handle(self._leadership, message)
                self._after_leader()

        return step

    def _append_response(self, message: AppendResponse) -> None:
        if (leadership := self._leadership) is not None:
            leadership.append_response(message)
            self._after_news(leadership)

    def _after_news(self, leadership: Leadership) -> None:
        """Act on news of what is durable, if they change anything: of three members, the last to hold an entry tells
        what need not be known any more."""
        log = self._log
        if (
            leadership.replication.due
            or self._outbox
            or (log.applied_index < log.commit_index and log.applied_index < log.persisted_index)
            or leadership.over is not None
        ):
            self._after_leader()

    def _look_again(self, leadership: Leadership) -> None:
        """Hand out the entries that members may get since something else than entries changed."""
        self._touched = self._touched or leadership.replication.due

    def _request_vote(self, message: RequestVote) -> None:
        if self.abstains:  # it does not know its earlier vote, nor how far its log went
            return
        self._elections.request_vote(message, may_stand=self._may_stand)
        self._touched = True

    def _vote_response(self, message: VoteResponse) -> None:
        self._settle(self._elections.vote_response(message))

    def _timeout_now(self, message: TimeoutNow) -> None:
        if self.role is not Role.LEADER and self._may_stand:
            self._elections.asked_to_lead()
            self._touched = True

    def _heard_leader(self, leader_id: int) -> None:
        """Note a message from the leader of this term."""
        self._waits_timeouts = 0
        elections = self._elections
        if leader_id == elections.leader_id and self._leadership is None:
            elections.elapsed = 0
        elif elections.role is Role.LEADER:
            raise BrokenInvariant(f"nodes {self.node_id} and {leader_id} both lead term {self.term}")
        else:
            self._follow(self.term, leader_id, Cause.LEADER_HEARD)

    def _heartbeat(self, message: Heartbeat) -> None:
        self._heard_leader(message.sender)
        self._followership.heartbeat(message)
        self._touched = True

    def _append(self, message: Append) -> None:
        self._heard_leader(message.sender)
        self._followership.append(message)
        self._touched = True

    def _install_snapshot(self, message: InstallSnapshot) -> None:
        self._heard_leader(message.sender)
        self._followership.install_snapshot(message)
        self._touched = True

    # --- news from the disk and the network ----------------------------------------------------------------

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """Take note that a hard state from a Ready is durable."""
        if hard_state.term < self._elections.durable.term:
            return
        self._touched = True
        self._settle(self._elections.hard_state_persisted(hard_state))

    def persisted(self, index: int, term: int) -> None:
        """Take note that the log is durable up to the entry (`index`, `term`)."""
        if not self._log.persisted(index, term):
            return
        if self._leadership is not None:
            self._leadership.commit()
            self._after_news(self._leadership)
        else:
            self._followership.persisted()
            self._touched = True

    def snapshot_installed(self, snapshot: Snapshot) -> None:
        """Take note that `Ready.snapshot` has replaced state and log, durably: the log store begins behind it, and is
        empty."""
        self._followership.snapshot_installed(snapshot)
        self._applying_waits = False
        self._touched = True

    def snapshot_failed(self, snapshot: Snapshot) -> None:
        """Take note that `Ready.snapshot` could not be installed, and nothing changed."""
        self._followership.snapshot_failed(snapshot)
        self._touched = True

    def report_unreachable(self, peer: int) -> None:
        """Take note that a message to `peer` could not be sent: the core then sends to it one message at a time until
        it answers."""
        if self._leadership is not None:
            self._leadership.replication.unreachable(peer)
            self._look_again(self._leadership)

    def report_gone(self, peer: int) -> None:
        """Take note that `peer` has ended, as far as the driver can tell. A follower does not wait for such a leader:
        it lets others stand, and stands soon itself. After a wrong report, the leader's next message makes it follow
        again."""
        if self._leadership is not None:
            self._leadership.replication.unreachable(peer)
            self._look_again(self._leadership)
        elif peer != NOBODY and peer == self.leader_id:
            self._elections.leader_gone()
            self._touched = True

    def report_snapshot(self, peer: int, ok: bool) -> None:
        """Take note that sending a snapshot to `peer` has ended, with success or not."""
        if self._leadership is not None:
            self._leadership.replication.snapshot_sent(peer, ok)

    # --- a group of one ------------------------------------------------------------------------------------

    @property
    def alone(self) -> bool:
        """Whether it leads as the only member and has no message to send. Entries may then take the short way: it has
        the effect of `propose`, `persisted` and the Readys in between, for a fifth of the work."""
        leadership = self._leadership
        return leadership is not None and not (self._touched or leadership.replication.peers or self._out)

    def lead_anew(self, term: int) -> None:
        """As the leader: lead in a later term, which is `term` at least. It takes an election, in which the others vote
        as if this node had been asked to take over: its log has all there is. If their votes get lost, another
        election follows, which anybody may win. Raises `NotLeader`; `NotReady` if this node may not stand."""
        self._leading()
        if not self._may_stand:
            raise NotReady(f"node {self.node_id} may not stand for election now")
        self._follow(max(self.term, term - 1), NOBODY, Cause.HIGHER_TERM)
        if self.membership.voters == {self.node_id}:
            self.campaign()
        else:
            self._elections.asked_to_lead()
            self._touched = True

    def append_alone(self) -> int:
        """While `alone`, add one entry of this term and return its index; the log store must show it from now on."""
        return self._log.append_stored(self._elections.term)

    def persisted_alone(self, index: int, term: int) -> bool:
        """While `alone`, commit the log up to this entry, which is durable. Returns False if it was committed before.
        Otherwise the driver applies everything up to it, then calls `applied_alone`."""
        assert self._leadership is not None
        if not self._log.persisted(index, term):
            return False
        self._leadership.commit_to(index)
        return True

    def applied_alone(self, index: int) -> None:
        self._log.applied(index)

    # --- what is to be done --------------------------------------------------------------------------------

    def ready(self) -> Ready | None:
        """The work for the driver, or None. No part of it is handed out twice."""
        if not self._touched or self._out is not None:
            return None
        self._touched = False
        log, following, elections, reads = self._log, self._followership, self._elections, self._reads
        hard_state, role_change = elections.news()
        truncate_from, entries = log.take()
        messages = self._messages()
        installing = following.installing is not None
        snapshot = following.take_snapshot() if installing else None
        leadership = self._leadership
        snapshots_to_send: tuple[InstallSnapshot, ...] = ()
        if leadership is not None and leadership.replication.snapshots_to_send:
            snapshots_to_send = tuple(leadership.replication.snapshots_to_send)
            leadership.replication.snapshots_to_send.clear()
        committed: tuple[Entry, ...] = ()
        if log.applied_index < log.commit_index and not (installing or self._applying_waits):
            committed = log.to_apply(self._config.apply_bytes_max)
        answers = reads.take(log.applied_index) if reads.settled else ()
        if not (
            messages or entries or committed or hard_state is not None or truncate_from or snapshot is not None
            or snapshots_to_send or answers or role_change is not None
        ):  # fmt: skip
            return None
        self._out = Ready(
            messages,
            hard_state,
            truncate_from,
            entries,
            snapshot,
            snapshots_to_send,
            committed,
            answers,
            role_change,
        )
        return self._out

    def advance(self, ready: Ready, *, applied_to: int | None = None) -> None:
        """Take note that the log store shows the entries of `ready`, and its committed entries are applied, or only
        those up to `applied_to`: the core hands the others out again once `go_on` is called."""
        if ready is not self._out:
            raise RaftError("advance takes the Ready that was handed out last, once")
        self._out = None
        log = self._log
        if ready.entries or ready.truncate_from:
            log.advance()
        if committed := ready.committed:
            last = committed[-1].index
            self._applying_waits = applied_to is not None and applied_to < last
            log.applied(last if applied_to is None else applied_to)
            behind = log.applied_index < log.commit_index and log.applied_index < log.persisted_index
            if (behind and not self._applying_waits) or self._reads.settled:
                self._touched = True

    @property
    def applying_waits(self) -> bool:
        """Whether the driver could not apply the next committed entry, and has not called `go_on` since."""
        return self._applying_waits

    def known_committed(self, index: int, term: int) -> bool:
        """Take note that the entry (`index`, `term`) is committed, as somebody knows who has applied it. Returns
        whether that is news: the log has the entry, and so is committed up to there."""
        if self._followership.installing is not None or self._log.commit_index >= index:
            return False
        if not self._log.matches(index, term):
            return False
        self._log.commit_to(index)
        self._touched = True
        return True

    def go_on(self) -> None:
        """Hand out committed entries again that the driver could not apply."""
        if self._applying_waits:
            self._applying_waits = False
            self._touched = True

    def _messages(self) -> tuple[Message, ...]:
        if not self.is_vote_durable:
            return ()
        if self._leadership is not None:
            self._leadership.collect()
        else:
            self._followership.collect()
        if not self._outbox:
            return ()
        messages = tuple(self._outbox)
        self._outbox.clear()
        return messages
