"""Drained nodes become empty by moves that make no write group less safe, whatever nodes there are and where."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Location, MoveUnderWay
from mainstem.nameserver.state.plans.drain_plan import (
    GroupStanding,
    PlannedMove,
    VoteMove,
    left_on,
    may_turn_back,
    moves_under_way,
    plan_drains,
    plan_vote,
)
from mainstem.nameserver.state.plans.replica_placement import Locations, machine_of, place_write_groups, rack_of

LABELS = st.none() | st.sampled_from(["a", "b", "c"])
LOCATIONS = st.dictionaries(
    st.integers(1, 30),
    st.builds(Location, LABELS, st.none()) | st.builds(Location, LABELS, LABELS),
    min_size=1,
    max_size=9,
)


class MovingCluster:
    """Write groups whose members follow placement one membership step at a time, in any order."""

    def __init__(self, locations: Locations, groups: int, replicas: int, rng: random.Random) -> None:
        self.locations = locations
        self.rng = rng
        placed = place_write_groups(groups, locations, replicas)
        self.placements = {group: tuple(chosen) for group, chosen in enumerate(placed)}
        self.voters = {group: frozenset(chosen) for group, chosen in self.placements.items()}
        self.learners: dict[int, frozenset[int]] = dict.fromkeys(self.placements, frozenset())
        self.moves: list[PlannedMove] = []

    def standings(self) -> dict[int, GroupStanding]:
        members = {group: self.voters[group] | self.learners[group] for group in self.placements}
        return {group: GroupStanding(self.voters[group], members[group], members[group]) for group in members}

    def begin(self, moves: list[PlannedMove]) -> None:
        for move in moves:
            replicas = self.placements[move.group]
            assert self.voters[move.group] == frozenset(replicas), "a second move of a write group"
            assert not self.learners[move.group], "a second move of a write group"
            moved = tuple(move.new if it == move.old else it for it in replicas)
            assert len(set(moved)) == len(moved), "two replicas on one node"
            for domain_of in (machine_of, rack_of):
                before, after = (len({domain_of(self.locations, it) for it in nodes}) for nodes in (replicas, moved))
                assert after >= before, "fewer machines or racks than before"
            self.placements[move.group] = moved
            self.moves.append(move)
        into = Counter(node for group in self.placements for node in {*self.placements[group]} - self.voters[group])
        out_of = Counter(node for group in self.placements for node in self.voters[group] - {*self.placements[group]})
        assert max([*into.values(), *out_of.values()], default=0) <= 1, "more than one move per node and direction"

    def step(self) -> bool:
        """A write group takes a step; False: none has any to take."""
        moving = [group for group in self.placements if self.voters[group] != frozenset(self.placements[group])]
        if not moving:
            return False
        group = self.rng.choice(moving)
        (new,) = frozenset(self.placements[group]) - self.voters[group] or {0}
        if not new:
            self.voters[group] = frozenset(self.placements[group])
        elif new in self.learners[group]:
            self.learners[group] = frozenset()
            self.voters[group] |= {new}
        else:
            self.learners[group] = frozenset({new})
        return True


@given(LOCATIONS, st.integers(1, 12), st.integers(1, 4), st.integers(0, 2**16), st.data())
def test_drained_nodes_are_emptied_or_it_is_told_why_not(
    locations: dict[int, Location], groups: int, replicas: int, seed: int, data: st.DataObject
) -> None:
    draining = data.draw(st.sets(st.sampled_from(sorted(locations)), max_size=3))
    cluster = MovingCluster(locations, groups, replicas, random.Random(seed))
    held = sum(node in draining for chosen in cluster.placements.values() for node in chosen)
    while True:
        plan = plan_drains(cluster.placements, cluster.standings(), locations, locations.keys() - draining, draining)
        cluster.begin(plan.moves)
        if not cluster.step() and not plan.moves:
            break
    assert all(move.old in draining and move.new not in draining for move in cluster.moves)
    left = sum(node in draining for chosen in cluster.placements.values() for node in chosen)
    assert len(cluster.moves) == held - left, "a replica moves once"
    stuck = {group for node in draining for group in left_on(node, cluster.placements, cluster.standings())}
    assert stuck == set(plan.obstacles), "what stays has a reason, and nothing else has"
    if len(locations.keys() - draining) >= replicas and not any(map(any, locations.values())):
        assert not stuck


TRIO = dict.fromkeys((1, 2, 3, 4), Location())
ALL = frozenset({1, 2, 3})


def standing(voters: set[int], learners: set[int] = frozenset(), silent: set[int] = frozenset()) -> GroupStanding:  # type: ignore[assignment]
    members = frozenset(voters | learners)
    return GroupStanding(frozenset(voters), members, members - silent)


@pytest.mark.parametrize(
    ("placed", "known", "words"),
    [
        ((1, 2, 3), standing({1, 2, 3}, silent={2}), "its replica on node 2 does not follow"),
        ((1, 2, 3), None, "no leader of it tells"),
        ((1, 2, 4), standing({1, 2, 3}, {4}, {4}), "is not there yet; if that lasts, start that node, see that"),
    ],
    ids=["another replica is away", "nobody leads", "the new node died"],
)
def test_what_would_be_less_safe_waits_and_says_why(
    placed: tuple[int, ...], known: GroupStanding | None, words: str
) -> None:
    plan = plan_drains({0: placed}, {} if known is None else {0: known}, TRIO, {1, 2, 4}, {3})
    assert plan.moves == []
    assert words in plan.obstacles[0]


def test_a_dead_node_is_drained_as_a_live_one_is() -> None:
    plan = plan_drains({0: (1, 2, 3)}, {0: standing({1, 2, 3}, silent={3})}, TRIO, {1, 2, 4}, {3})
    assert plan == ([PlannedMove(0, 3, 4)], {})


def test_a_learner_is_no_copy() -> None:
    """Until the new replica has a vote the old one is still needed, and the next move waits."""
    placements, learns = {0: (1, 2, 4), 1: (1, 2, 3)}, standing({1, 2, 3}, {4})
    assert left_on(3, placements, {0: learns, 1: standing({1, 2, 3})}) == [0, 1]
    assert plan_drains(placements, {0: learns, 1: standing({1, 2, 3})}, TRIO, {1, 2, 4}, {3}).moves == []
    done = {0: standing({1, 2, 4}), 1: standing({1, 2, 3})}
    assert plan_drains(placements, done, TRIO, {1, 2, 4}, {3}).moves == [PlannedMove(1, 3, 4)]
    assert left_on(3, {0: (1, 2, 4)}, {0: standing({1, 2, 3, 4})}) == [0], "it still votes"
    assert left_on(3, {0: (1, 2, 4)}, {}) == [0], "nobody tells that it does not"


@pytest.mark.parametrize(
    ("voters", "learners", "heirs", "move"),
    [
        (ALL, frozenset(), {1, 2, 3, 4, 5}, VoteMove(3, 4)),
        (ALL, frozenset({5}), {1, 2, 3, 4, 5}, VoteMove(3, 5)),
        (ALL | {4}, frozenset(), {1, 2, 3, 4, 5}, VoteMove(3, 0)),
        (ALL, frozenset(), {1, 2, 3}, None),
        (frozenset({1, 2, 4}), frozenset(), {1, 2, 4, 5}, None),
    ],
    ids=["to another", "to one that learns already", "enough without it", "nobody there", "it has none"],
)
def test_votes_never_become_fewer(
    voters: frozenset[int], learners: frozenset[int], heirs: set[int], move: VoteMove | None
) -> None:
    assert plan_vote({3}, voters, learners, 3, heirs) == move


def test_a_move_is_under_way_from_its_placement_until_the_old_replica_is_no_member() -> None:
    placements = {0: (1, 2, 4)}
    begun = GroupStanding(frozenset({1, 2, 3}), frozenset({1, 2, 3}), frozenset({1, 2, 3}))
    learns = begun._replace(members=frozenset({1, 2, 3, 4}))
    votes = learns._replace(voters=frozenset({1, 2, 3, 4}))
    done = GroupStanding(frozenset({1, 2, 4}), frozenset({1, 2, 4}), frozenset({1, 2, 4}))
    assert moves_under_way(placements, {0: begun}) == [MoveUnderWay(0, 3, 4)]
    assert moves_under_way(placements, {0: learns}) == [MoveUnderWay(0, 3, 4)]
    assert moves_under_way(placements, {0: votes}) == [MoveUnderWay(0, 3, 0)]
    assert moves_under_way(placements, {0: done}) == []
    assert moves_under_way(placements, {}) == []
    assert moves_under_way({}, {0: done}) == [], "not placed yet: there is nothing that it should move to"


def standing_of(
    voters: set[int],
    *,
    learners: frozenset[int] | set[int] = frozenset(),
    silent: frozenset[int] | set[int] = frozenset(),
) -> GroupStanding:
    members = frozenset(voters | learners)
    return GroupStanding(frozenset(voters), members, members - silent)


def test_replicas_of_lost_nodes_come_first_and_wait_for_no_other_lost_one() -> None:
    nodes = dict.fromkeys(range(1, 8), Location())
    placements = {0: (1, 2, 3, 4, 5)}
    standings = {0: standing_of({1, 2, 3, 4, 5}, silent={4, 5})}
    plan = plan_drains(placements, standings, nodes, [1, 2, 3, 6, 7], draining=[1], lost=[4, 5])
    assert plan.moves == [PlannedMove(0, 4, 6)]
    assert plan.obstacles == {}
    plan = plan_drains(placements, standings, nodes, [1, 2, 3, 6, 7], draining=[1], lost=[4])
    assert plan.moves == []
    assert "node 5 does not follow" in plan.obstacles[0], "it is awaited"


def test_a_write_group_that_stays_holds_up_no_other_of_the_same_node() -> None:
    nodes = dict.fromkeys(range(1, 5), Location())
    placements = {0: (1, 2, 3), 1: (1, 2, 3)}
    standings = dict.fromkeys(placements, standing_of({1, 2, 3}, silent={3}))
    plan = plan_drains(placements, standings, nodes, [1, 2, 4], [], [3], {0: "it stays"})
    assert plan.moves == [PlannedMove(1, 3, 4)]
    assert plan.obstacles == {0: "write group 0: it stays"}


def test_a_lost_node_waits_for_one_that_takes_its_place() -> None:
    plan = plan_drains(
        {0: (1, 2, 3)}, {0: standing_of({1, 2, 3}, silent={3})}, dict.fromkeys((1, 2, 3), Location()), [1, 2], [], [3]
    )
    assert plan.moves == []
    assert "add a node" in plan.obstacles[0]


def test_a_move_for_a_lost_node_turns_back_as_long_as_its_successor_only_learns() -> None:
    move = PlannedMove(0, 3, 4)
    under_way = {0: (1, 2, 4)}
    assert may_turn_back(move, under_way, {0: standing_of({1, 2, 3}, learners={4})})
    assert may_turn_back(move, under_way, {0: standing_of({1, 2, 3})}), "it has not begun to learn"
    assert may_turn_back(move, under_way, {0: standing_of({1, 2, 3}, silent={3})}) is False
    assert may_turn_back(move, under_way, {}) is False
    assert may_turn_back(move, under_way, {0: standing_of({1, 2, 3, 4})}) is None
    assert may_turn_back(move, under_way, {0: standing_of({1, 2, 4})}) is None
    assert may_turn_back(move, {0: (1, 2, 3)}, {0: standing_of({1, 2, 3})}) is None
    assert may_turn_back(move, {0: (1, 2, 5)}, {0: standing_of({1, 2, 3})}) is None


def test_a_replica_stays_rather_than_share_a_machine_and_it_is_told() -> None:
    """Two nodes each on two machines, and the other node of the drained one's machine is drained as well."""
    locations = {
        1: Location(machine="m1"),
        2: Location(machine="m1"),
        3: Location(machine="m2"),
        4: Location(machine="m2"),
    }
    known = {0: standing({1, 3})}
    plan = plan_drains({0: (1, 3)}, known, locations, {3, 4}, {1, 2})
    assert plan.moves == []
    assert (
        "every other node is on the machine of another of its replicas: add a node on machine m1" in plan.obstacles[0]
    )
    assert plan_drains({0: (1, 3)}, known, locations, {2, 3, 4}, {1}).moves == [PlannedMove(0, 1, 2)]
