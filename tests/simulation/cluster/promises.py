"""The claims that the members of write groups make to each other, and must therefore still know (N).

The observer sees every message that leaves a node. A vote that a node granted, or gave itself as a candidate, is a
promise: no life of that node may give another one in the same term, nor begin with an older term. So is what a member
says is durable: no life of that node may begin with a shorter log, unless a leader of a later term had it cut, and
nobody may cut what is committed. A node that knows that it has forgotten such promises, as its directories are an older
copy, may make none before it has got back what it had acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.simulation.cluster.history import History
from tests.simulation.oracle import require

from mainstem.raft import HardState, Message
from mainstem.raft.messages import AppendResponse, InstallSnapshotResponse, RequestVote, VoteResponse
from mainstem.storage.write_groups.write_group_blocks import WriteGroupBlocks


@dataclass
class Told:
    """The claims of one node about one write group."""

    term: int = 0
    vote: int = 0
    """In `term`; 0: nobody yet."""
    durable_index: int = 0
    abstains_to: int = 0
    """It has promised not to vote before it has this block."""
    has_it: Callable[[], bool] = lambda: False
    """Whether that block is on its disk by now: it may vote in a later term before it could acknowledge the block."""


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
                    self._has(told, message.match_index)
                case InstallSnapshotResponse(match_index=index):
                    self._has(self._of(node_id, group), index)

    def begins(self, node_id: int, group: int, state: HardState, last_index: int, *, may_lack: bool = False) -> None:
        """A life of a node takes part with what it found on its disk."""
        told, what = self._of(node_id, group), f"node {node_id}, write group {group}"
        require(
            last_index >= told.abstains_to,
            f"{what}: begins with block {last_index} as its last, and needs block {told.abstains_to} to vote",
            "N",
        )
        require(state.term >= told.term, f"{what}: begins in term {state.term}, it voted in {told.term}", "N")
        require(
            state.term > told.term or told.vote in (0, state.vote),
            f"{what}: begins with a vote for {state.vote} in term {state.term}, it voted for {told.vote}",
            "N",
        )
        if may_lack:
            told.durable_index = min(told.durable_index, last_index)
        require(
            not self._durable or last_index >= told.durable_index,
            f"{what}: begins with block {last_index} as its last, block {told.durable_index} was durable",
            "N",
        )

    def agrees(self, node_id: int, group: int) -> None:
        """A life of a node takes part again as members agreed that may all have lost the ends of their logs: the one
        with the longest log leads, and nobody knows more."""
        told = self._of(node_id, group)
        told.abstains_to = told.durable_index = 0

    def abstains(
        self,
        node_id: int,
        group: int,
        last_index: int,
        until: int,
        blocks: WriteGroupBlocks,
        durable: Callable[[], int],
    ) -> None:
        """A life of a node takes part that knows that it has forgotten votes or blocks, and neither votes nor stands
        before it has block `until`, which the others have committed without it: behind everything that it said is
        durable. `durable` gives the last block of its log, `blocks`, that is on its disk."""
        told = self._of(node_id, group)
        committed = len(self._history.blocks.get(group, []))
        what = f"node {node_id}, write group {group}: abstains up to block {until}"
        require(until <= committed, f"{what}, which nobody has committed; {committed} are", "N")
        require(
            until >= min(told.durable_index, committed),
            f"{what}, and had said that block {told.durable_index} is durable",
            "N",
        )
        term = self._history.blocks[group][until - 1].term if until else 0

        def has_it() -> bool:
            return durable() >= until and (until < blocks.first_index() or blocks.term(until) == term)

        self._told[node_id, group] = Told(durable_index=last_index, abstains_to=until, has_it=has_it)

    def cut(self, node_id: int, group: int, blocks: WriteGroupBlocks, first: int) -> None:
        """A node drops the end of its log."""
        committed = self._history.blocks.get(group, [])
        if blocks.first_index() <= first <= min(len(committed), blocks.last_index()):
            term = blocks.term(first)
            require(
                term != committed[first - 1].term,
                f"node {node_id}, write group {group}: drops block {first} of term {term}, which is committed",
                "N",
            )
        told = self._of(node_id, group)
        told.durable_index = min(told.durable_index, first - 1)

    def left(self, node_id: int, group: int) -> None:
        """A node is no member any more, by a leader's word that came after all its promises: what it had, and what it
        had to get back, goes with its membership. Its votes stay."""
        told = self._of(node_id, group)
        told.durable_index = told.abstains_to = 0

    def _has(self, told: Told, index: int) -> None:
        if index >= told.abstains_to:
            told.abstains_to = 0

    def _voted(self, node_id: int, group: int, term: int, candidate: int) -> None:
        told = self._of(node_id, group)
        require(
            not told.abstains_to or told.has_it(),
            f"node {node_id}, write group {group}: votes for {candidate} in term {term}, and "
            f"has forgotten something that it gets back with block {told.abstains_to}",
            "N",
        )
        if term > told.term:
            told.term, told.vote = term, 0
        require(
            term == told.term and told.vote in (0, candidate),
            f"node {node_id}, write group {group}: votes for {candidate} in term {term}, after {told.vote} in "
            f"term {told.term}",
            "N",
        )
        told.vote = candidate

    def _of(self, node_id: int, group: int) -> Told:
        return self._told.setdefault((node_id, group), Told())
