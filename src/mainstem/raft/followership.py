"""A follower takes the entries its leader sends, acknowledges them, and installs snapshots.

`verified_index` says how far the log is known to match the leader's: from the newest accepted append down, and at least
to the commit index, since committed entries match every leader's log. An entry is acknowledged when it is verified and
durable; one answer per Ready covers all appends of a turn.
"""

from __future__ import annotations

from mainstem.raft.config import RaftConfig
from mainstem.raft.entry import NOBODY, Snapshot
from mainstem.raft.errors import RaftError
from mainstem.raft.log import Log
from mainstem.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
)


class Followership:
    """Handles a leader's messages. It lives as long as the core; `enter` begins it anew."""

    def __init__(self, config: RaftConfig, log: Log, outbox: list[Message], *, forgetful: bool = False) -> None:
        """`forgetful`: leaders may count on entries that this log had and lost."""
        self._node_id = config.node_id
        self._may_forget = config.may_forget or forgetful
        self._log = log
        self._outbox = outbox
        self._term = 0
        self._leader_id = NOBODY
        self._verified_index = 0
        self._acknowledged_index = 0
        self._ack_due = False
        self._prompt_to = 0
        """An acknowledgement up to here must not wait: the leader counts on it."""
        self._prompt_due = False
        """True when one is due that must not wait, whatever it is up to."""
        self._install_due = False
        self._heartbeat_response: HeartbeatResponse | None = None
        self.installing: Snapshot | None = None
        """The snapshot that will replace state and log; until then no message changes them."""

    def enter(self, term: int, leader_id: int) -> None:
        """Begin to follow another leader, or none, in this term."""
        self._term = term
        self._leader_id = leader_id
        self._verified_index = self._log.commit_index
        self._acknowledged_index = 0
        self._ack_due = False
        self._prompt_to = 0
        self._prompt_due = False

    # --- from the leader -----------------------------------------------------------------------------------

    def heartbeat(self, message: Heartbeat) -> None:
        commit_index = message.commit_index
        if self._may_forget:  # the leader's record of this log may be older than the loss
            commit_index = min(commit_index, self._verified_index)
        if commit_index > self._log.commit_index and self.installing is None:
            self._log.commit_to(commit_index)
        response = self._heartbeat_response
        if (
            response is None
            or response.to != message.sender
            or response.term != message.term
            or response.read_context != message.read_context
        ):
            response = self._heartbeat_response = HeartbeatResponse(
                self._node_id, message.sender, message.term, message.read_context
            )
        self._outbox.append(response)

    def append(self, message: Append) -> None:
        """Take a leader's entries into the log. Raises `CommittedTruncation`."""
        if self.installing is not None:
            return
        log = self._log
        previous_index, entries = message.previous_index, message.entries
        if previous_index < log.commit_index:
            overlap = entries[: log.commit_index - previous_index]
            if overlap:
                log.check_committed(overlap[-1].index, overlap[-1].term)
            entries = entries[len(overlap) :]
            previous_index = log.commit_index
        elif not log.matches(previous_index, message.previous_term):
            self._reject(message)
            return
        log.merge(previous_index, entries)
        end = previous_index + len(entries)
        self._verified_index = max(self._verified_index, end)
        if message.commit_index > log.commit_index:
            log.commit_to(min(message.commit_index, end))
        if not message.may_wait:
            self._prompt_to = max(end, self._prompt_to)
        if not message.entries or end <= self._acknowledgeable_index:
            self._ack_due = True
            self._prompt_due = self._prompt_due or not message.may_wait

    def _reject(self, message: Append) -> None:
        log = self._log
        if message.previous_index == log.commit_index:
            log.check_committed(message.previous_index, message.previous_term)
        hint_index, hint_term = log.floor(message.previous_index, message.previous_term, log.commit_index)
        self._outbox.append(
            AppendResponse(
                self._node_id,
                message.sender,
                message.term,
                match_index=0,
                rejected=True,
                previous_index=message.previous_index,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )

    def install_snapshot(self, message: InstallSnapshot) -> None:
        if self.installing is not None:
            return
        snapshot = message.snapshot
        if snapshot.index > self._log.commit_index:
            if not self._log.matches(snapshot.index, snapshot.term):
                self.installing = snapshot
                self._install_due = True
                return
            self._log.commit_to(snapshot.index)  # all of it is here already
        self._verified_index = max(self._verified_index, self._log.commit_index)
        self._ack_due = True

    # --- from the disk -------------------------------------------------------------------------------------

    def persisted(self) -> None:
        """Take note that more of the log is durable."""
        if self._acknowledgeable_index > self._acknowledged_index:
            self._ack_due = True

    def snapshot_installed(self, snapshot: Snapshot) -> None:
        self._end_installing(snapshot)
        self._log.reset(snapshot)
        self._verified_index = snapshot.index
        if self._leader_id not in (NOBODY, self._node_id):
            self._outbox.append(InstallSnapshotResponse(self._node_id, self._leader_id, self._term, snapshot.index))

    def snapshot_failed(self, snapshot: Snapshot) -> None:
        self._end_installing(snapshot)

    def _end_installing(self, snapshot: Snapshot) -> None:
        if self.installing is not snapshot:
            raise RaftError(f"the snapshot of entry {snapshot.index} is not the one being installed")
        self.installing = None
        self._install_due = False

    # --- sending -------------------------------------------------------------------------------------------

    @property
    def _acknowledgeable_index(self) -> int:
        return min(self._verified_index, self._log.persisted_index)

    def collect(self) -> None:
        """Put the answers to the leader into the outbox."""
        if self._ack_due and self._leader_id != NOBODY:
            may_wait = self._acknowledged_index >= self._prompt_to and not self._prompt_due
            self._acknowledged_index = self._acknowledgeable_index
            self._outbox.append(
                AppendResponse(self._node_id, self._leader_id, self._term, self._acknowledged_index, may_wait=may_wait)
            )
        self._ack_due = self._prompt_due = False

    def take_snapshot(self) -> Snapshot | None:
        """The snapshot to install, once."""
        due, self._install_due = self._install_due, False
        return self.installing if due else None
