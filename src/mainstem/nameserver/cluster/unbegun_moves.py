"""Judges which moves of slots the balancer takes back: its own, that have been wished for at several looks in a row and
have not begun. Nothing else begins while a slot is on its way, so one that cannot go on would end all balancing. Moves
that somebody asked for stay: they may be meant to wait. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mainstem.nameserver.state.moving_slots import WishedMove
from mainstem.rpc.messages.loads import ToldSlotMove

UNBEGUN_LOOKS_MAX = 5
"""Looks a minute apart: a move begins within a second where nothing is in its way. A client that lets a transaction be
open for the minute that is the default is no reason to take a move back; one that does so all the time is."""


class UnbegunMoves:
    """Counts, by slot, at how many looks in a row a move of the balancer had not begun."""

    def __init__(self) -> None:
        self._looks: dict[int, tuple[WishedMove, int]] = {}

    def forget(self) -> None:
        self._looks.clear()

    def look(self, wishes: Mapping[int, WishedMove], lately: Iterable[ToldSlotMove]) -> list[ToldSlotMove]:
        """The moves to take back now. `lately`: as remembered, the newest first; a move that nobody remembers is
        nobody's."""
        newest: dict[int, ToldSlotMove] = {}
        for move in lately:
            newest.setdefault(move.slot, move)
        looks: dict[int, tuple[WishedMove, int]] = {}
        stuck = []
        for slot, wish in sorted(wishes.items()):
            own = newest.get(slot)
            if wish.begun or own is None or not own.by_balancer or own.taken_back or own.new != wish.group:
                continue
            before, count = self._looks.get(slot, (wish, 0))
            looks[slot] = wish, count + 1 if before == wish else 1
            if looks[slot][1] >= UNBEGUN_LOOKS_MAX:
                stuck.append(own)
        self._looks = looks
        return stuck

    def told(self, slot: int) -> str:
        """How long a slot's move has not begun, in words; empty: it has, or it is not the balancer's."""
        if slot not in self._looks:
            return ""
        return f"had not begun at {self._looks[slot][1]} of {UNBEGUN_LOOKS_MAX} looks, after which it is taken back"
