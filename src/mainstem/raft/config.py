"""The consensus core's own configuration."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for all members of a Raft group, except `node_id`. The driver decides how long a tick is."""

    node_id: int
    election_ticks: int = 10
    """A follower that heard from no leader for this many ticks, up to as many again at random, stands for election."""
    heartbeat_ticks: int = 1
    stand_ticks: int = 3
    """When a leader is known to be gone, the remaining voters stand for election this many ticks after one another:
    longer than an election takes."""
    ask_again_ticks: int = 2
    """A node that asked for pre-votes, and was answered by too few, asks again after this many ticks, up to as many
    again at random: less than `stand_ticks`, so that of a majority that died those that live on lead first when the
    others come back, for clients are connected to them."""
    entries_in_flight_max: int = 256
    """Per follower, the most entries sent and not acknowledged."""
    bytes_in_flight_max: int = 64 * 1024 * 1024
    """Per follower, the most bytes of such entries."""
    append_bytes_max: int = 4 * 1024 * 1024
    """Bytes of entries in one message, unless a single entry is larger."""
    apply_bytes_max: int = 64 * 1024 * 1024
    """Bytes of committed entries in one Ready, unless a single entry is larger."""
    uncommitted_bytes_max: int = 1024 * 1024 * 1024
    """Bytes of proposals that a leader takes before they are committed; it refuses more."""
    learner_bytes_per_tick: int = 64 * 1024 * 1024
    """Bytes of entries that all learners together are sent in a tick, and twice what the log has grown by meanwhile: a
    learner catches up at this pace whatever else the log takes, and clients wait for none of it."""
    reads_waiting_max: int = 100_000
    """Reads that wait for an index; more are refused."""
    learner_lag_max: int = 256
    """A leader promotes a learner that lacks at most this many entries."""
    check_quorum: bool = True
    """A leader that does not hear from a majority for `election_ticks` steps down, and a follower that hears from its
    leader votes for no other node."""
    pre_vote: bool = True
    """A node asks whether it would be elected before it takes a new term."""

    commits_with_heartbeats: bool = False
    """A leader tells followers the commit index with the next entries or the next heartbeat, and not at once in
    messages of their own: that saves a third of the messages, and followers apply up to a heartbeat interval later
    under little load."""

    acknowledgements_wait: bool = False
    """A leader counts on as many followers as a majority takes, and lets the acknowledgements of the others wait for
    another message to go with: with three members that is nearly half of them."""

    entries_wait: bool = False
    """A leader gathers the entries for followers that it does not count on, until the driver calls
    `RaftCore.send_withheld`; `acknowledgements_wait` chooses these. A message, a write and an acknowledgement then
    stand for many small entries."""

    may_forget: bool = False
    """Members may come back without entries they acknowledged, because their drivers do not wait for the disk.
    Committed entries may then be lost, and the leader finds them missing: without this setting such a member would
    never catch up again."""

    def validate(self) -> None:
        """Raises ConfigError."""
        for key, value in msgspec.structs.asdict(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"raft.{key}={value}: it takes a positive whole number")
        if self.entries_wait and not self.acknowledgements_wait:
            raise ConfigError("raft.entries_wait: it takes raft.acknowledgements_wait, or nobody's entries may wait")
        if self.election_ticks < 2 * self.heartbeat_ticks:
            raise ConfigError(
                f"raft.election_ticks={self.election_ticks}: it takes at least twice raft.heartbeat_ticks="
                f"{self.heartbeat_ticks}, or one lost heartbeat ends a leadership"
            )
