"""What the members of write groups tell each other, and must therefore still know (N).

The observer sees every message that leaves a node. A vote that a node granted, or gave itself as a candidate, is a
promise: no life of that node may give another one in the same term, nor begin with an older term. So is what a member
says is durable: no life of that node may begin with a shorter log, unless a leader of a later term had it cut, and
nobody may cut what is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulation.cluster.history import History
from tests.simulation.oracle import require

from mainstem.raft import HardState, Message
from mainstem.raft.messages import AppendResponse, RequestVote, VoteResponse
from mainstem.storage.group_blocks import GroupBlocks


@dataclass
class Told:
    """What one node said about one write group."""

    term: int = 0
    vote: int = 0
    """In `term`; 0: nobody yet."""
    durable_index: int = 0


class Promises:
    """Of all nodes and write groups of a run."""

    def __init__(self, history: History, *, durable: bool) -> None:
        """`durable`: what is acknowledged was synced before."""
        self._history = history
        self._durable = durable
        self._told: dict[tuple[int, int], Told] = {}

    def sent(self, node_id: int, group: int, messages: Iterable[Message]) -> None:
        """These leave a node."""
        for message in messages:
            match message:
                case VoteResponse(granted=True, pre_vote=False):
                    self._voted(node_id, group, message.term, message.to)
                case RequestVote(pre_vote=False):
                    self._voted(node_id, group, message.term, node_id)
                case AppendResponse(rejected=False):
                    told = self._of(node_id, group)
                    told.durable_index = max(told.durable_index, message.match_index)

    def begins(self, node_id: int, group: int, state: HardState, last_index: int) -> None:
        """A life of a node takes part with what it found on its disk."""
        told, what = self._of(node_id, group), f"node {node_id}, write group {group}"
        require(state.term >= told.term, f"{what}: begins in term {state.term}, it voted in {told.term}", "N")
        require(state.term > told.term or told.vote in (0, state.vote),
                f"{what}: begins with a vote for {state.vote} in term {state.term}, it voted for {told.vote}", "N")
        require(not self._durable or last_index >= told.durable_index,
                f"{what}: begins with block {last_index} as its last, block {told.durable_index} was durable", "N")

    def cut(self, node_id: int, group: int, blocks: GroupBlocks, first: int) -> None:
        """A node drops the end of its log."""
        committed = self._history.blocks.get(group, [])
        if blocks.first_index() <= first <= min(len(committed), blocks.last_index()):
            term = blocks.term(first)
            require(term != committed[first - 1].term,
                    f"node {node_id}, write group {group}: drops block {first} of term {term}, which is committed", "N")
        told = self._of(node_id, group)
        told.durable_index = min(told.durable_index, first - 1)

    def left(self, node_id: int, group: int) -> None:
        """A node is no member any more: what it had goes with its membership."""
        self._of(node_id, group).durable_index = 0

    def _voted(self, node_id: int, group: int, term: int, candidate: int) -> None:
        told = self._of(node_id, group)
        if term > told.term:
            told.term, told.vote = term, 0
        require(term == told.term and told.vote in (0, candidate),
                f"node {node_id}, write group {group}: votes for {candidate} in term {term}, after {told.vote} in "
                f"term {told.term}", "N")
        told.vote = candidate

    def _of(self, node_id: int, group: int) -> Told:
        return self._told.setdefault((node_id, group), Told())
