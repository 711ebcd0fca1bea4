"""Elections decide when this node stands for election, count the answers, and decide for which node it votes.

Term, vote, role and the leader change here and nowhere else. The outcome of an election is returned as a `Cause`; the
core then makes the node lead or follow. A `Candidacy` counts the votes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from mainstem.raft.config import RaftConfig
from mainstem.raft.entry import NOBODY, HardState
from mainstem.raft.errors import BrokenInvariant
from mainstem.raft.log import Log
from mainstem.raft.membership import Membership
from mainstem.raft.messages import Message, RequestVote, VoteResponse
from mainstem.raft.ready import RoleChange
from mainstem.raft.roles import TRANSITIONS, Cause, Role


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


class Elections:
    """Holds term, vote and role of this node, and stands for election. It lives as long as the core."""

    def __init__(
        self,
        config: RaftConfig,
        log: Log,
        hard_state: HardState,
        random: random.Random,
        outbox: list[Message],
        entering: Callable[[int, int], None],
    ) -> None:
        """`entering` is called with (term, leader id; 0: none is known) before the node takes them over."""
        self._config = config
        self._log = log
        self._random = random
        self._outbox = outbox
        self._entering = entering
        self._candidacy: Candidacy | None = None
        self.node_id = config.node_id
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader_id = NOBODY
        self.durable = self._handed = hard_state
        """The newest hard state that was handed out and is known to be durable."""
        self._told = RoleChange(self.role, self.term, self.leader_id)
        self.elapsed = 0
        """Ticks since the leader was last heard, or since an election began…"""
        self.due = 0
        """…and the number of ticks at which the timeout is over."""
        self.draw_timeout()

    def draw_timeout(self) -> None:
        """A new random election timeout, from `election_ticks` up to twice as many, from now on."""
        self.elapsed = 0
        ticks = self._config.election_ticks
        self.due = ticks + self._random.randrange(ticks)

    # --- roles ---------------------------------------------------------------------------------------------

    def follow(self, term: int, leader_id: int, cause: Cause) -> None:
        """Become a follower, or the follower of somebody else, in `term`."""
        self._take_role(cause)
        self._candidacy = None
        self._enter(term, leader_id)

    def lead(self) -> None:
        """Become the leader; from now on the ticks count to the next heartbeat."""
        self._take_role(Cause.ELECTION_WON)
        self._candidacy = None
        self.leader_id = self.node_id
        self.elapsed = 0
        self.due = self._config.heartbeat_ticks

    def leader_gone(self) -> None:
        """Act on the leader's end: let others stand, and stand soon."""
        gone = self.leader_id
        self._enter(self.term, NOBODY)
        self._stand_soon_without(gone)

    def started(self) -> None:
        """Stand soon after a start: nobody may lead, as when a majority was away. Members that lived on come first, and
        those that hear a leader refuse the pre-vote, so that nothing changes. Without pre-votes or `check_quorum` this
        node would take over from such a leader, so it waits for an election timeout."""
        if self._config.pre_vote and self._config.check_quorum:
            self._stand_soon_without(NOBODY, place=1)

    def _stand_soon_without(self, peer: int, *, place: int = 0) -> None:
        place += self._rank_without(peer)
        self.due = min(self.due, self.elapsed + 1 + place * self._config.stand_ticks)

    def _rank_without(self, peer: int) -> int:
        """This node's place, from 0, in the order in which the voters but `peer` stand: one after the other, since a
        split vote costs an election timeout. The order changes with the term, so that not all Raft groups get the same
        leader."""
        left = sorted(self._log.memberships.current.voters - {peer})
        return (left.index(self.node_id) + self.term) % len(left) if self.node_id in left else len(left)

    def _take_role(self, cause: Cause) -> Role:
        role = TRANSITIONS.get((self.role, cause))
        if role is None:
            raise BrokenInvariant(f"node {self.node_id} is {self.role.value}: {cause.value}")
        if role is Role.PRE_CANDIDATE and not self._config.pre_vote:
            role = Role.CANDIDATE
        self.role = role
        return role

    def _enter(self, term: int, leader_id: int) -> None:
        self._entering(term, leader_id)
        if term > self.term:
            self.term = term
            self.vote = NOBODY
        self.leader_id = leader_id
        self.draw_timeout()

    # --- standing ------------------------------------------------------------------------------------------

    def timed_out(self, *, may_stand: bool) -> Cause | None:
        """Stand for election, because the timeout is over or the driver asks for it."""
        if not may_stand:
            self._enter(self.term, NOBODY)
            return None
        if self._take_role(Cause.ELECTION_TIMEOUT) is Role.PRE_CANDIDATE:
            self._enter(self.term, NOBODY)
            again = self._config.ask_again_ticks
            self.due = min(self.due, again + self._random.randrange(again))
            self._stand(Candidacy(self.term + 1))
            return self._answered(self.node_id, True)
        self._stand_for_term(transfer=False)
        return None

    def asked_to_lead(self) -> None:
        """Stand for election at once, because the leader hands over."""
        self._take_role(Cause.ASKED_TO_LEAD)
        self._stand_for_term(transfer=True)

    def _stand_for_term(self, *, transfer: bool) -> None:
        """Take a new term, vote for this node, and ask the others. Its own vote counts once it is durable."""
        self._enter(self.term + 1, NOBODY)
        self.vote = self.node_id
        self._stand(Candidacy(self.term, transfer=transfer))

    def _stand(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy
        for node_id in sorted(self._log.memberships.current.voters - {self.node_id}):
            self._outbox.append(
                RequestVote(
                    self.node_id,
                    node_id,
                    candidacy.term,
                    self._log.last_index,
                    self._log.last_term,
                    pre_vote=self.role is Role.PRE_CANDIDATE,
                    transfer=candidacy.transfer,
                )
            )

    def hard_state_persisted(self, hard_state: HardState) -> Cause | None:
        """Take note of a durable hard state, which may be a vote for this node itself."""
        self.durable = hard_state
        if (
            self.role is Role.CANDIDATE
            and self._candidacy is not None
            and hard_state == HardState(self.term, self.node_id)
        ):
            return self._answered(self.node_id, True)
        return None

    def vote_response(self, message: VoteResponse) -> Cause | None:
        candidacy = self._candidacy
        if candidacy is None or message.pre_vote != (self.role is Role.PRE_CANDIDATE):
            return None
        if not message.granted or message.term == candidacy.term:
            return self._answered(message.sender, message.granted)
        return None

    def _answered(self, node_id: int, granted: bool) -> Cause | None:
        """Count a vote or a pre-vote."""
        candidacy, membership = self._candidacy, self._log.memberships.current
        assert candidacy is not None
        candidacy.answered(node_id, granted)
        if candidacy.lost(membership):
            return Cause.ELECTION_LOST
        if not candidacy.won(membership):
            return None
        if self.role is not Role.PRE_CANDIDATE:
            return Cause.ELECTION_WON
        self._take_role(Cause.PRE_VOTE_WON)
        self._stand_for_term(transfer=False)
        return Cause.PRE_VOTE_WON

    # --- voting --------------------------------------------------------------------------------------------

    @property
    def protects_leader(self) -> bool:
        """Whether the leader was heard so recently that no other node gets a vote."""
        if not self._config.check_quorum or self.leader_id == NOBODY:
            return False
        return self.role is Role.LEADER or self.elapsed < self._config.election_ticks

    def request_vote(self, message: RequestVote, *, may_stand: bool) -> None:
        up_to_date = self._is_up_to_date(message)
        if not up_to_date and may_stand:
            self._stand_instead_of(message.sender)
        granted = self._may_vote_for(message) and up_to_date
        if granted and not message.pre_vote:
            self.vote = message.sender
            self.elapsed = 0
        term = message.term if granted else self.term
        self._outbox.append(VoteResponse(self.node_id, message.sender, term, granted, message.pre_vote))

    def _stand_instead_of(self, candidate: int) -> None:
        """Stand soon, as no leader is known: the candidate lacks entries of this node's log, so it cannot win this
        node's vote, but would give its own."""
        if self.leader_id == NOBODY and self.role in (Role.FOLLOWER, Role.PRE_CANDIDATE):
            self._stand_soon_without(candidate)

    def _may_vote_for(self, message: RequestVote) -> bool:
        if message.pre_vote and message.term > self.term:
            return True
        return self.vote == message.sender or (self.vote == NOBODY and self.leader_id == NOBODY)

    def _is_up_to_date(self, message: RequestVote) -> bool:
        return self._log.up_to_date(message.last_index, message.last_term)

    # --- what the driver is to know --------------------------------------------------------------------------

    def news(self) -> tuple[HardState | None, RoleChange | None]:
        """Term and vote, and role, term and leader: each once after each change."""
        handed, told, term = self._handed, self._told, self.term
        hard_state, role_change = None, None
        if handed.term != term or handed.vote != self.vote:
            hard_state = self._handed = HardState(term, self.vote)
        if told.term != term or told.leader_id != self.leader_id or told.role is not self.role:
            role_change = self._told = RoleChange(self.role, term, self.leader_id)
        return hard_state, role_change
