"""Judges which of the planned moves of replicas, preferred leaders and queues the balancer may begin by itself: none
because of a moment's load, few within an hour, and none that undoes another. No I/O, and no clock: the caller says how
long ago moves were.

A look is a plan, as a rebalance would make it. A node that would give something away at `LOOKS_MIN` looks in a row has
had too much to do for long enough; once it has given or taken something its looks are counted anew. At each look one
move begins at most. A move behind another one in the plan presumes that the other comes about: it begins only where
neither of its nodes has to do with one that waits. A queue is planned alone, where no other move helps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from mainstem.nameserver.state.plans.balance_plan import BalanceMove, beginning, preferring
from mainstem.nameserver.state.plans.drain_plan import Placements, Standings
from mainstem.nameserver.state.plans.queue_plan import QueueShift
from mainstem.rpc.messages.loads import ToldMove, ToldSlotMove

LOOKS_MIN = 3
"""Looks a minute apart: loads are smoothed over half of one, so a burst that is over does not count at the third."""

HOUR_SECONDS = 3_600.0


class DueMove(NamedTuple):
    """The move that begins now; None: none, and why, in words; without words all is even."""

    move: BalanceMove | QueueShift | None
    waits_for: str = ""


def own_ages(moves: Iterable[ToldMove | ToldSlotMove]) -> list[float]:
    """How long ago the balancer began those of these moves that it began within an hour, the newest first; to take one
    back is no move."""
    own = (it for it in moves if it.by_balancer and not (isinstance(it, ToldSlotMove) and it.taken_back))
    return sorted(it.age_seconds for it in own if it.age_seconds < HOUR_SECONDS)


class Patience:
    """Holds how long nodes have had too much to do."""

    def __init__(self, moves_per_hour_max: int, rest_seconds: float) -> None:
        self._moves_per_hour_max = moves_per_hour_max
        self._rest_seconds = rest_seconds
        self._looks: dict[int, int] = {}
        """By node: the looks in a row at which it would have given something away."""

    @property
    def givers(self) -> Collection[int]:
        """The nodes that would have given something away at the last look."""
        return self._looks.keys()

    def forget(self) -> None:
        self._looks.clear()

    def look(
        self,
        moves: Sequence[BalanceMove],
        placements: Placements,
        standings: Standings,
        earlier: Collection[ToldMove],
        earlier_slots: Collection[ToldSlotMove] = (),
    ) -> DueMove:
        """Which of the planned moves begins now. The caller begins it. `earlier`: the moves that somebody remembers to
        have begun."""
        self._looks = {node: self._looks.get(node, 0) + 1 for node in sorted({move.old for move in moves})}
        resting = {it.group for it in earlier if it.age_seconds < self._rest_seconds}
        begun, obstacles = beginning(moves, placements, standings)
        may_begin = {(*it, False) for it in begun}
        may_begin |= {(it.group, it.old, it.new, True) for it in preferring(moves, placements, standings)}
        waiting: set[int] = set()
        why = ""
        for move in moves:
            against = self._against(move, resting)
            if not against and (move.group, move.old, move.new, move.preferred) not in may_begin:
                against = obstacles.get(move.group, f"write group {move.group}: another move of it comes first")
            if not against and waiting.isdisjoint((move.old, move.new)):
                return self._within_bounds(move, [*earlier, *earlier_slots])
            why = why or against
            waiting |= {move.old, move.new}
        return DueMove(None, why)

    def look_at_queue(
        self, queue: QueueShift, earlier: Collection[ToldMove], earlier_slots: Collection[ToldSlotMove]
    ) -> DueMove:
        """Whether a queue begins to move now, where no other move is planned."""
        self._looks = {queue.node: self._looks.get(queue.node, 0) + 1}
        resting = {it.slot for it in earlier_slots if it.age_seconds < self._rest_seconds}
        if why := self._too_soon(queue.node):
            return DueMove(None, why)
        if queue.slot in resting:
            minutes = self._rest_seconds / 60
            return DueMove(None, f"slot {queue.slot} has moved within the last {minutes:.0f} minutes, and rests")
        if why := self._enough([*earlier, *earlier_slots]):
            return DueMove(None, why)
        if not queue.copies:  # else the caller begins nothing
            self._looks.clear()
        return DueMove(queue)

    def _too_soon(self, node: int) -> str:
        if (looks := self._looks[node]) >= LOOKS_MIN:
            return ""
        return f"node {node} should give something away at {looks} of {LOOKS_MIN} looks so far"

    def _against(self, move: BalanceMove, resting: Collection[int]) -> str:
        if why := self._too_soon(move.old):
            return why
        if move.group in resting:
            minutes = self._rest_seconds / 60
            return f"write group {move.group} has moved within the last {minutes:.0f} minutes, and rests"
        return ""

    def _within_bounds(self, move: BalanceMove, earlier: Sequence[ToldMove | ToldSlotMove]) -> DueMove:
        if why := self._enough(earlier):
            return DueMove(None, why)
        self._looks.pop(move.old, None)
        self._looks.pop(move.new, None)
        return DueMove(move)

    def _enough(self, earlier: Sequence[ToldMove | ToldSlotMove]) -> str:
        """Why no more begins within this hour; empty: it may."""
        own = own_ages(earlier)
        if len(own) < self._moves_per_hour_max:
            return ""
        minutes = (HOUR_SECONDS - own[self._moves_per_hour_max - 1]) / 60
        return (
            f"it has begun {len(own)} moves within an hour, which are as many as it may; the next comes in "
            f"{minutes:.0f} minutes"
        )
