"""The errors of a core: refused calls, and broken invariants."""

from __future__ import annotations

from mainstem.errors import MainstemError


class RaftError(MainstemError):
    """Base of the consensus core's errors."""


class NotLeader(RaftError):
    """Only the leader can do this. `leader_id` is the leader as far as this node knows; 0: none is known."""

    def __init__(self, node_id: int, leader_id: int) -> None:
        hint = f"ask node {leader_id}" if leader_id else "no leader is known yet, try again"
        super().__init__(f"node {node_id} does not lead the group: {hint}")
        self.leader_id = leader_id


class NotReady(RaftError):
    """The leader cannot do this now: it is too new, handing over, or full. A retry may succeed."""


class MembershipRefused(RaftError):
    """A membership change that is impossible, or impossible now; the message says which."""


class Compacted(RaftError):
    """The requested entry lies before the log's first: only a snapshot has it."""


class Unavailable(RaftError):
    """The requested entry lies behind the log's last, or cannot be read now."""


class BrokenInvariant(RaftError):
    """A state that must never occur: end this node's part in the Raft group, and keep its files for the
    investigation."""


class CommittedTruncation(BrokenInvariant):
    """A leader's log contradicts an entry that is committed here."""
