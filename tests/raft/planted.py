"""Cores with a bug each, to prove that the simulation would find it."""

from __future__ import annotations

from typing import Any

from mainstem.raft import HardState, RaftCore
from mainstem.raft.elections import Elections
from mainstem.raft.followership import Followership
from mainstem.raft.leader.leadership import Leadership
from mainstem.raft.log import Log
from mainstem.raft.messages import Append, Message, ReadIndexResponse, RequestVote
from mainstem.raft.reads import PendingReads


class VoteNotPersisted(RaftCore):
    """Messages do not wait for term and vote, and the own vote counts at once."""

    def _messages(self) -> tuple[Message, ...]:
        self._elections.durable = HardState(self.term, self.vote)
        return super()._messages()


class _AnyLog(Elections):
    def _is_up_to_date(self, message: RequestVote) -> bool:
        return True


class VoteForAnyLog(RaftCore):
    """A voter does not look at the candidate's log."""

    _elections_class = _AnyLog


class _AnyVote(Elections):
    def _may_vote_for(self, message: RequestVote) -> bool:
        return True


class VoteTwice(RaftCore):
    """A voter forgets that it voted in this term."""

    _elections_class = _AnyVote


class _LeaderWith(RaftCore):
    """Changes what a leader does."""

    def _lead(self) -> None:
        super()._lead()
        assert self._leadership is not None
        self._change(self._leadership)

    def _change(self, leadership: Leadership) -> None:
        raise NotImplementedError


class CommitOldTerm(_LeaderWith):
    """An entry of an earlier term is committed by counting: figure 8."""

    def _change(self, leadership: Leadership) -> None:
        leadership._may_commit = lambda index: True  # type: ignore[method-assign]


class ReadWithoutQuorum(_LeaderWith):
    """A leader answers reads without asking whether it still leads."""

    def _change(self, leadership: Leadership) -> None:
        leadership._confirmed_context = lambda: leadership.reads.context  # type: ignore[method-assign]


class LeaderCountsUnsynced(_LeaderWith):
    """A leader counts its own log before it is durable."""

    def _change(self, leadership: Leadership) -> None:
        leadership.replication._held_here = lambda: self.last_index  # type: ignore[method-assign]


class _AcknowledgesUnsynced(Followership):
    @property
    def _acknowledgeable_index(self) -> int:
        return self._verified_index


class AckBeforePersisted(RaftCore):
    """A follower acknowledges what it has in memory."""

    _followership_class = _AcknowledgesUnsynced


class _TruncatesBehindAppends(Followership):
    def append(self, message: Append) -> None:
        end = message.previous_index + len(message.entries)
        matches = self._log.matches(message.previous_index, message.previous_term)
        if matches and message.entries and self._log.applied_index <= end < self._log.last_index:
            self._log.commit_index = min(self._log.commit_index, end)
            self._log.truncate_from(end + 1)
        super().append(message)


class TruncateBelowCommit(RaftCore):
    """Entries behind an append are dropped, although the append may be an old one, overtaken by others."""

    _followership_class = _TruncatesBehindAppends


class _AnyMembership(Leadership):
    @property
    def committed_own_term(self) -> bool:
        return True


class MembershipBeforeOwnTerm(RaftCore):
    """A leader changes the membership before it committed an entry of its term: the error found in 2015."""

    _leadership_class = _AnyMembership


class _UnverifiedLog(Log):
    def matches(self, index: int, term: int) -> bool:
        return index <= self.last_index


class AppendWithoutMatch(RaftCore):
    """A follower takes entries without looking at the term of the one before them."""

    _log_class = _UnverifiedLog


class ReadsNumberedFromOne(RaftCore):
    """The reads a follower sends on have the same numbers in every life."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._reads = PendingReads(0)
        self._steps[ReadIndexResponse] = self._reads.answered


PLANTED = [
    VoteNotPersisted,
    VoteForAnyLog,
    VoteTwice,
    CommitOldTerm,
    ReadWithoutQuorum,
    LeaderCountsUnsynced,
    AckBeforePersisted,
    TruncateBelowCommit,
    MembershipBeforeOwnTerm,
    AppendWithoutMatch,
    ReadsNumberedFromOne,
]
