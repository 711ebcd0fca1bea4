"""What a core refuses, and what it finds to be impossible."""

from __future__ import annotations

from mainstem.errors import MainstemError


class RaftError(MainstemError):
    """Base of the consensus core's errors."""


class NotLeader(RaftError):
    """Only the leader can do this. `leader_id` is who leads as far as this node knows; 0: nobody."""

    def __init__(self, node_id: int, leader_id: int) -> None:
        hint = f"ask node {leader_id}" if leader_id else "no leader is known yet, try again"
        super().__init__(f"node {node_id} does not lead the group: {hint}")
        self.leader_id = leader_id


class NotReady(RaftError):
    """The leader cannot do this now: it is too new, handing over, or full. A retry may succeed."""


class MembershipRefused(RaftError):
    """A membership change that makes no sense, or not now; the message says which."""


class Compacted(RaftError):
    """An entry asked for lies before the log's first: only a snapshot has it."""


class Unavailable(RaftError):
    """An entry asked for lies behind the log's last, or cannot be had now."""


class BrokenInvariant(RaftError):
    """What must never happen did: go no further with this group, and keep its files for whoever looks into it."""


class CommittedTruncation(BrokenInvariant):
    """A leader's log contradicts an entry that is committed here."""
