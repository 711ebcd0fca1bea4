"""The moves that this node has begun as the metadata leader, and why: a bounded number, in memory alone.

`mainstem cluster explain` tells them. A node that no longer leads still knows its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import structs

from mainstem.rpc.messages.loads import MOVES_TOLD_MAX, ToldMove, ToldSlotMove

Move = TypeVar("Move", ToldMove, ToldSlotMove)


class RecentMoves:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._moves: deque[tuple[ToldMove, float]] = deque(maxlen=MOVES_TOLD_MAX)
        self._slot_moves: deque[tuple[ToldSlotMove, float]] = deque(maxlen=MOVES_TOLD_MAX)
        """Each with this node's monotonic time."""
        self.watchers: list[Callable[[ToldMove | ToldSlotMove], None]] = []
        """Each is told of every move as it is noted, and raises nothing."""

    def note(self, move: ToldMove | ToldSlotMove) -> None:
        """Remember a move that the metadata has just logged."""
        if isinstance(move, ToldMove):
            self._moves.append((move, self._monotonic()))
        else:
            self._slot_moves.append((move, self._monotonic()))
        for watcher in self.watchers:
            watcher(move)

    def told(self) -> list[ToldMove]:
        """The newest last."""
        return self._aged(self._moves)

    def slots_told(self) -> list[ToldSlotMove]:
        """The newest last."""
        return self._aged(self._slot_moves)

    def _aged(self, noted: Iterable[tuple[Move, float]]) -> list[Move]:
        now = self._monotonic()
        return [structs.replace(move, age_seconds=max(0.0, now - at)) for move, at in noted]
