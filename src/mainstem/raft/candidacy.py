"""A node's candidacy counts the answers of the nodes it asked for their votes."""

from __future__ import annotations

from mainstem.raft.membership import Membership


class Candidacy:
    """Counts one round of votes, or of pre-votes. Only answers of voters count."""

    def __init__(self, term: int, *, transfer: bool = False) -> None:
        """`term` is the term asked for."""
        self.term = term
        self.transfer = transfer
        self._granted: set[int] = set()
        self._refused: set[int] = set()

    def answered(self, node_id: int, granted: bool) -> None:
        """Note a node's answer; only its first counts."""
        if node_id not in self._granted | self._refused:
            (self._granted if granted else self._refused).add(node_id)

    def won(self, membership: Membership) -> bool:
        return len(self._granted & membership.voters) >= membership.quorum

    def lost(self, membership: Membership) -> bool:
        return len(membership.voters - self._refused) < membership.quorum
