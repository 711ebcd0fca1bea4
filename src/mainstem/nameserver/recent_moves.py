"""The moves that this node has begun as the metadata leader, and why: a bounded number, in memory alone.

`mainstem cluster explain` tells them. A node that no longer leads still knows its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mainstem.rpc.messages.loads import MOVES_TOLD_MAX, ToldMove, ToldSlotMove

BY_BALANCER = "the balancer: "
"""The reason of a move that the balancer began starts with it; no other does."""


def is_by_balancer(move: ToldMove | ToldSlotMove) -> bool:
    return move.why.startswith(BY_BALANCER)


class RecentMove(NamedTuple):
    """As `ToldMove`; `at` by this node's monotonic time."""

    group: int
    old: int
    new: int
    preferred: bool
    why: str
    at: float


class RecentSlotMove(NamedTuple):
    """As `ToldSlotMove`; `at` by this node's monotonic time."""

    slot: int
    topic: str
    partition: int
    old: int
    new: int
    why: str
    at: float


class RecentMoves:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._moves: deque[RecentMove] = deque(maxlen=MOVES_TOLD_MAX)
        self._slot_moves: deque[RecentSlotMove] = deque(maxlen=MOVES_TOLD_MAX)
        self.watchers: list[Callable[[RecentMove | RecentSlotMove], None]] = []
        """Each is told of every move as it is noted, and raises nothing."""

    def note(self, group: int, old: int, new: int, why: str, *, preferred: bool = False) -> None:
        self._moves.append(RecentMove(group, old, new, preferred, why, self._monotonic()))
        self._tell(self._moves[-1])

    def told(self) -> list[ToldMove]:
        """The newest last."""
        now = self._monotonic()
        return [ToldMove(it.group, it.old, it.new, it.preferred, it.why, max(0.0, now - it.at)) for it in self._moves]

    def note_slot(self, slot: int, topic: str, partition: int, old: int, new: int, why: str) -> None:
        self._slot_moves.append(RecentSlotMove(slot, topic, partition, old, new, why, self._monotonic()))
        self._tell(self._slot_moves[-1])

    def slots_told(self) -> list[ToldSlotMove]:
        """The newest last."""
        now = self._monotonic()
        return [
            ToldSlotMove(
                slot=it.slot, topic=it.topic, partition=it.partition, old=it.old, new=it.new, why=it.why,
                age_seconds=max(0.0, now - it.at),
            )
            for it in self._slot_moves
        ]  # fmt: skip

    def _tell(self, move: RecentMove | RecentSlotMove) -> None:
        for watcher in self.watchers:
            watcher(move)
