"""A planned move begins once its node has had too much to do for long enough, one at a look, few within an hour, and
none of a write group that has just moved."""

from __future__ import annotations

import pytest

from mainstem.nameserver.state.plans.balance_patience import LOOKS_MIN, DueMove, Patience
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.nameserver.state.plans.drain_plan import GroupStanding, Placements, Standings
from mainstem.rpc.messages.loads import BY_BALANCER, ToldMove

REST_SECONDS = 600.0
PLACEMENTS: Placements = {0: (1, 2, 3), 1: (1, 2, 3), 2: (2, 1, 3)}

COPY = BalanceMove(0, 1, 4, "node 1 is busy")
LEAD = BalanceMove(1, 1, 2, "node 1 is busy", preferred=True)


def standings(silent: int = 0) -> Standings:
    return {
        group: GroupStanding(frozenset(it), frozenset(it), frozenset(it) - {silent}) for group, it in PLACEMENTS.items()
    }


def patience(moves_per_hour: int = 12) -> Patience:
    return Patience(moves_per_hour, REST_SECONDS)


def moved(group: int, age_seconds: float, by_balancer: bool) -> ToldMove:
    return ToldMove(group, 1, 2, False, f"{BY_BALANCER if by_balancer else ''}node 1 was busy", age_seconds)


def look(of: Patience, *moves: BalanceMove, earlier: list[ToldMove] | None = None, silent: int = 0) -> DueMove:
    return of.look(moves, PLACEMENTS, standings(silent), earlier or [])


def looked_long_enough(of: Patience, *moves: BalanceMove) -> None:
    for _ in range(LOOKS_MIN - 1):
        assert look(of, *moves).move is None


@pytest.mark.parametrize("move", [COPY, LEAD])
def test_a_move_begins_at_the_third_look_in_a_row_that_wants_its_node_to_give(move: BalanceMove) -> None:
    one = patience()
    assert look(one, move) == DueMove(None, "node 1 should give something away at 1 of 3 looks so far")
    assert look(one, move) == DueMove(None, "node 1 should give something away at 2 of 3 looks so far")
    assert look(one, move) == DueMove(move)
    assert look(one, move).move is None, "it has given something: its looks are counted anew"


def test_a_load_that_comes_and_goes_moves_nothing() -> None:
    one = patience()
    for _ in range(10):
        looked_long_enough(one, COPY)
        assert look(one) == DueMove(None, "")
        assert not one.givers


def test_it_is_the_node_that_counts_whichever_of_its_write_groups_a_look_would_move() -> None:
    one = patience()
    for move in (COPY, LEAD):
        assert look(one, move).move is None
    assert look(one, COPY) == DueMove(COPY)


def test_what_stops_all_balancing_has_looks_begin_anew() -> None:
    one = patience()
    looked_long_enough(one, COPY)
    one.forget()
    looked_long_enough(one, COPY)
    assert look(one, COPY) == DueMove(COPY)


@pytest.mark.parametrize("by_balancer", [True, False])
def test_a_write_group_that_has_moved_rests_whoever_moved_it(by_balancer: bool) -> None:
    one = patience()
    looked_long_enough(one, COPY)
    lately = [moved(0, REST_SECONDS - 1, by_balancer)]
    verdict = look(one, COPY, earlier=lately)
    assert verdict == DueMove(None, "write group 0 has moved within the last 10 minutes, and rests")
    assert look(one, COPY, earlier=[moved(0, REST_SECONDS, by_balancer)]) == DueMove(COPY)


def test_no_more_begin_within_an_hour_than_may_and_moves_by_hand_do_not_count() -> None:
    one = patience(moves_per_hour=2)
    looked_long_enough(one, COPY)
    by_hand = [moved(9, 30.0 * it, False) for it in range(50)]
    own = [moved(7, 3000.0, True), moved(8, 1200.0, True)]
    why = "it has begun 2 moves within an hour, which are as many as it may; the next comes in 10 minutes"
    assert look(one, COPY, earlier=[*own, *by_hand]) == DueMove(None, why)
    own = [moved(7, 3600.0, True), moved(8, 1800.0, True)]
    assert look(one, COPY, earlier=[*own, *by_hand]) == DueMove(COPY)


def test_a_move_that_may_not_begin_keeps_those_behind_it_that_have_to_do_with_its_nodes() -> None:
    of_other_nodes = BalanceMove(2, 3, 5, "node 3 is busy")
    behind = BalanceMove(1, 4, 5, "4 replicas there, 0 here")
    one = patience()
    moves = (COPY, behind, of_other_nodes)
    looked_long_enough(one, *moves)
    lately = [moved(0, 1.0, True)]
    assert look(one, COPY, behind, earlier=lately).move is None
    looked_long_enough(two := patience(), *moves)
    assert look(two, COPY, of_other_nodes, earlier=lately) == DueMove(of_other_nodes)


def test_nothing_begins_that_a_rebalance_would_not_begin() -> None:
    one = patience()
    looked_long_enough(one, COPY)
    verdict = look(one, COPY, silent=2)
    assert verdict.move is None
    assert verdict.waits_for.startswith("write group 0: its replica on node 2 does not follow")
