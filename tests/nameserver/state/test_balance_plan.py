"""Replicas come to be spread evenly by moves that make no write group less safe, whatever nodes and racks there are."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nameserver.state.test_drain_plan import RACKS, MovingCluster

from mainstem.nameserver.state.balance_plan import BalanceMove, beginning, plan_balance
from mainstem.nameserver.state.drain_plan import GroupStanding, PlannedMove
from mainstem.nameserver.state.replica_placement import rack_of

NO_RACKS: dict[int, str | None] = dict.fromkeys(range(1, 9))


def settled(*nodes: int, silent: int = 0) -> GroupStanding:
    voters = frozenset(nodes)
    return GroupStanding(voters, voters, voters - {silent})


@given(RACKS, RACKS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**16), st.data())
def test_a_grown_cluster_is_spread_evenly_and_then_nothing_moves(
    first: dict[int, str | None],
    added: dict[int, str | None],
    groups: int,
    replicas: int,
    seed: int,
    data: st.DataObject,
) -> None:
    racks = {**{node_id + 30: rack for node_id, rack in added.items()}, **first}
    away = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=2))
    takers = racks.keys() - away
    cluster = MovingCluster(first, groups, replicas, random.Random(seed))
    cluster.racks = racks
    whole = plan_balance(cluster.placements, racks, takers)
    while True:
        moves, obstacles = beginning(
            plan_balance(cluster.placements, racks, takers), cluster.placements, cluster.standings()
        )
        assert not obstacles
        cluster.begin(moves)
        if not cluster.step() and not moves:
            break
    assert plan_balance(cluster.placements, racks, takers) == []
    assert bool(cluster.moves) == bool(whole)
    assert all(move.old in takers and move.new in takers for move in cluster.moves)
    assert len(cluster.moves) <= 2 * groups * replicas, "it does not go in circles"
    held = Counter(node for chosen in cluster.placements.values() for node in chosen)
    if not any(racks.values()) and takers:
        assert max(held[node] for node in takers) - min(held[node] for node in takers) <= 1
    for chosen in cluster.placements.values():
        spanned = {rack_of(racks, node) for node in chosen}
        twice = [it for it in chosen if sum(rack_of(racks, it) == rack_of(racks, b) for b in chosen) > 1]
        if {rack_of(racks, it) for it in takers} - spanned:
            assert not set(twice) & takers, "a rack has two while another has none"


def test_a_new_node_gets_its_share_of_replicas_and_of_preferred_leaders() -> None:
    placements = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 2, 3)}
    moves = plan_balance(placements, NO_RACKS, [1, 2, 3, 4])
    assert [move.new for move in moves] == [4, 4, 4]
    assert {move.old for move in moves} == {1, 2, 3}
    assert moves[0] == BalanceMove(0, 1, 4, "4 replicas there, 0 here"), "node 1 leads two"


def test_a_new_rack_gets_a_replica_of_each_write_group_first() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "c"}
    moves = plan_balance({0: (1, 2, 3), 1: (2, 3, 1)}, racks, [1, 2, 3, 4])
    assert [(move.group, move.new, move.why) for move in moves] == [
        (0, 4, "to one rack more, c"), (1, 4, "to one rack more, c"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("standing", "words"),
    [(None, "no leader of it tells"), (settled(1, 2, 3, silent=2), "its replica on node 2 does not follow")],
    ids=["nobody leads", "one is away"],
)
def test_a_move_that_would_be_less_safe_waits_and_says_why(standing: GroupStanding | None, words: str) -> None:
    moves = [BalanceMove(0, 1, 4, "")]
    begun, obstacles = beginning(moves, {0: (1, 2, 3)}, {} if standing is None else {0: standing})
    assert begun == []
    assert words in obstacles[0]


def test_a_node_takes_one_replica_at_a_time_and_what_moves_is_no_obstacle() -> None:
    placements = {0: (1, 2, 3), 1: (2, 3, 1), 2: (2, 3, 4)}
    moves = [BalanceMove(0, 1, 4, ""), BalanceMove(1, 2, 5, ""), BalanceMove(2, 2, 1, "")]
    standings = {0: settled(1, 2, 3), 1: settled(1, 2, 3), 2: settled(1, 2, 3)}
    assert beginning(moves, placements, standings) == ([PlannedMove(1, 2, 5)], {}), "node 4 takes one already"
    standings[2] = settled(2, 3, 4)
    assert beginning(moves, placements, standings) == ([PlannedMove(0, 1, 4), PlannedMove(1, 2, 5)], {})


def test_a_move_under_way_to_a_node_that_is_silent_is_told() -> None:
    standing = GroupStanding(frozenset({1, 2, 3}), frozenset({1, 2, 3, 4}), frozenset({1, 2, 3}))
    begun, obstacles = beginning([], {0: (1, 2, 4)}, {0: standing})
    assert begun == []
    assert "its new replica, on node 4, is not there yet" in obstacles[0]
