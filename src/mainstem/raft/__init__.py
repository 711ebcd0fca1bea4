"""Consensus: Raft as a value machine that finds what a majority of nodes agrees on, without disk, network, clock or
randomness.

One `RaftCore` is one node's part in one Raft group. The driver tells it what happens (`step`, `tick`, `propose`,
finished writes), and it returns in one value, `Ready`, what the driver must do. The driver's whole loop, run after
every event (or once per turn, for all that happened in it):

    while (ready := core.ready()) is not None:
        persist   begin to make ready.hard_state durable        … then core.hard_state_persisted(hard_state)
                  drop the log from ready.truncate_from on, put ready.entries behind it,
                  begin to make them durable                    … then core.persisted(index, term)
                  begin to install ready.snapshot               … then core.snapshot_installed(snapshot)
        send      ready.messages; begin on ready.snapshots_to_send … then core.report_snapshot(peer, ok)
        apply     ready.committed, in order; answer ready.reads
        advance   core.advance(ready)

None of this waits within the loop: the driver makes the calls behind "…" later, in any turn, when the disk or the
network is done. By the time of `advance` the log store shows the entries (durable or not) and the committed ones are
applied.

A driver cannot get the order wrong, because a Ready holds nothing that must still wait:

- a message is handed out only when term and vote are durable;
- a follower acknowledges, and a leader counts itself, only as far as `persisted` says;
- a node's vote for itself counts once it is durable;
- an entry that is handed out as committed is durable here, too.

A leader's appends leave in the Ready that brings the entries, so sending overlaps its own sync. The driver must report
`persisted` truthfully, in the order of writing; once it has taken a `truncate_from`, it must report no write of a
dropped entry any more; and after a start, it must hand over only durable entries (sync those that recovery found
before). A core that raises `BrokenInvariant` must not be used again.

The page with the pictures: docs/replication.md.
"""

from mainstem.raft.config import RaftConfig
from mainstem.raft.core import RaftCore
from mainstem.raft.entry import (
    KIND_DATA,
    KIND_MEMBERSHIP,
    KIND_NO_OP,
    NOBODY,
    Entry,
    HardState,
    Snapshot,
)
from mainstem.raft.errors import (
    BrokenInvariant,
    CommittedTruncation,
    Compacted,
    MembershipRefused,
    NotLeader,
    NotReady,
    RaftError,
    Unavailable,
)
from mainstem.raft.log import LogStore
from mainstem.raft.membership import ChangeKind, LoggedMembership, Membership, MembershipChange
from mainstem.raft.messages import Message
from mainstem.raft.ready import ReadResult, Ready, RoleChange
from mainstem.raft.roles import Role

__all__ = [
    "KIND_DATA",
    "KIND_MEMBERSHIP",
    "KIND_NO_OP",
    "NOBODY",
    "BrokenInvariant",
    "ChangeKind",
    "CommittedTruncation",
    "Compacted",
    "Entry",
    "HardState",
    "LogStore",
    "LoggedMembership",
    "Membership",
    "MembershipChange",
    "MembershipRefused",
    "Message",
    "NotLeader",
    "NotReady",
    "RaftConfig",
    "RaftCore",
    "RaftError",
    "ReadResult",
    "Ready",
    "Role",
    "RoleChange",
    "Snapshot",
    "Unavailable",
]
