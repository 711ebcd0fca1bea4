"""Replicas and preferred leaders go from busy nodes to idle ones: never less safely, never back and forth."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.nameserver.state.test_drain_plan import LOCATIONS

from mainstem.model import Location
from mainstem.nameserver.state.plans.balance_plan import MOVES_MAX, BalanceMove, beginning, plan_balance, preferring
from mainstem.nameserver.state.plans.drain_plan import GroupStanding
from mainstem.nameserver.state.plans.load_plan import (
    BAND,
    NONE,
    LoadModel,
    Loads,
    Measure,
    NodeMeasure,
    Values,
    WriteGroupTraffic,
    has_room,
    loads_of,
    moved,
)
from mainstem.nameserver.state.plans.replica_placement import machine_of, place_write_groups, rack_of
from mainstem.rpc.messages.loads import ToldLoad, ToldLoads, ToldNodeLoad, ToldWriteGroupLoad

MB = 1e6
NO_RACKS = dict.fromkeys(range(1, 9), Location())
IDLE = NodeMeasure(0.0, 0.0, True)
Placed = Mapping[int, tuple[int, ...]]


class MeasuredCluster(NamedTuple):
    """A cluster in which what nodes do costs them what `costs` says: processors per byte, disk per byte."""

    locations: dict[int, Location]
    takers: frozenset[int]
    traffic: dict[int, WriteGroupTraffic]
    full: frozenset[int]
    other_work: dict[int, float]
    costs: tuple[float, float]

    def loads(self, placements: Placed) -> Loads:
        """The measures of the nodes."""
        held = LoadModel(Loads(dict.fromkeys(self.takers, IDLE), self.traffic), placements).values(placements)
        return Loads(
            {
                node: NodeMeasure(
                    self.other_work.get(node, 0.0) + self.costs[0] * sum(values[: Measure.REQUESTS]),
                    self.costs[1] * values[Measure.WRITTEN],
                    node not in self.full,
                )
                for node, values in held.items()
            },
            self.traffic,
        )

    def foretold(self, first: Placed, placements: Placed) -> Loads:
        """The measures of the nodes, if costs were what the planner takes them to be."""
        values = LoadModel(self.loads(first), first).values(placements)
        return Loads(
            {
                node: NodeMeasure(it[Measure.CPU], it[Measure.SYNC], node not in self.full)
                for node, it in values.items()
            },
            self.traffic,
        )

    def plan(self, first: Placed, placements: Placed) -> list[BalanceMove]:
        return plan_balance(placements, self.locations, self.takers, self.foretold(first, placements), may_prefer=True)


def rates(most: float) -> st.SearchStrategy[float]:
    return st.just(0.0) | st.floats(0.0, most, allow_subnormal=False)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[MeasuredCluster, dict[int, tuple[int, ...]]]:
    first = draw(LOCATIONS)
    locations = {**{node + 30: it for node, it in draw(LOCATIONS).items()}, **first}
    away = draw(st.sets(st.sampled_from(sorted(locations)), max_size=2))
    takers = frozenset(locations) - away
    groups, replicas = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    placements = {group: tuple(it) for group, it in enumerate(place_write_groups(groups, first, replicas))}
    traffic = {
        group: WriteGroupTraffic(draw(rates(50 * MB)), draw(rates(200 * MB)), draw(rates(5000.0)))
        for group in draw(st.sets(st.integers(0, groups - 1)))
    }
    full = frozenset(draw(st.sets(st.sampled_from(sorted(locations)), max_size=2)))
    other = draw(st.dictionaries(st.sampled_from(sorted(locations)), st.floats(0, 0.5), max_size=3))
    costs = draw(st.sampled_from([(0.0, 0.0), (1e-9, 0.0), (2e-9, 1e-8)]))
    return MeasuredCluster(locations, takers, traffic, full, other, costs), placements


def applied(placements: Placed, move: BalanceMove) -> dict[int, tuple[int, ...]]:
    return {**placements, move.group: moved(placements[move.group], move.old, move.new, preferred=move.preferred)}


@given(clusters())
def test_a_plan_is_safe_and_what_is_planned_behind_it_comes_to_an_end(
    drawn: tuple[MeasuredCluster, dict[int, tuple[int, ...]]],
) -> None:
    cluster, placements = drawn
    first, seen = placements, [placements]
    for _ in range(20):
        plan = cluster.plan(first, placements)
        assert len(plan) <= MOVES_MAX
        for move in plan:
            before = placements[move.group]
            placements = applied(placements, move)
            after = placements[move.group]
            assert move.why
            assert {move.old, move.new} <= cluster.takers, "drained and dead nodes are left alone"
            assert len(set(after)) == len(before)
            if move.preferred:
                assert set(after) == set(before)
                assert (before[0], after[0]) == (move.old, move.new)
            else:
                assert move.new not in cluster.full, "no replica goes where there is too little room"
                for domain_of in (machine_of, rack_of):
                    spans = [len({domain_of(cluster.locations, it) for it in nodes}) for nodes in (before, after)]
                    assert spans[1] >= spans[0], "fewer machines or racks than before"
            assert placements not in seen, "it goes back and forth"
            seen.append(placements)
        if not plan:
            return
        if len(plan) < MOVES_MAX:
            assert cluster.plan(first, placements) == [], "a plan that is carried out leaves nothing to do"
    pytest.fail("it does not come to an end")


@given(clusters(), st.randoms(use_true_random=False))
def test_moves_that_begin_one_by_one_come_to_an_end_too(
    drawn: tuple[MeasuredCluster, dict[int, tuple[int, ...]]], rng: random.Random
) -> None:
    """As it goes: some moves of a plan are carried out, and the rest is planned anew."""
    cluster, placements = drawn
    first, seen = placements, [placements]
    while plan := cluster.plan(first, placements):
        standings = {
            group: GroupStanding(frozenset(it), frozenset(it), frozenset(it)) for group, it in placements.items()
        }
        begun, obstacles = beginning(plan, placements, standings)
        assert not obstacles
        chosen = preferring(plan, placements, standings) + [BalanceMove(*it, "") for it in begun]
        assert chosen, "something may always begin"
        placements = applied(placements, rng.choice(chosen))
        assert placements not in seen, "it goes back and forth"
        seen.append(placements)


@given(clusters())
def test_where_costs_are_not_what_they_were_taken_for_no_group_goes_back_and_forth(
    drawn: tuple[MeasuredCluster, dict[int, tuple[int, ...]]],
) -> None:
    """A write group that has moved rests, whatever is measured behind it."""
    cluster, placements = drawn
    resting: set[int] = set()
    for _ in range(40):
        loads = cluster.loads(placements)
        plan = plan_balance(placements, cluster.locations, cluster.takers, loads, may_prefer=True, resting=resting)
        by_load = [it for it in plan if "mean" in it.why]
        assert not resting & {it.group for it in by_load}
        if not by_load:
            return
        placements = applied(placements, by_load[0])
        resting.add(by_load[0].group)
    pytest.fail("it does not come to an end")


@given(clusters())
def test_no_node_becomes_busier_than_the_busiest_was(
    drawn: tuple[MeasuredCluster, dict[int, tuple[int, ...]]],
) -> None:
    cluster, placements = drawn
    first = placements
    model = LoadModel(cluster.loads(placements), placements)
    before = [model.load(it) for it in model.values(placements).values()]
    by_place = False
    for move in cluster.plan(first, placements):
        placements = applied(placements, move)
        by_place = by_place or " more, " in move.why
    after = [model.load(it) for it in model.values(placements).values()]
    if not by_place:
        assert max(after, default=0.0) <= max([*before, 1 + BAND]) + 1e-6


def test_a_preferred_leader_changes_before_a_replica_is_copied() -> None:
    placements = {0: (1, 2, 3), 1: (1, 2, 3), 2: (3, 1, 2)}
    traffic = {
        0: WriteGroupTraffic(10 * MB, 80 * MB, 100),
        1: WriteGroupTraffic(10 * MB, 80 * MB, 100),
        2: WriteGroupTraffic(10 * MB, 0, 100),
    }
    loads = Loads(dict.fromkeys((1, 2, 3), IDLE), traffic)
    moves = plan_balance(placements, NO_RACKS, [1, 2, 3], loads, may_prefer=True)
    assert moves == [
        BalanceMove(
            0,
            1,
            2,
            "sent there 200.0 MB/s, here 0.0 MB/s, the mean 73.3 MB/s; afterwards 100.0 MB/s and 100.0 MB/s",
            True,
        )
    ]
    assert plan_balance(placements, NO_RACKS, [1, 2, 3], loads) == [], "with three nodes nothing else helps"


def test_a_new_node_takes_load_even_where_counts_are_even() -> None:
    placements = {0: (1,), 1: (1,), 2: (2,), 3: (2,)}
    traffic = {
        0: WriteGroupTraffic(30 * MB),
        1: WriteGroupTraffic(30 * MB),
        2: WriteGroupTraffic(1 * MB),
        3: WriteGroupTraffic(1 * MB),
    }
    loads = Loads(dict.fromkeys((1, 2), IDLE), traffic)
    move, behind = plan_balance(placements, NO_RACKS, [1, 2], loads)
    assert (move.group, move.old, move.new) == (0, 1, 2)
    assert (behind.group, behind.old, behind.new, behind.why) == (2, 2, 1, "3 replicas there, 1 here")
    assert move.why == "written there 60.0 MB/s, here 2.0 MB/s, the mean 31.0 MB/s; afterwards 30.0 MB/s and 32.0 MB/s"
    assert plan_balance(placements, NO_RACKS, [1, 2]) == [], "counts are even"
    assert plan_balance(placements, NO_RACKS, [1, 2], loads, resting=[0, 1]) == [], "what has just moved rests"
    assert plan_balance(placements, NO_RACKS, [1, 2], loads, staying=[0])[0].group == 1
    assert plan_balance(placements, NO_RACKS, [1, 2], loads, staying=[0, 1]) == [], "replicas that stay"
    full = Loads({1: IDLE, 2: IDLE._replace(has_room=False)}, traffic)
    assert plan_balance(placements, NO_RACKS, [1, 2], full) == []


def test_a_busy_processor_gives_leaders_away_by_what_they_cost_everywhere() -> None:
    placements = {0: (1, 2), 1: (1, 2)}
    traffic = {0: WriteGroupTraffic(MB, MB, 100), 1: WriteGroupTraffic(MB, MB, 100)}
    loads = Loads({1: NodeMeasure(0.9, 0.0, True), 2: NodeMeasure(0.1, 0.0, True)}, traffic)
    (move,) = plan_balance(placements, NO_RACKS, [1, 2], loads, may_prefer=True)
    assert move.preferred
    assert move.why.startswith("processors busy there 90 %, here 10 %, the mean 50 %; afterwards ")
    lately = Loads(dict.fromkeys((1, 2), NodeMeasure(None, None, True)), traffic)
    assert plan_balance(placements, NO_RACKS, [1, 2], lately, may_prefer=True) == [], "that was before"


def test_next_to_no_load_moves_nothing_and_counts_still_count() -> None:
    placements = {0: (1, 2), 1: (1, 2), 2: (1, 2)}
    traffic = {0: WriteGroupTraffic(20_000, 900_000, 9), 1: WriteGroupTraffic(10, 0, 1)}
    loads = Loads(dict.fromkeys((1, 2, 3), NodeMeasure(0.02, 0.01, True)), traffic)
    moves = plan_balance(placements, NO_RACKS, [1, 2, 3], loads, may_prefer=True)
    assert [(it.new, it.preferred) for it in moves] == [(3, False), (3, False)]
    assert "replicas there" in moves[0].why


def test_a_preferred_leader_changes_only_to_a_replica_that_follows_in_a_group_that_stands_still() -> None:
    moves = [BalanceMove(0, 1, 2, "", True), BalanceMove(1, 1, 4, ""), BalanceMove(1, 4, 2, "", True)]
    placements = {0: (1, 2, 3), 1: (1, 2, 3)}
    whole = GroupStanding(frozenset({1, 2, 3}), frozenset({1, 2, 3}), frozenset({1, 2, 3}))
    assert preferring(moves, placements, {0: whole, 1: whole}) == moves[:1], "write group 1 moves first"
    assert preferring(moves, placements, {0: whole._replace(active=frozenset({1, 3})), 1: whole}) == []
    assert preferring(moves, placements, {0: whole._replace(members=frozenset({1, 2, 3, 4})), 1: whole}) == []
    assert preferring(moves, placements, {1: whole}) == []
    begun, obstacles = beginning(moves[:1], placements, {0: whole._replace(active=frozenset({1, 3})), 1: whole})
    assert begun == []
    assert "its replica on node 2 does not follow" in obstacles[0]


def test_loads_are_known_when_every_node_that_may_take_tells_its() -> None:
    told = ToldLoads(
        [
            ToldNodeLoad(1, 0.0, ToldLoad(cpu_share=0.5, write_free_bytes=90, write_total_bytes=100)),
            ToldNodeLoad(2, 0.0, ToldLoad(cpu_share=0.2, store_free_bytes=1, store_total_bytes=100)),
        ],
        [ToldWriteGroupLoad(0, 1.0, 2.0, 3.0)],
    )
    known = loads_of(told, [1, 2], [], 15)
    assert known == Loads(
        {1: NodeMeasure(0.5, 0.0, True), 2: NodeMeasure(0.2, 0.0, False)}, {0: WriteGroupTraffic(1.0, 2.0, 3.0)}
    )
    unsettled = loads_of(told, [1], [1], 15)
    assert unsettled is not None
    assert unsettled.nodes == {1: NodeMeasure(None, None, True)}
    assert loads_of(told, [1, 3], [], 15) is None
    assert loads_of(told, [], [], 15) is None


@pytest.mark.parametrize(("free", "takes"), [(0.14, False), (0.16, True)])
def test_a_node_with_little_room_on_either_disk_takes_no_replica(free: float, takes: bool) -> None:
    whole, part = 10_000, int(10_000 * free)
    assert has_room(ToldLoad(write_free_bytes=part, write_total_bytes=whole), 15) is takes
    assert (
        has_room(
            ToldLoad(write_free_bytes=whole, write_total_bytes=whole, store_free_bytes=part, store_total_bytes=whole),
            15,
        )
        is takes
    )
    assert has_room(ToldLoad(), 15), "a node that does not say has room"


def test_what_a_node_holds_is_summed_up() -> None:
    loads = Loads(dict.fromkeys((1, 2, 3), IDLE), {0: WriteGroupTraffic(10.0, 5.0, 2.0)})
    values: dict[int, Values] = LoadModel(loads, {}).values({0: (9, 2, 1)})
    assert values == {2: (10.0, 25.0, 2.0, 0.0, 0.0), 1: (10.0, 0.0, 0.0, 0.0, 0.0), 3: NONE}, (
        "node 2 leads while 9 is away"
    )
