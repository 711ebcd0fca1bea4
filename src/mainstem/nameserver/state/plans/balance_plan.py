"""Plans how replicas are spread: over machines, then over racks, then over nodes by load, then by number. No I/O.

Each move makes a write group span one machine or one rack more; or makes the busier of two nodes less busy
(`load_plan`); or takes a replica from a node to one that has at least two fewer, while that one does not become too
busy. None makes a write group span fewer machines or racks. So a plan ends, and a second one behind it is empty. As
long as loads are not known, replicas are counted alone. Nodes that are dead or drained neither give nor take:
`drain_plan` empties these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from mainstem.nameserver.state.plans.drain_plan import (
    Placements,
    PlannedMove,
    Standings,
    is_settled,
    keeps_apart,
    not_following,
    stuck,
    under_way,
)
from mainstem.nameserver.state.plans.load_plan import Loads, LoadSteps, moved
from mainstem.nameserver.state.plans.replica_placement import Locations, machine_of, rack_of

MOVES_MAX = 20
"""In a plan by load: what is behind them is planned when the loads that they lead to are measured."""


class BalanceMove(NamedTuple):
    """The replica of a write group on node `old` moves to `new`; or, with `preferred`, the replica on `new` is to lead
    in place of the one on `old`. `why` is for people."""

    group: int
    old: int
    new: int
    why: str
    preferred: bool = False


def plan_balance(
    placements: Placements,
    locations: Locations,
    takers: Collection[int],
    loads: Loads | None = None,
    *,
    may_prefer: bool = False,
    may_copy: bool = True,
    resting: Collection[int] = (),
    staying: Collection[int] = (),
) -> list[BalanceMove]:
    """The moves in the order in which they are meant: all, or by load the first `MOVES_MAX`. `locations` has all
    nodes; `takers` live, store and are not drained. `loads` has the takers; None: they are not known. `may_prefer`:
    preferred leaders may change; `may_copy`: replicas may move; write groups that rest do not move because of load,
    and no replica does of those in `staying`: the metadata refuses that."""
    if not takers:
        return []
    able = sorted(takers)
    by_load = (
        LoadSteps(
            loads, placements, partial(keeps_apart, locations),
            may_prefer=may_prefer, may_copy=may_copy, resting=resting, staying=staying,
        )
        if loads is not None
        else None
    )  # fmt: skip
    steps: list[Callable[[Placements], BalanceMove | None]] = []
    if may_copy:
        steps += [partial(_wider, "machine", machine_of, locations, able, by_load, staying)]
        steps += [partial(_wider, "rack", rack_of, locations, able, by_load, staying)]
    if by_load is not None:
        steps.append(partial(_lighter, by_load))
    if may_copy:
        steps.append(partial(_more_even, locations, able, by_load, staying))
    planned = dict(placements)
    moves: list[BalanceMove] = []
    known = -1
    while known < len(moves):  # a step may have made an earlier one possible
        known = len(moves)
        for step in steps:
            while (move := step(planned)) is not None:
                if by_load is not None and len(moves) == MOVES_MAX:
                    return moves
                moves.append(move)
                planned[move.group] = moved(planned[move.group], move.old, move.new, preferred=move.preferred)
    return moves


def beginning(
    moves: Collection[BalanceMove], placements: Placements, standings: Standings
) -> tuple[list[PlannedMove], dict[int, str]]:
    """The replicas that may begin to move now: one move at a time of a write group, from a node, and to one. And by
    write group, in words, what stands against its first move, or keeps a move that is under way from going on."""
    into, out_of = under_way(placements, standings)
    begun: list[PlannedMove] = []
    obstacles: dict[int, str] = {}
    for group, standing in standings.items():
        replicas = placements.get(group, ())
        if standing.members.issuperset(replicas) and (why := stuck(replicas, standing)):  # else it has just begun
            obstacles[group] = f"write group {group}: {why}"
    seen: set[int] = set()
    for group, old, new, _why, preferred in moves:
        if group in seen:
            continue
        seen.add(group)
        known = standings.get(group)
        if known is None:
            obstacles[group] = f"write group {group}: {stuck(placements[group], None)}"
        elif not is_settled(placements[group], known):
            continue  # it moves
        elif preferred:
            if why := not_following({new}, known):
                obstacles[group] = f"write group {group}: {why}"
        elif why := not_following(set(placements[group]), known):
            obstacles[group] = f"write group {group}: {why}"
        elif new not in into and old not in out_of:
            begun.append(PlannedMove(group, old, new))
            into.add(new)
            out_of.add(old)
    return begun, obstacles


def preferring(moves: Collection[BalanceMove], placements: Placements, standings: Standings) -> list[BalanceMove]:
    """The preferred leaders that may change now: of write groups that do not move, to a replica that follows."""
    first: dict[int, BalanceMove] = {}
    for move in moves:
        first.setdefault(move.group, move)
    return [
        move
        for move in first.values()
        if move.preferred
        and (standing := standings.get(move.group)) is not None
        and is_settled(placements[move.group], standing)
        and move.new in standing.active
    ]


def _lighter(by_load: LoadSteps, placements: Placements) -> BalanceMove | None:
    shift = by_load.lighter(placements)
    return None if shift is None else BalanceMove(shift.group, shift.old, shift.new, shift.why, shift.preferred)


def _wider(
    label: str,
    domain_of: Callable[[Locations, int], tuple[str, str | int]],
    locations: Locations,
    takers: list[int],
    by_load: LoadSteps | None,
    staying: Collection[int],
    placements: Placements,
) -> BalanceMove | None:
    """A replica from a machine (or rack) that has two of its write group to one that has none."""
    held = _held(placements)
    able = [it for it in takers if by_load is None or by_load.has_room(it)]
    for group, replicas in sorted(placements.items()):
        if group in staying:
            continue
        spanned = Counter(domain_of(locations, it) for it in replicas)
        olds = [it for it in replicas if spanned[domain_of(locations, it)] > 1 and it in takers]
        news = [it for it in able if domain_of(locations, it) not in spanned]
        for old in sorted(olds, key=lambda it: (held[it], it), reverse=True):
            for new in sorted(news, key=lambda it: (held[it], it)):
                if keeps_apart(locations, replicas, old, new):
                    name = getattr(locations[new], label) or f"that of node {new}"
                    return BalanceMove(group, old, new, f"to one {label} more, {name}")
    return None


def _more_even(
    locations: Locations,
    takers: list[int],
    by_load: LoadSteps | None,
    staying: Collection[int],
    placements: Placements,
) -> BalanceMove | None:
    """A replica from the fullest node that can give one to the emptiest that can take it."""
    held = _held(placements)
    led = Counter(replicas[0] for replicas in placements.values() if replicas)
    admits = by_load.admitting(placements) if by_load is not None else None
    for old, new in _pairs(held, takers):
        able = [
            group
            for group, replicas in sorted(placements.items())
            if group not in staying
            and old in replicas
            and new not in replicas
            and keeps_apart(locations, replicas, old, new)
            and (admits is None or admits(group, old, new))
        ]
        if able:
            leads = led[old] - led[new] >= 2
            group = min(able, key=lambda it: ((placements[it][0] == old) != leads, it))
            return BalanceMove(group, old, new, f"{held[old]} replicas there, {held[new]} here")
    return None


def _pairs(held: Counter[int], takers: list[int]) -> Iterator[tuple[int, int]]:
    """Nodes to give and to take, the most unequal first."""
    for old in sorted(takers, key=lambda it: (-held[it], it)):
        for new in sorted(takers, key=lambda it: (held[it], it)):
            if held[old] - held[new] < 2:
                break
            yield old, new


def _held(placements: Placements) -> Counter[int]:
    return Counter(node_id for replicas in placements.values() for node_id in replicas)
