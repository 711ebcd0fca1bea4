"""The roles a node takes in a Raft group, and the causes that lead from one to another.

A learner is no role: it is a follower without a vote in the membership, so that it never stands for election.
"""

from __future__ import annotations

import enum


class Role(enum.Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Cause(enum.Enum):
    """The causes of a change of role."""

    STARTED = "started"
    ELECTION_TIMEOUT = "heard from no leader for an election timeout"
    ASKED_TO_LEAD = "the leader hands over, or the driver asks"
    PRE_VOTE_WON = "a majority would vote for it"
    ELECTION_WON = "a majority voted for it"
    ELECTION_LOST = "a majority did not, or an election timeout passed"
    LEADER_HEARD = "a leader of the same term"
    HIGHER_TERM = "a message of a higher term"
    QUORUM_LOST = "no majority was heard from for an election timeout"
    REMOVED = "its removal is committed"


TRANSITIONS: dict[tuple[Role, Cause], Role] = {
    (Role.FOLLOWER, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.FOLLOWER, Cause.ASKED_TO_LEAD): Role.CANDIDATE,
    (Role.FOLLOWER, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.FOLLOWER, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.PRE_CANDIDATE, Cause.ASKED_TO_LEAD): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Cause.PRE_VOTE_WON): Role.CANDIDATE,
    (Role.PRE_CANDIDATE, Cause.ELECTION_LOST): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.PRE_CANDIDATE, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.ELECTION_TIMEOUT): Role.PRE_CANDIDATE,
    (Role.CANDIDATE, Cause.ASKED_TO_LEAD): Role.CANDIDATE,
    (Role.CANDIDATE, Cause.ELECTION_WON): Role.LEADER,
    (Role.CANDIDATE, Cause.ELECTION_LOST): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.LEADER_HEARD): Role.FOLLOWER,
    (Role.CANDIDATE, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.LEADER, Cause.QUORUM_LOST): Role.FOLLOWER,
    (Role.LEADER, Cause.HIGHER_TERM): Role.FOLLOWER,
    (Role.LEADER, Cause.REMOVED): Role.FOLLOWER,
}
"""Every transition between roles (without pre-vote, read candidate for pre-candidate); the table in docs/replication.md
is the same."""
