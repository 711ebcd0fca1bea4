"""The messages between the cores of a Raft group. The transport adds which Raft group they belong to.

Every message carries its `sender`, its receiver `to`, and the sender's `term` (a pre-vote and its grant carry the term
that is asked for). Messages may be lost, repeated and overtaken by others; they must not be altered.

Heartbeats are apart from appends and small: those of all groups between two nodes can share one network message.
A core that repeats itself hands out the same object again.
"""

from __future__ import annotations

import msgspec

from mainstem.raft.entry import Entry, Snapshot


class Append(msgspec.Struct, frozen=True):
    """Leader to member: put `entries` behind the entry (`previous_index`, `previous_term`).

    Without entries it asks whether the logs match there, or brings news of the commit index. `may_wait`: enough other
    members are asked for an acknowledgement at once, so that this one's may wait for another message to go with."""

    sender: int
    to: int
    term: int
    previous_index: int
    previous_term: int
    commit_index: int
    entries: tuple[Entry, ...] = ()
    may_wait: bool = False


class AppendResponse(msgspec.Struct, frozen=True):
    """Member to leader. Accepted: the logs match up to `match_index`, and that much is durable here.

    Rejected: there is no entry (`previous_index`, of the term asked for) here; matching entries lie at or below
    `hint_index`, where this log has an entry of `hint_term`. `may_wait`: as in the append that this is about."""

    sender: int
    to: int
    term: int
    match_index: int
    rejected: bool = False
    previous_index: int = 0
    hint_index: int = 0
    hint_term: int = 0
    may_wait: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """Leader to member: I lead this term. `commit_index` is never beyond what this member is known to hold;
    `read_context` numbers the reads that wait for a majority to confirm the leader."""

    sender: int
    to: int
    term: int
    commit_index: int
    read_context: int = 0


class HeartbeatResponse(msgspec.Struct, frozen=True):
    sender: int
    to: int
    term: int
    read_context: int = 0


class RequestVote(msgspec.Struct, frozen=True):
    """Candidate to voter. `pre_vote`: would you, in `term`? `transfer`: the leader itself asked for this election, so
    that no voter protects the leader."""

    sender: int
    to: int
    term: int
    last_index: int
    last_term: int
    pre_vote: bool = False
    transfer: bool = False


class VoteResponse(msgspec.Struct, frozen=True):
    sender: int
    to: int
    term: int
    granted: bool
    pre_vote: bool = False


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Leader to a member whose next entry the leader no longer has. The driver sends the snapshot's bytes and hands
    this to the receiving core once they are all there; if it sent a newer snapshot, this names that one."""

    sender: int
    to: int
    term: int
    snapshot: Snapshot


class InstallSnapshotResponse(msgspec.Struct, frozen=True):
    """Member to leader: the logs match up to `match_index`, durably."""

    sender: int
    to: int
    term: int
    match_index: int


class TimeoutNow(msgspec.Struct, frozen=True):
    """Leader to the voter that shall lead next: begin an election at once."""

    sender: int
    to: int
    term: int


class ReadIndex(msgspec.Struct, frozen=True):
    """Follower to leader: from which index on may I answer read `request`?"""

    sender: int
    to: int
    term: int
    request: int


class ReadIndexResponse(msgspec.Struct, frozen=True):
    """Leader to follower: once `index` is applied; -1: the leader cannot say, ask again."""

    sender: int
    to: int
    term: int
    request: int
    index: int


Message = (
    Append
    | AppendResponse
    | Heartbeat
    | HeartbeatResponse
    | RequestVote
    | VoteResponse
    | InstallSnapshot
    | InstallSnapshotResponse
    | TimeoutNow
    | ReadIndex
    | ReadIndexResponse
)
