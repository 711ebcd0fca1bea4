"""A leader's replication sends its log to the other members, and counts which entries they hold.

Appends are not built when something happens but when a Ready is made (`collect`): everything that came in during a
turn rides in one message per member, and the news of a commit with it. Members are sent entries as soon as the
leader's own log has them, durable or not; only `persisted` counts for the leader itself.
"""

from __future__ import annotations

from mainstem.raft.config import RaftConfig
from mainstem.raft.entry import Entry
from mainstem.raft.errors import BrokenInvariant, Compacted, Unavailable
from mainstem.raft.leader.counted_on import CountedOn
from mainstem.raft.leader.progress import Progress, SendState
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

PROBE_BYTES_MAX = 64 * 1024
"""A probe, which may be repeated many times, carries entries only up to this size: a new leader's no-op, not a
block."""

WAITING_BYTES_MAX = 64 * 1024
"""An acknowledgement waits only while no more bytes than that are under way to its member: it is small requests that
cost less by it, and large ones need their room again."""

WITHHELD_ENTRIES_MAX = 64
"""A member's entries wait only while there are no more than that: a fourth of those that may be under way
(`RaftConfig.entries_in_flight_max`), so that it is never far from the others."""

LEARNER_BYTES_MAX = 2 * 1024 * 1024
"""Bytes of entries that a learner is sent before it acknowledges some. It writes them at once, and whatever else its
disk writes waits for that long: some ten ms."""


class Replication:
    """Sends appends and heartbeats to the members, and tracks their progress. `outbox` and `snapshots_to_send` collect
    what goes out; the core empties them into the Ready."""

    def __init__(self, config: RaftConfig, term: int, log: Log, outbox: list[Message]) -> None:
        self._config = config
        self._term = term
        self._log = log
        self._outbox = outbox
        self.snapshots_to_send: list[InstallSnapshot] = []
        self.peers: dict[int, Progress] = {}
        self.due = True
        """True when a message may have to be sent."""
        self._learner_bytes = config.learner_bytes_per_tick
        """Bytes that learners may still be sent before the next tick."""
        self._grown_bytes = 0
        """Bytes that the log has grown by since the last tick."""
        self.counted_on = CountedOn(config, log, self.peers)
        self.withholds = False
        """True when members that are not counted on lack entries which wait for more of them."""
        self._withheld_bytes = 0
        """Bytes that the log has grown by since nothing was withheld."""
        self._releases = False
        """True when nothing is to be withheld the next time."""
        self.follow_membership()

    def ask_all(self) -> None:
        """For a while, let nothing wait: somebody waits for more than a majority."""
        self.counted_on.ask_all()
        self.due = self.due or self.withholds

    def follow_membership(self) -> None:
        """Start to track new members, and forget removed ones."""
        members = self._log.memberships.current.members - {self._config.node_id}
        for node_id in self.peers.keys() - members:
            del self.peers[node_id]
        for node_id in sorted(members - self.peers.keys()):
            self.peers[node_id] = Progress(node_id, self._log.last_index + 1)
        self.counted_on.choose()
        self.due = True

    # --- the pace of learners ------------------------------------------------------------------------------

    def grown(self, size: int) -> None:
        """Note that an entry of this size was added to the log."""
        self._grown_bytes += size
        self._withheld_bytes += size
        self.due = True

    def ticked(self, ticks: int) -> None:
        """Let learners have more."""
        self._learner_bytes = ticks * self._config.learner_bytes_per_tick + 2 * self._grown_bytes
        self._grown_bytes = 0
        self.counted_on.ticked(ticks)
        if self.withholds or self._log.memberships.current.learners:  # others may be counted on from now on
            self.due = True

    # --- counting ------------------------------------------------------------------------------------------

    def held_by(self, count: int) -> int:
        """The highest index that at least `count` voters hold durably; 0 if there are fewer voters."""
        voters = self._log.memberships.current.voters
        own, peers = self._config.node_id, self.peers
        if count == 1 and not peers and voters == {own}:
            return self._log.persisted_index
        here = self._held_here()
        held = [here if voter == own else peers[voter].match_index for voter in voters]
        held.sort(reverse=True)
        return held[count - 1] if 0 < count <= len(held) else 0

    def _held_here(self) -> int:
        return self._log.persisted_index

    def quorum_index(self) -> int:
        """The highest index that a majority holds durably."""
        return self.held_by(self._log.memberships.current.quorum)

    def confirmed_context(self, latest: int) -> int:
        """The newest read context that a majority confirmed, if `latest` is the newest there is."""
        membership = self._log.memberships.current
        contexts = sorted(
            (
                latest if node_id == self._config.node_id else self.peers[node_id].read_context
                for node_id in membership.voters
            ),
            reverse=True,
        )
        return contexts[membership.quorum - 1]

    def count_active(self) -> bool:
        """Whether a majority was heard from since the last count; begins a new one."""
        membership = self._log.memberships.current
        heard = sum(node_id == self._config.node_id or self.peers[node_id].active for node_id in membership.voters)
        for progress in self.peers.values():
            progress.was_active, progress.active = progress.active, False
        return heard >= membership.quorum

    # --- answers -------------------------------------------------------------------------------------------

    def append_response(self, message: AppendResponse) -> bool:
        """Take in the answer. Returns whether the sender holds more than before."""
        progress = self.peers.get(message.sender)
        if progress is None:
            return False
        progress.active = True
        if not message.rejected:
            return self._accepted(progress, message.match_index)
        if (self._config.may_forget or progress.forgetful) and message.previous_index <= progress.match_index:
            progress.forgot()
            progress.probe(min(message.hint_index + 1, message.previous_index))
            self.due = True
        elif progress.rejection_is_news(message.previous_index):
            index, _ = self._log.floor(message.hint_index, message.hint_term, progress.match_index)
            if message.hint_index < self._log.first_index - 1:
                index = message.hint_index
            progress.probe(min(index + 1, message.previous_index))
            self.due = True
        return False

    def snapshot_response(self, message: InstallSnapshotResponse) -> bool:
        """Take in the answer. Returns whether the sender holds more than before."""
        progress = self.peers.get(message.sender)
        if progress is None:
            return False
        progress.active = True
        return self._accepted(progress, message.match_index)

    def _accepted(self, progress: Progress, match_index: int) -> bool:
        if match_index > self._log.last_index:
            raise BrokenInvariant(
                f"node {progress.node_id} acknowledges entry {match_index} of term {self._term}, but its leader's log "
                f"ends at {self._log.last_index}"
            )
        news = progress.accepted(match_index, self._log.first_index)
        if (
            progress.next_index <= self._log.last_index
            or progress.probe_due
            or not self._config.commits_with_heartbeats
        ):
            self.due = True
        return news

    def heartbeat_response(self, message: HeartbeatResponse) -> bool:
        """Take in the answer. Returns whether the sender confirms a read context for the first time."""
        progress = self.peers.get(message.sender)
        if progress is None:
            return False
        progress.active = True
        if progress.paused or progress.match_index < self._log.last_index:
            progress.paused = False
            progress.probe_due = True
            self.due = True
        if message.read_context <= progress.read_context:
            return False
        progress.read_context = message.read_context
        return True

    def member_forgot(self, node_id: int) -> None:
        """Forget what a member acknowledged before, because it lost entries; later acknowledgements count."""
        progress = self.peers.get(node_id)
        if progress is not None:
            progress.forgetful = True
            progress.forgot()
            progress.probe(self._log.last_index + 1, paused=True)
            self.due = True

    # --- news from the driver ------------------------------------------------------------------------------

    def unreachable(self, node_id: int) -> None:
        progress = self.peers.get(node_id)
        if progress is not None and progress.state is SendState.REPLICATE:
            progress.probe(progress.match_index + 1, paused=True)
            self.counted_on.choose()
            self.due = self.due or self.withholds

    def snapshot_sent(self, node_id: int, ok: bool) -> None:
        progress = self.peers.get(node_id)
        if progress is not None and progress.state is SendState.SNAPSHOT:
            progress.probe((progress.snapshot_index if ok else progress.match_index) + 1, paused=True)

    # --- sending -------------------------------------------------------------------------------------------

    def heartbeats(self, read_context: int) -> None:
        """Send a heartbeat to every member."""
        for progress in self.peers.values():
            commit_index = min(progress.match_index, self._log.commit_index)
            heartbeat = progress.heartbeat
            if heartbeat is None or heartbeat.commit_index != commit_index or heartbeat.read_context != read_context:
                heartbeat = progress.heartbeat = Heartbeat(
                    self._config.node_id, progress.node_id, self._term, commit_index, read_context
                )
            self._outbox.append(heartbeat)

    def release(self) -> None:
        """Withhold nothing of what there is."""
        if self.withholds:
            self._releases = self.due = True

    def collect(self) -> None:
        """Send every member the entries it may get now."""
        self.due = self.withholds = False
        for progress in self.peers.values():
            if self._may_gather(progress):
                self.withholds = True
                continue
            try:
                self._send(progress)
            except Unavailable:  # only now: the answer to the next heartbeat makes the leader try again
                progress.probe(progress.next_index, paused=True)
        if not self.withholds:
            self._withheld_bytes = 0
        self._releases = False

    def _may_gather(self, progress: Progress) -> bool:
        """Whether the entries that a member lacks may wait for more of them."""
        lacks = self._log.last_index + 1 - progress.next_index
        return (
            0 < lacks <= WITHHELD_ENTRIES_MAX
            and self._config.entries_wait
            and not self._releases
            and progress.node_id in self.counted_on.others
            and self._withheld_bytes + progress.bytes_in_flight <= WAITING_BYTES_MAX
            and progress.state is SendState.REPLICATE
            and not progress.probe_due
        )

    def _send(self, progress: Progress) -> None:
        try:
            if progress.state is SendState.REPLICATE:
                self._replicate(progress)
            elif progress.state is SendState.PROBE and not progress.paused:
                self._probe(progress)
        except Compacted:
            self._send_snapshot(progress)

    def _replicate(self, progress: Progress) -> None:
        config, log = self._config, self._log
        last_index = log.last_index
        learns = progress.node_id in log.memberships.current.learners
        in_flight_max = LEARNER_BYTES_MAX if learns else config.bytes_in_flight_max
        append_max = min(config.append_bytes_max, in_flight_max // 2)
        while (
            progress.next_index <= last_index
            and not (learns and self._learner_bytes <= 0)
            and progress.bytes_in_flight < in_flight_max
            and progress.next_index <= progress.match_index + config.entries_in_flight_max
        ):
            last_to_send = min(last_index, progress.match_index + config.entries_in_flight_max)
            size_max = min(append_max, self._learner_bytes) if learns else append_max
            entries = log.entries(progress.next_index, last_to_send, size_max)
            size = 0
            for entry in entries:
                size += entry.size
            waits = progress.node_id in self.counted_on.others and progress.bytes_in_flight + size <= WAITING_BYTES_MAX
            if config.entries_wait and entries[0].index > log.commit_index:
                waits = False  # those that are counted on have not acknowledged it in all that time
            self._append(progress, entries, may_wait=waits)
            progress.sent(entries[-1].index, size)
            if learns:
                self._learner_bytes -= size
        if progress.probe_due or (
            not config.commits_with_heartbeats
            and progress.sent_commit_index < min(log.commit_index, progress.next_index - 1)
        ):
            self._append(progress, ())

    def _probe(self, progress: Progress) -> None:
        entries: list[Entry] = []
        if progress.next_index <= self._log.last_index:
            entries = self._log.entries(progress.next_index, self._log.last_index, PROBE_BYTES_MAX)
            if sum(entry.size for entry in entries) > PROBE_BYTES_MAX:
                entries = []
        self._append(progress, entries)
        progress.paused = True

    def _append(self, progress: Progress, entries: list[Entry] | tuple[()], *, may_wait: bool = False) -> None:
        previous_index = entries[0].index - 1 if entries else progress.next_index - 1
        self._outbox.append(
            Append(
                self._config.node_id,
                progress.node_id,
                self._term,
                previous_index,
                self._log.term(previous_index),
                self._log.commit_index,
                tuple(entries),
                may_wait,
            )
        )
        progress.probe_due = False
        progress.sent_commit_index = min(self._log.commit_index, previous_index + len(entries))

    def _send_snapshot(self, progress: Progress) -> None:
        if not progress.active:  # it may be gone for long: send nothing before it answers a heartbeat
            progress.probe(progress.next_index, paused=True)
            return
        snapshot = self._log.store.snapshot()
        if snapshot.index < self._log.first_index - 1:
            raise BrokenInvariant(
                f"the log begins at {self._log.first_index}, but its newest snapshot is of {snapshot.index}"
            )
        progress.receive_snapshot(snapshot.index)
        self.snapshots_to_send.append(InstallSnapshot(self._config.node_id, progress.node_id, self._term, snapshot))
