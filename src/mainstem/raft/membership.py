"""The members of a Raft group, voters and learners, changed one node at a time.

A membership counts from the moment it stands in a node's log, committed or not, and counts no more when it is
truncated. Two memberships that follow each other differ in one voter at most, so that any majority of the one overlaps
any majority of the other; a leader therefore proposes a change only when the one before is committed and an entry of
its own term is, too (without the latter, two leaders could each change the same membership). New nodes come as
learners: they get the log without a vote, and are promoted once they have caught up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mainstem.raft.errors import MembershipRefused


class ChangeKind(enum.Enum):
    ADD_LEARNER = "add learner"
    PROMOTE = "promote"
    """A learner becomes a voter."""
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MembershipChange:
    """One step from one membership to the next."""

    kind: ChangeKind
    node_id: int


@dataclass(frozen=True, slots=True)
class Membership:
    """The nodes of a group: `voters` make majorities, `learners` only receive."""

    voters: frozenset[int]
    learners: frozenset[int] = frozenset()

    @classmethod
    def of(cls, voters: Iterable[int], learners: Iterable[int] = ()) -> Membership:
        return cls(frozenset(voters), frozenset(learners))

    @property
    def members(self) -> frozenset[int]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        """How many voters make a majority."""
        return len(self.voters) // 2 + 1

    def changed(self, change: MembershipChange) -> Membership:
        """The membership after one change. Raises `MembershipRefused` if the change makes no sense here."""
        node_id = change.node_id
        if node_id <= 0:
            raise MembershipRefused(f"node id {node_id}: it takes a positive number")
        if change.kind is ChangeKind.ADD_LEARNER:
            if node_id in self.members:
                raise MembershipRefused(f"node {node_id} is a member already")
            return Membership(self.voters, self.learners | {node_id})
        if change.kind is ChangeKind.PROMOTE:
            if node_id not in self.learners:
                raise MembershipRefused(f"node {node_id} is no learner: add it as one and let it catch up first")
            return Membership(self.voters | {node_id}, self.learners - {node_id})
        if node_id not in self.members:
            raise MembershipRefused(f"node {node_id} is no member")
        if self.voters == {node_id}:
            raise MembershipRefused(f"node {node_id} is the last voter")
        return Membership(self.voters - {node_id}, self.learners - {node_id})


@dataclass(frozen=True, slots=True)
class LoggedMembership:
    """A membership and the index of the log entry (or snapshot) that it stands in; 0: what the group began with."""

    index: int
    membership: Membership


class MembershipHistory:
    """The memberships of a log: the one in force at the applied index, then those logged behind it.

    `current` is the last, the one that counts.
    """

    def __init__(self, logged: Sequence[LoggedMembership]) -> None:
        """`logged`, in ascending order of index: the one at or before the first index of the log, then one per
        membership entry in the log."""
        if not logged:
            raise MembershipRefused("a log without a membership: hand over the one the group began with")
        self._logged = list(logged)
        self.current = self._logged[-1].membership

    @property
    def index(self) -> int:
        """The position of the current membership in the log."""
        return self._logged[-1].index

    def at(self, index: int) -> Membership:
        """The membership in force at `index`, which must not lie before what is applied."""
        return self._logged[self._position(index)].membership

    def knows_voter(self, node_id: int, commit_index: int) -> bool:
        """Whether a node votes in the newest committed membership, or in one after it. A node whose own removal is not
        committed may still be needed: to be elected and to commit it."""
        logged = self._logged[self._position(commit_index) :]
        return any(node_id in one.membership.voters for one in logged)

    def append(self, index: int, membership: Membership) -> None:
        self._logged.append(LoggedMembership(index, membership))
        self.current = membership

    def truncate_from(self, index: int) -> None:
        """Forget the memberships at `index` and later."""
        while self._logged[-1].index >= index:
            self._logged.pop()
        self.current = self._logged[-1].membership

    def forget_before(self, index: int) -> None:
        """Forget the memberships before the one in force at `index`."""
        if len(self._logged) > 1:
            del self._logged[: self._position(index)]

    def reset(self, index: int, membership: Membership) -> None:
        """Begin anew with a snapshot's membership: it has replaced the log."""
        self._logged = [LoggedMembership(index, membership)]
        self.current = membership

    def _position(self, index: int) -> int:
        for position in range(len(self._logged) - 1, 0, -1):
            if self._logged[position].index <= index:
                return position
        return 0
