"""Which members a leader counts on for a majority, so that the acknowledgements and small entries of the others may
wait.

It counts on those that hold the most of its log. Members that are asked later hold less, however fast they are. So
every few seconds there is a trial: for one heartbeat interval nobody may wait, and the members whose acknowledgements
came before the commits then, so that these could come, are counted on from there on.
"""

from __future__ import annotations

from collections.abc import Mapping

from mainstem.raft.config import RaftConfig
from mainstem.raft.leader.progress import Progress, SendState
from mainstem.raft.log import Log

ALL_PROMPT_TICKS = 20
"""After somebody has waited for more copies than a majority nothing waits for so many ticks: longer than it mostly
takes until the next request of that kind comes, for it is a topic's setting."""

TRIAL_EVERY_TICKS = 100
"""A trial costs what waiting saves, so it lasts a fiftieth of the time with heartbeats every two ticks; a member that
is slower than another is counted on for five seconds at most, with ticks of 50 ms."""

HELPED_MIN = 8
"""Of fewer commits in a trial all may have gone one way by chance; each takes as many acknowledgements as a majority
has members besides this node."""


class CountedOn:
    """`others` are the members that may wait."""

    def __init__(self, config: RaftConfig, log: Log, peers: Mapping[int, Progress]) -> None:
        self._config = config
        self._log = log
        self._peers = peers
        self.others: frozenset[int] = frozenset()
        self.on_trial = False
        """True while it is counted whose acknowledgements come first."""
        self._trial_due = TRIAL_EVERY_TICKS
        """So many ticks are left until the next trial begins."""
        self._all_prompt_ticks = 0
        """So many ticks are left in which nobody may wait."""
        self._helped: dict[int, int] = {}
        """By member: how many of its acknowledgements came before the commit, in the newest trial with enough of
        them."""
        self._counts: dict[int, int] = {}
        """The same of the trial that goes on."""

    def choose(self) -> None:
        """Count on the members that hold the most, as many as a majority takes besides this node; of those that hold as
        much, on the faster ones."""
        helped = self._helped
        self._choose({node_id: (-peer.match_index, -helped.get(node_id, 0)) for node_id, peer in self._peers.items()})

    def _choose(self, ranks: Mapping[int, tuple[int, int]]) -> None:
        membership, config = self._log.memberships.current, self._config
        if (
            not config.acknowledgements_wait
            or config.node_id not in membership.voters
            or self._all_prompt_ticks > 0
            or self.on_trial
        ):
            self.others = frozenset()
            return
        able = [
            (ranks[node_id], node_id)
            for node_id, progress in self._peers.items()
            if node_id in membership.voters and progress.state is SendState.REPLICATE
        ]
        self.others = frozenset(node_id for _, node_id in sorted(able)[membership.quorum - 1 :])

    def ask_all(self) -> None:
        """For a while, let nobody wait: somebody waits for more than a majority."""
        if self._config.acknowledgements_wait:
            self._all_prompt_ticks = ALL_PROMPT_TICKS
            self.others = frozenset()

    def ticked(self, ticks: int) -> None:
        """Choose anew; a trial ends, or begins if it is due."""
        self._all_prompt_ticks -= ticks
        self._trial_due -= ticks
        if self.on_trial:
            self.on_trial = False
            counts, self._counts = self._counts, {}
            others = self._log.memberships.current.quorum - 1
            if sum(counts.values()) >= HELPED_MIN * others:
                self._helped = counts
                self._choose({
                    node_id: (-counts.get(node_id, 0), -peer.match_index) for node_id, peer in self._peers.items()
                })  # fmt: skip
                return
        elif self._trial_due <= 0:
            self._trial_due = TRIAL_EVERY_TICKS
            self.on_trial = bool(self.others)
        self.choose()

    def helped(self, node_id: int) -> None:
        """A member has acknowledged something that is not committed yet."""
        if self.on_trial:
            self._counts[node_id] = self._counts.get(node_id, 0) + 1
