"""The consensus core's own configuration."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError


class RaftConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same for all members of a group but `node_id`. A tick is as long as the driver makes it."""

    node_id: int
    election_ticks: int = 10
    """A follower that heard from no leader for this many ticks, up to as many again at random, stands for election."""
    heartbeat_ticks: int = 1
    stand_ticks: int = 3
    """When a leader is known to be gone, those that are left stand for election so many ticks after one another:
    longer than an election takes."""
    entries_in_flight_max: int = 256
    """Per follower: entries sent and not acknowledged."""
    bytes_in_flight_max: int = 64 * 1024 * 1024
    """Per follower, as above."""
    append_bytes_max: int = 4 * 1024 * 1024
    """Entries in one message, unless a single one is larger."""
    apply_bytes_max: int = 64 * 1024 * 1024
    """Committed entries in one Ready, unless a single one is larger."""
    uncommitted_bytes_max: int = 1024 * 1024 * 1024
    """Proposals a leader takes without having committed them; more are refused."""
    reads_waiting_max: int = 100_000
    """Reads that wait for an index; more are refused."""
    learner_lag_max: int = 256
    """A learner is promoted when at most this many entries are missing there."""
    check_quorum: bool = True
    """A leader that does not hear from a majority for `election_ticks` steps down, and a follower that hears from
    its leader gives nobody else its vote."""
    pre_vote: bool = True
    """A node asks whether it would be elected before it takes a new term."""

    commits_with_heartbeats: bool = False
    """Followers are told what is committed with the next entries, or else with the next heartbeat, and not at once by
    messages of their own: a third fewer messages, and followers that apply a heartbeat interval later when little is
    going on."""

    may_forget: bool = False
    """Members may come back without entries they acknowledged, because their drivers do not wait for the disk. What
    was committed may then be lost, and is found missing: without this such a member would never catch up again."""

    def validate(self) -> None:
        """Raises ConfigError."""
        for key, value in msgspec.structs.asdict(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ConfigError(f"raft.{key}={value}: it takes a positive whole number")
        if self.election_ticks < 2 * self.heartbeat_ticks:
            raise ConfigError(
                f"raft.election_ticks={self.election_ticks}: it takes at least twice raft.heartbeat_ticks="
                f"{self.heartbeat_ticks}, or one lost heartbeat ends a leadership"
            )
