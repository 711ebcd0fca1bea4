"""Plans how nodes that are drained or lost become empty: which replicas may move now, where to, and what stands against
it. No I/O.

A move is a change of placement. It is under way as long as the write group's members are not those that placement
wants, so that nothing else needs to be remembered of it: whoever leads the metadata plans on from the same facts.

Invariants: no two replicas of a write group on one node; a write group has one move under way at a time, and begins it
only while all of its other replicas follow, but for those that are lost as well as the one that moves; the machines and
the racks that it spans do not become fewer; a node gives away one replica at a time, and takes one. Each replica of a
drained node moves once. Replicas of lost nodes come first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from itertools import zip_longest
from typing import NamedTuple

from mainstem.model import Location, MoveUnderWay
from mainstem.nameserver.state.plans.replica_placement import Locations, machine_of, rack_of, replacement_for


class GroupStanding(NamedTuple):
    """The members of a write group, as its leader tells them: what a majority has committed."""

    voters: frozenset[int]
    members: frozenset[int]
    """Learners included."""
    active: frozenset[int]
    """Those that the leader has heard from lately, itself included."""


class PlannedMove(NamedTuple):
    group: int
    old: int
    new: int


class DrainPlan(NamedTuple):
    """The moves that may begin now; and by write group, in words, what keeps a replica from moving or from arriving."""

    moves: list[PlannedMove]
    obstacles: dict[int, str]


class VoteMove(NamedTuple):
    """The vote of node `old` on the metadata goes to node `new`; 0: to none, as there are enough without it."""

    old: int
    new: int


Placements = Mapping[int, tuple[int, ...]]
Standings = Mapping[int, GroupStanding]

NONE_STAYING: Mapping[int, str] = {}


def plan_drains(
    placements: Placements,
    standings: Standings,
    locations: Locations,
    takers: Collection[int],
    draining: Collection[int],
    lost: Collection[int] = (),
    staying: Mapping[int, str] = NONE_STAYING,
) -> DrainPlan:
    """`standings` lacks the write groups of which no leader tells; `locations` has all nodes; `takers` live, store and
    are not drained; `lost` are dead, and not awaited any more; `staying`: write groups of which no replica may move,
    and why."""
    into, out_of = under_way(placements, standings)
    planned = dict(placements)
    plan = DrainPlan([], {})
    left = {*draining, *lost}
    for group, replicas in sorted(placements.items()):
        standing = standings.get(group)
        leaving = sorted((node_id for node_id in replicas if node_id in left), key=lambda it: it not in lost)
        if standing is None or not is_settled(replicas, standing):
            if (standing is None and leaving) or (standing is not None and standing.members & left):
                _note(plan, group, stuck(replicas, standing))
            continue
        old = next((node_id for node_id in leaving if node_id not in out_of), None)
        if old is None:
            continue
        if group in staying:
            _note(plan, group, staying[group])
            continue
        able = [new for new in takers if new not in replicas and keeps_apart(locations, replicas, old, new)]
        awaited = set(replicas) - {old} - (set(lost) if old in lost else set())
        why = _unable(old, replicas, takers, locations) if not able else not_following(awaited, standing)
        _note(plan, group, why)
        free = [new for new in able if new not in into]
        if why or not free:
            continue
        new = replacement_for(old, replicas, {it: locations.get(it, Location()) for it in (*free, *replicas)}, planned)
        assert new is not None, "there is a free one"
        plan.moves.append(PlannedMove(group, old, new))
        planned[group] = tuple(new if it == old else it for it in replicas)
        into.add(new)
        out_of.add(old)
    return plan


def left_on(node_id: int, placements: Placements, standings: Standings) -> list[int]:
    """The write groups that a node may still hold something of: placement wants it there, it is a member, or no leader
    tells whether it is. A learner that is not wanted counts, and so does a member whose successor only learns."""
    return [
        group
        for group, replicas in sorted(placements.items())
        if node_id in replicas or group not in standings or node_id in standings[group].members
    ]


def moves_under_way(placements: Placements, standings: Standings) -> list[MoveUnderWay]:
    """The moves that have begun and are not done, whatever began them; none of the write groups of which no leader
    tells. A new replica without an old one that leaves: that one has gone, or a replica is missing."""
    moves = []
    for group, replicas in sorted(placements.items()):
        standing = standings.get(group)
        if standing is None:
            continue
        leaving = sorted(standing.members - set(replicas))
        arriving = sorted(set(replicas) - standing.voters)
        moves += [MoveUnderWay(group, *each) for each in zip_longest(leaving, arriving, fillvalue=0)]
    return moves


def may_turn_back(move: PlannedMove, placements: Placements, standings: Standings) -> bool | None:
    """Whether a replica that was lost follows again before its successor has a vote: then it may stay. None: no more,
    as the move is over or another change has taken its place."""
    replicas, standing = placements.get(move.group, ()), standings.get(move.group)
    if move.new not in replicas or move.old in replicas:
        return None
    if standing is None:
        return False
    if move.new in standing.voters or move.old not in standing.voters:
        return None
    return move.old in standing.active


def plan_vote(
    draining: Collection[int],
    voters: frozenset[int],
    learners: frozenset[int],
    seats: int,
    heirs: Collection[int],
) -> VoteMove | None:
    """The next vote on the metadata that leaves a drained node. `seats`: how many votes there shall be, which never
    become fewer; `heirs` live and may vote. A change that was begun is finished first, with the same node. None: there
    is none to move, or nobody to take it."""
    for old in sorted(voters & frozenset(draining)):
        if len(voters) > seats:
            return VoteMove(old, 0)
        able = [new for new in heirs if new not in voters and new not in draining]
        if able:
            return VoteMove(old, min(able, key=lambda new: (new not in learners, new)))
    return None


def under_way(placements: Placements, standings: Standings) -> tuple[set[int], set[int]]:
    """The nodes that are taking a replica, and those that are giving one away. If no leader tells, a replica may be on
    its way to each of the nodes that placement names."""
    into: set[int] = set()
    out_of: set[int] = set()
    for group, replicas in placements.items():
        standing = standings.get(group)
        if standing is None:
            into.update(replicas)
        else:
            into |= set(replicas) - standing.voters
            out_of |= standing.members - set(replicas)
    return into, out_of


def is_settled(replicas: Collection[int], standing: GroupStanding) -> bool:
    """Whether the replicas that placement wants, and no others, are members with a vote. A learner is no copy."""
    return standing.voters == standing.members == frozenset(replicas)


def keeps_apart(locations: Locations, replicas: Collection[int], old: int, new: int) -> bool:
    """Whether the write group spans no fewer machines and no fewer racks with `new` in the place of `old`."""
    return keeps_machines(locations, replicas, old, new) and keeps_racks(locations, replicas, old, new)


def keeps_machines(locations: Locations, replicas: Collection[int], old: int, new: int) -> bool:
    """Whether the write group spans no fewer machines with `new` in the place of `old`."""
    before = {machine_of(locations, it) for it in replicas}
    after = {machine_of(locations, it) for it in (*replicas, new) if it != old}
    return len(after) >= len(before)


def keeps_racks(locations: Locations, replicas: Collection[int], old: int, new: int) -> bool:
    """The same of racks."""
    before = {rack_of(locations, it) for it in replicas}
    after = {rack_of(locations, it) for it in (*replicas, new) if it != old}
    return len(after) >= len(before)


def _note(plan: DrainPlan, group: int, why: str) -> None:
    if why:
        plan.obstacles[group] = f"write group {group}: {why}"


def stuck(replicas: Collection[int], standing: GroupStanding | None) -> str:
    """Why a move that is under way does not go on, or a write group cannot tell; empty: neither."""
    if standing is None:
        return "no leader of it tells who its members are"
    silent = sorted(set(replicas) - standing.voters - standing.active)
    if silent:
        return (
            f"its new replica, on node {silent[0]}, is not there yet; if that lasts, start that node, see that the "
            f"split goes on (mainstem split status), or have another node take its place (mainstem cluster replace "
            f"{silent[0]} NODE)"
        )
    return ""


def not_following(awaited: Set[int], standing: GroupStanding) -> str:
    """Which of these replicas is silent, so that no other may move; empty: none."""
    silent = sorted(awaited - standing.active)
    return f"its replica on node {silent[0]} does not follow; a move would make it less safe" if silent else ""


def _unable(old: int, replicas: Collection[int], takers: Collection[int], locations: Locations) -> str:
    if all(new in replicas for new in takers):
        return "every node that lives, stores and is not drained has a replica of it already: add a node"
    if not any(keeps_machines(locations, replicas, old, new) for new in takers if new not in replicas):
        machine = locations[old].machine
        where = "another machine" if machine is None else f"machine {machine}, or on another one"
        return (
            f"every other node is on the machine of another of its replicas: add a node on {where}, or choose one "
            f"(mainstem cluster replace {old} NODE)"
        )
    return (
        f"every other node is in the rack of another of its replicas: add a node to the rack of node {old}, or choose "
        f"one (mainstem cluster replace {old} NODE)"
    )
