"""The balancer takes back what it asked for itself and what has not begun at some looks in a row, and nothing else."""

from __future__ import annotations

import pytest
from msgspec import structs

from mainstem.nameserver.cluster.unbegun_moves import UNBEGUN_LOOKS_MAX, UnbegunMoves
from mainstem.nameserver.state.moving_slots import WishedMove
from mainstem.rpc.messages.loads import BY_BALANCER, ToldSlotMove

OWN = ToldSlotMove(slot=7, topic="orders", partition=3, old=0, new=1, why=f"{BY_BALANCER}node 1 is busy")
WISHES = {7: WishedMove(1, 1)}


def test_it_is_taken_back_at_the_last_look_and_told_until_then() -> None:
    moves = UnbegunMoves()
    for look in range(1, UNBEGUN_LOOKS_MAX):
        assert moves.look(WISHES, [OWN]) == []
        assert moves.told(7) == f"had not begun at {look} of 5 looks, after which it is taken back"
    assert moves.look(WISHES, [OWN]) == [OWN]


@pytest.mark.parametrize("between", [{}, {7: WishedMove(1, 2)}, {7: WishedMove(2, 1)}])
def test_looks_are_in_a_row_and_of_one_move(between: dict[int, WishedMove]) -> None:
    moves = UnbegunMoves()
    for _ in range(UNBEGUN_LOOKS_MAX - 1):
        moves.look(WISHES, [OWN])
    assert moves.look(between, [OWN]) == []
    assert moves.look(WISHES, [OWN]) == []
    assert moves.told(7).startswith("had not begun at 1 of ")


@pytest.mark.parametrize(
    ("wish", "lately"),
    [
        (WishedMove(1, 1, begun=True), [OWN]),
        (WishedMove(1, 1), []),
        (WishedMove(1, 1), [structs.replace(OWN, why="somebody asked")]),
        (WishedMove(1, 1), [structs.replace(OWN, why="somebody asked"), OWN]),
        (WishedMove(1, 1), [structs.replace(OWN, taken_back=True), OWN]),
        (WishedMove(2, 1), [OWN]),
    ],
)
def test_what_has_begun_or_is_not_its_own_stays(wish: WishedMove, lately: list[ToldSlotMove]) -> None:
    moves = UnbegunMoves()
    for _ in range(3 * UNBEGUN_LOOKS_MAX):
        assert moves.look({7: wish}, lately) == []
    assert moves.told(7) == ""
