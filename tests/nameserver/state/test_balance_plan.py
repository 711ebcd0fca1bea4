"""Replicas come to be spread evenly by moves that make no write group less safe, whatever nodes there are and where."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nameserver.state.test_drain_plan import LOCATIONS, MovingCluster

from mainstem.model import Location
from mainstem.nameserver.state.plans.balance_plan import BalanceMove, beginning, plan_balance
from mainstem.nameserver.state.plans.drain_plan import GroupStanding, PlannedMove
from mainstem.nameserver.state.plans.replica_placement import machine_of, rack_of

NO_RACKS = dict.fromkeys(range(1, 9), Location())


def settled(*nodes: int, silent: int = 0) -> GroupStanding:
    voters = frozenset(nodes)
    return GroupStanding(voters, voters, voters - {silent})


@given(LOCATIONS, LOCATIONS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**16), st.data())
def test_a_grown_cluster_is_spread_evenly_and_then_nothing_moves(
    first: dict[int, Location],
    added: dict[int, Location],
    groups: int,
    replicas: int,
    seed: int,
    data: st.DataObject,
) -> None:
    locations = {**{node_id + 30: location for node_id, location in added.items()}, **first}
    away = data.draw(st.sets(st.sampled_from(sorted(locations)), max_size=2))
    takers = locations.keys() - away
    cluster = MovingCluster(first, groups, replicas, random.Random(seed))
    cluster.locations = locations
    whole = plan_balance(cluster.placements, locations, takers)
    while True:
        moves, obstacles = beginning(
            plan_balance(cluster.placements, locations, takers), cluster.placements, cluster.standings()
        )
        assert not obstacles
        cluster.begin(moves)
        if not cluster.step() and not moves:
            break
    assert plan_balance(cluster.placements, locations, takers) == []
    assert bool(cluster.moves) == bool(whole)
    assert all(move.old in takers and move.new in takers for move in cluster.moves)
    assert len(cluster.moves) <= 2 * groups * replicas, "it does not go in circles"
    held = Counter(node for chosen in cluster.placements.values() for node in chosen)
    if not any(map(any, locations.values())) and takers:
        assert max(held[node] for node in takers) - min(held[node] for node in takers) <= 1
    racks_of_machines = {(it.machine, it.rack) for it in locations.values() if it.machine is not None}
    domains = (machine_of, rack_of)
    if len(racks_of_machines) > len({machine for machine, _rack in racks_of_machines}):
        return  # a machine in two racks: neither may become fewer, and there may be no way to more of one
    for chosen in cluster.placements.values():
        for domain_of in domains:
            spanned = Counter(domain_of(locations, node) for node in chosen)
            twice = {node for node in chosen if spanned[domain_of(locations, node)] > 1}
            if {domain_of(locations, it) for it in takers} - spanned.keys():
                assert not twice & takers, "a machine or a rack has two while another has none"


def test_a_new_node_gets_its_share_of_replicas_and_of_preferred_leaders() -> None:
    placements = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 2, 3)}
    moves = plan_balance(placements, NO_RACKS, [1, 2, 3, 4])
    assert [move.new for move in moves] == [4, 4, 4]
    assert {move.old for move in moves} == {1, 2, 3}
    assert moves[0] == BalanceMove(0, 1, 4, "4 replicas there, 0 here"), "node 1 leads two"


def test_write_groups_whose_replicas_stay_are_planned_around() -> None:
    placements = {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2), 3: (1, 2, 3)}
    moves = plan_balance(placements, NO_RACKS, [1, 2, 3, 4], staying={0, 1})
    assert [(move.group, move.new) for move in moves] == [(3, 4), (2, 4)]
    assert plan_balance(placements, NO_RACKS, [1, 2, 3, 4], staying=placements.keys()) == []


@pytest.mark.parametrize("kind", [Location(rack="c"), Location(machine="c")], ids=["rack", "machine"])
def test_no_replica_that_stays_goes_to_a_new_rack_or_machine(kind: Location) -> None:
    first = kind._replace(**{name: "a" for name, value in kind._asdict().items() if value is not None})
    placements = {0: (1, 2, 3), 1: (2, 3, 1)}
    moves = plan_balance(placements, {1: first, 2: first, 3: first, 4: kind}, [1, 2, 3, 4], staying={0})
    assert [(move.group, move.new) for move in moves] == [(1, 4)]


def test_a_new_rack_gets_a_replica_of_each_write_group_first() -> None:
    racks = {1: Location("a"), 2: Location("a"), 3: Location("b"), 4: Location("c")}
    moves = plan_balance({0: (1, 2, 3), 1: (2, 3, 1)}, racks, [1, 2, 3, 4])
    assert [(move.group, move.new, move.why) for move in moves] == [
        (0, 4, "to one rack more, c"), (1, 4, "to one rack more, c"),
    ]  # fmt: skip


def test_a_new_machine_gets_a_replica_of_each_write_group_first() -> None:
    locations = {1: Location(machine="m1"), 2: Location(machine="m1"), 3: Location(machine="m2")}
    moves = plan_balance({0: (1, 2), 1: (2, 1)}, locations, [1, 2, 3])
    assert [(move.group, move.new, move.why) for move in moves] == [
        (0, 3, "to one machine more, m2"), (1, 3, "to one machine more, m2"),
    ]  # fmt: skip
    assert {move.old for move in moves} == {1, 2}


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
