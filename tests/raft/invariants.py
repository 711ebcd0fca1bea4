"""The invariants of a group, whatever happens to it. Everything here looks at the cores from outside, and remembers.

Election safety       one leader per term
Votes                 one vote per node and term, over crashes too; nothing is promised that is not durable
Log matching          logs with the same entry at some index are the same up to there
Leader completeness   a leader has everything that was committed in earlier terms
State machine safety  what is applied at an index is the same everywhere, and applied in order
Commit                never goes back in one life; what a leader commits is durable on a majority
Linearizable reads    a read sees everything that was committed anywhere when it was asked
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.raft.member import Member

from mainstem.raft import Entry, Message, Role
from mainstem.raft.messages import RequestVote, VoteResponse


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


class Invariants:
    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.committed: dict[int, tuple[Entry, int]] = {}
        """By index: the entry, and the term of the leader that committed it first."""
        self.committed_index = 0
        self.applied: dict[int, Entry] = {}
        self._commit_indexes: dict[int, int] = {}
        self._applied_indexes: dict[int, int] = {}

    def restarted(self, node_id: int) -> None:
        self._commit_indexes.pop(node_id, None)
        self._applied_indexes.pop(node_id, None)

    # --- messages ---

    def sent(self, member: Member, message: Message) -> None:
        hard_state = member.disk.hard_state
        pre_vote = isinstance(message, RequestVote | VoteResponse) and message.pre_vote
        require(
            pre_vote or message.term <= hard_state.term,
            f"{message} left, but only term {hard_state.term} is durable",
        )
        if isinstance(message, VoteResponse) and message.granted and not message.pre_vote:
            self._voted(message.sender, message.term, message.to)

    def _voted(self, node_id: int, term: int, candidate: int) -> None:
        before = self.votes.setdefault((node_id, term), candidate)
        require(before == candidate, f"node {node_id} voted for {before} and {candidate} in term {term}")

    # --- after every step ---

    def check(self, member: Member, members: Iterable[Member]) -> None:
        """Something happened to `member`."""
        core = member.core
        before = self._commit_indexes.get(core.node_id, 0)
        require(
            core.commit_index >= before,
            f"node {core.node_id}: commit went from {before} to {core.commit_index}",
        )
        self._commit_indexes[core.node_id] = core.commit_index
        if core.commit_index > self.committed_index:  # a leader; or one that committed its own removal
            self._committed(member, list(members))
        if core.role is Role.LEADER:
            leader = self.leaders.setdefault(core.term, core.node_id)
            if leader != core.node_id:
                raise Violation(f"nodes {leader} and {core.node_id} lead term {core.term}")
            self._complete(member)

    def applying(self, member: Member, entries: Iterable[Entry]) -> None:
        for entry in entries:
            first = self.applied.setdefault(entry.index, entry)
            require(
                (first.term, first.kind, first.data) == (entry.term, entry.kind, entry.data),
                f"node {member.node_id} applies {entry}, another applied {first}",
            )
            at = member.core.persisted_index
            require(entry.index <= at, f"node {member.node_id} applies {entry}, durable up to {at} only")

    def _committed(self, leader: Member, members: list[Member]) -> None:
        core = leader.core
        membership = core.membership
        by_id = {member.node_id: member for member in members}
        for index in range(self.committed_index + 1, core.commit_index + 1):
            if index <= leader.disk.seen.base_index:
                raise Violation(f"node {core.node_id} compacted {index} before anybody committed it")
            (entry,) = leader.disk.entries(index, index, 1)
            self.committed[index] = (entry, core.term)
        index = core.commit_index
        term = leader.disk.seen.term(index)
        holders = [v for v in membership.voters if v in by_id and by_id[v].disk.durable.holds(index, term)]
        require(
            len(holders) >= membership.quorum,
            f"node {core.node_id} committed {index} in term {core.term}, durable on {holders} of {membership}",
        )
        self.committed_index = index
        for other in members:
            if other.core.role is Role.LEADER and other.core.term > core.term:
                self._complete(other)

    def _complete(self, leader: Member) -> None:
        """Looks at the newest entries: older ones follow by log matching."""
        core, log = leader.core, leader.disk.seen
        for index in range(self.committed_index, max(0, self.committed_index - 8), -1):
            entry, term = self.committed[index]
            if term >= core.term or index < log.base_index:
                continue
            require(
                log.holds(index, entry.term),
                f"node {core.node_id} leads term {core.term} without {entry}, committed in term {term}",
            )

    def check_logs(self, members: list[Member]) -> None:
        """Log matching, pairwise."""
        for at, one in enumerate(members):
            for other in members[at + 1 :]:
                a, b = one.disk.seen, other.disk.seen
                matched = False
                for index in range(min(a.last_index, b.last_index), max(a.base_index, b.base_index), -1):
                    mine, theirs = a.entries[index - a.base_index - 1], b.entries[index - b.base_index - 1]
                    matched = matched or mine.term == theirs.term
                    require(
                        not matched or (mine.term, mine.data) == (theirs.term, theirs.data),
                        f"the logs of {one.node_id} and {other.node_id} differ at {index}, but match further on",
                    )
