"""A node that stands for election: who was asked, and how they answered."""

from __future__ import annotations

from mainstem.raft.membership import Membership


class Candidacy:
    """One round of votes, or of pre-votes. Whoever answers, only voters count."""

    def __init__(self, term: int, *, transfer: bool = False) -> None:
        """`term` is the term asked for."""
        self.term = term
        self.transfer = transfer
        self._granted: set[int] = set()
        self._refused: set[int] = set()

    def answered(self, node_id: int, granted: bool) -> None:
        """The first answer of a node counts."""
        if node_id not in self._granted | self._refused:
            (self._granted if granted else self._refused).add(node_id)

    def won(self, membership: Membership) -> bool:
        return len(self._granted & membership.voters) >= membership.quorum

    def lost(self, membership: Membership) -> bool:
        return len(membership.voters - self._refused) < membership.quorum
