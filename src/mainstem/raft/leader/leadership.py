"""A leadership is a node's state and work while it leads a term: from its no-op until it steps down.

It logs, replicates and commits, hands over, and notices when it should not lead any more (`over`). It commits only
entries of its own term by counting; older entries are committed with them.
"""

from __future__ import annotations

from collections import deque

from mainstem.raft.config import RaftConfig
from mainstem.raft.entry import KIND_MEMBERSHIP, KIND_NO_OP, NOBODY, Entry
from mainstem.raft.errors import MembershipRefused, NotReady
from mainstem.raft.leader.replication import Replication
from mainstem.raft.log import Log
from mainstem.raft.membership import ChangeKind, MembershipChange
from mainstem.raft.messages import (
    AppendResponse,
    HeartbeatResponse,
    InstallSnapshotResponse,
    Message,
    ReadIndex,
    TimeoutNow,
)
from mainstem.raft.reads import REFUSED_INDEX, LeaderReads, PendingReads
from mainstem.raft.roles import Cause


class Leadership:
    def __init__(self, config: RaftConfig, term: int, log: Log, reads: PendingReads, outbox: list[Message]) -> None:
        self._config = config
        self._term = term
        self._log = log
        self._outbox = outbox
        self.term_start_index = log.last_index + 1
        """Index of this term's no-op."""
        self.over: Cause | None = None
        """The cause why this node should step down; None: it should not."""
        self.replication = Replication(config, term, log, outbox)
        self.reads = LeaderReads(config.node_id, term, outbox)
        self._answers = reads
        self._uncommitted: deque[tuple[int, int]] = deque()
        self._uncommitted_bytes = 0
        self._transfer_to = NOBODY
        self._transfer_ticks = 0
        self._quorum_ticks = 0
        self._append(KIND_NO_OP, 0, None)
        self.heartbeat()

    @property
    def committed_own_term(self) -> bool:
        return self._log.commit_index >= self.term_start_index

    # --- the log -------------------------------------------------------------------------------------------

    def propose(self, kind: int, size: int, data: object) -> Entry:
        """Raises `NotReady`."""
        self._refuse_in_transfer()
        if self._uncommitted_bytes and self._uncommitted_bytes + size > self._config.uncommitted_bytes_max:
            raise NotReady(
                f"{self._uncommitted_bytes} bytes wait for a majority, uncommitted_bytes_max is "
                f"{self._config.uncommitted_bytes_max}: try again when some are committed"
            )
        return self._append(kind, size, data)

    def propose_membership(self, change: MembershipChange) -> Entry:
        """Raises `NotReady`, `MembershipRefused`."""
        self._refuse_in_transfer()
        if not self.committed_own_term:
            raise NotReady(f"nothing of term {self._term} is committed yet: try again when it is")
        if self._log.memberships.index > self._log.commit_index:
            raise NotReady(f"the membership at entry {self._log.memberships.index} is not committed yet")
        membership = self._log.memberships.current.changed(change)
        if change.kind is ChangeKind.PROMOTE:
            lag = self._log.last_index - self.replication.peers[change.node_id].match_index
            if lag > self._config.learner_lag_max:
                raise MembershipRefused(
                    f"learner {change.node_id} lacks {lag} entries, learner_lag_max is "
                    f"{self._config.learner_lag_max}: let it catch up first"
                )
        entry = self._append(KIND_MEMBERSHIP, 0, membership)
        self.replication.follow_membership()
        self.commit()
        return entry

    def _append(self, kind: int, size: int, data: object) -> Entry:
        entry = Entry(self._term, self._log.last_index + 1, kind, size, data)
        self._log.append((entry,))
        self._uncommitted.append((entry.index, size))
        self._uncommitted_bytes += size
        self.replication.grown(size)
        return entry

    def commit(self) -> None:
        """Commit up to the entry that a majority holds, if that entry is of this term."""
        index = self.replication.quorum_index()
        if index <= self._log.commit_index or not self._may_commit(index):
            return
        self.commit_to(index)
        if not self._config.commits_with_heartbeats:
            self.replication.due = True
        memberships = self._log.memberships
        if memberships.index <= index and self._config.node_id not in memberships.current.voters:
            self.replication.collect()  # its last message tells the others that it is removed
            self.over = Cause.REMOVED

    def commit_to(self, index: int) -> None:
        """Commit everything up to an entry of this term, which a majority holds."""
        self._log.commit_to(index)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= index:
            self._uncommitted_bytes -= uncommitted.popleft()[1]

    def _may_commit(self, index: int) -> bool:
        return index >= self.term_start_index

    # --- answers -------------------------------------------------------------------------------------------

    def append_response(self, message: AppendResponse) -> None:
        if self.replication.append_response(message):
            if message.match_index > self._log.commit_index:  # the last of three to hold an entry changes nothing
                self.replication.counted_on.helped(message.sender)
                self.commit()
            if self._transfer_to:
                self._continue_transfer(message.sender)

    def snapshot_response(self, message: InstallSnapshotResponse) -> None:
        if self.replication.snapshot_response(message):
            self.commit()

    def heartbeat_response(self, message: HeartbeatResponse) -> None:
        if self.replication.heartbeat_response(message):
            self._confirm_reads()

    # --- time ----------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Send heartbeats: their interval has passed."""
        ticks = self._config.heartbeat_ticks
        self.replication.ticked(ticks)
        if self._transfer_to:
            self._transfer_ticks += ticks
            if self._transfer_ticks >= self._config.election_ticks:
                self._transfer_to = NOBODY
            else:
                self._continue_transfer(self._transfer_to)
        self._quorum_ticks += ticks
        if self._quorum_ticks >= self._config.election_ticks:
            self._quorum_ticks = 0
            if not self.replication.count_active() and self._config.check_quorum:
                self.over = Cause.QUORUM_LOST
                return
        self.heartbeat()

    def heartbeat(self) -> None:
        self.replication.heartbeats(self.reads.context)

    # --- handing over --------------------------------------------------------------------------------------

    @property
    def transfer_to(self) -> int:
        """The node that is asked to lead next; 0: none."""
        return self._transfer_to

    def transfer(self, to: int) -> None:
        """Raises `MembershipRefused`."""
        if to not in self._log.memberships.current.voters:
            raise MembershipRefused(f"node {to} has no vote: it cannot lead")
        if to == self._config.node_id or to == self._transfer_to:
            return
        self._transfer_to = to
        self._transfer_ticks = 0
        self.replication.release()
        self._continue_transfer(to)

    def _continue_transfer(self, node_id: int) -> None:
        if node_id != self._transfer_to:
            return
        progress = self.replication.peers.get(node_id)
        if progress is None:
            self._transfer_to = NOBODY
        elif progress.match_index == self._log.last_index:
            self._outbox.append(TimeoutNow(self._config.node_id, node_id, self._term))

    def _refuse_in_transfer(self) -> None:
        if self._transfer_to:
            raise NotReady(f"leadership is being handed to node {self._transfer_to}: ask there")

    # --- reads ---------------------------------------------------------------------------------------------

    def read_index(self, context: object) -> None:
        """Raises `NotReady`."""
        if not self.committed_own_term:
            raise NotReady(f"nothing of term {self._term} is committed yet: try again when it is")
        self.reads.add(context)

    def read_index_asked(self, message: ReadIndex) -> None:
        if self.committed_own_term and self.reads.waiting < self._config.reads_waiting_max:
            self.reads.add_asked(message)
        else:
            self.reads.answer(message, REFUSED_INDEX)

    def _confirm_reads(self) -> None:
        for read_index, context in self.reads.confirm(self._confirmed_context()):
            self._answers.confirmed(read_index, context)

    def _confirmed_context(self) -> int:
        return self.replication.confirmed_context(self.reads.context)

    # --- sending -------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Put all messages that can be sent now into the outbox."""
        if self.reads.due:
            self.replication.heartbeats(self.reads.begin(self._log.commit_index))
            self._confirm_reads()  # a leader alone needs no other member
        if self.replication.due:
            self.replication.collect()
