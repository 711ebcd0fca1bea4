"""The copies of write groups, as an all-knowing observer counts them, and what must hold of them at any time (P).

a committed membership has as many voters as its write group was made with: one goes when another has taken its place
a replica that is removed has no vote any more
a node that is drained is no member of a write group of which it is said to hold nothing any more
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tests.simulation.cluster.history import History
from tests.simulation.oracle import require

from mainstem.raft import Membership


class Copies:
    """Of all write groups of a run."""

    def __init__(self, history: History, known: Callable[[int], tuple[int, Membership]]) -> None:
        """`known` tells the newest membership of one that some node knows to be
        committed, without having applied it, perhaps, and up to which block it knows that."""
        self._wanted: dict[int, int] = {}
        """By write group, how many replicas it was made with."""
        self._history = history
        self._known = known
        self._members: dict[int, tuple[int, Membership]] = {}
        """By write group, the newest membership that is known to be committed, and its block."""
        self.changes = 0
        """Of memberships."""
        self.removed = 0
        """Replicas."""

    def founded(self, placements: Mapping[int, Collection[int]]) -> None:
        """Some node knows where the replicas are to be; where they were first counts."""
        for group, replicas in placements.items():
            self._members.setdefault(group, (0, Membership.of(replicas)))
            self._wanted.setdefault(group, len(replicas))

    def wanted(self, group: int) -> int:
        """How many replicas a write group was made with, and always has."""
        return self._wanted[group]

    def committed(self, group: int, index: int, membership: Membership) -> None:
        """A node knows that this membership, of block `index`, is committed."""
        before = self._members.get(group)
        if before is not None and index <= before[0]:
            return
        self._members[group] = index, membership
        self.changes += 1
        self._history.note("members", group, index, sorted(membership.voters), sorted(membership.learners))
        require(
            len(membership.voters) >= self._wanted[group],
            f"write group {group}: of block {index} on only nodes {sorted(membership.voters)} have a vote, where "
            f"{self._wanted[group]} copies are wanted: one was given up before another one had taken its place (nodes "
            f"{sorted(membership.learners)} learn)",
            "P",
        )

    def removes(self, node_id: int, group: int) -> None:
        """A node is about to remove its replica of a write group."""
        self.removed += 1
        self._history.note("removes", node_id, group)
        index, membership = self._newest(group)
        require(
            node_id not in membership.voters,
            f"node {node_id} removes a good copy of write group {group}: at block {index} nodes "
            f"{sorted(membership.voters)} have the copies that count, and nobody has taken its place",
            "P",
        )

    def said_to_hold(self, node_id: int, groups: Collection[int]) -> None:
        """Somebody was told that a node that is drained may still hold something of these write groups, and nothing of
        others: with none left it may stop for good."""
        held = [group for group in sorted(self._members) if node_id in self._newest(group)[1].members]
        require(
            set(held) <= set(groups),
            f"node {node_id} is said to hold nothing but write groups {sorted(groups)} while it is drained, and still "
            f"is a member of {held}",
            "P",
        )

    def _newest(self, group: int) -> tuple[int, Membership]:
        return max(self._members[group], self._known(group), key=lambda one: one[0])
