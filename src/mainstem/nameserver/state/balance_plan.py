"""Plans how replicas are spread evenly: first over machines, then over racks, then over nodes by their number. No I/O.

Each move makes a write group span one machine or one rack more, or takes a replica from a node to one that has at least
two fewer; none makes a write group span fewer of either. So a plan ends, and a second one behind it is empty. Nodes
that are dead or drained neither give nor take: `drain_plan` empties these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import NamedTuple

from mainstem.nameserver.state.drain_plan import (
    Placements,
    PlannedMove,
    Standings,
    is_settled,
    keeps_apart,
    not_following,
    stuck,
    under_way,
)
from mainstem.nameserver.state.replica_placement import Locations, machine_of, rack_of


class BalanceMove(NamedTuple):
    """`why` is for people."""

    group: int
    old: int
    new: int
    why: str


def plan_balance(placements: Placements, locations: Locations, takers: Collection[int]) -> list[BalanceMove]:
    """All moves, in the order in which they are meant. `locations` has all nodes; `takers` live, store and are not
    drained."""
    if not takers:
        return []
    planned = dict(placements)
    moves: list[BalanceMove] = []
    steps = (partial(_wider, "machine", machine_of), partial(_wider, "rack", rack_of), _more_even)
    known = -1
    while known < len(moves):  # a step may have made an earlier one possible
        known = len(moves)
        for step in steps:
            while (move := step(planned, locations, sorted(takers))) is not None:
                moves.append(move)
                planned[move.group] = tuple(move.new if it == move.old else it for it in planned[move.group])
    return moves


def beginning(
    moves: Collection[BalanceMove], placements: Placements, standings: Standings
) -> tuple[list[PlannedMove], dict[int, str]]:
    """Those that may begin now: one move at a time of a write group, from a node, and to one. And by write group, in
    words, what stands against its first move, or keeps a move that is under way from going on."""
    into, out_of = under_way(placements, standings)
    begun: list[PlannedMove] = []
    obstacles: dict[int, str] = {}
    for group, standing in standings.items():
        replicas = placements.get(group, ())
        if standing.members.issuperset(replicas) and (why := stuck(replicas, standing)):  # else it has just begun
            obstacles[group] = f"write group {group}: {why}"
    seen: set[int] = set()
    for group, old, new, _why in moves:
        if group in seen:
            continue
        seen.add(group)
        known = standings.get(group)
        if known is None:
            obstacles[group] = f"write group {group}: {stuck(placements[group], None)}"
        elif not is_settled(placements[group], known):
            continue  # it moves
        elif why := not_following(set(placements[group]), known):
            obstacles[group] = f"write group {group}: {why}"
        elif new not in into and old not in out_of:
            begun.append(PlannedMove(group, old, new))
            into.add(new)
            out_of.add(old)
    return begun, obstacles


def _wider(
    label: str,
    domain_of: Callable[[Locations, int], tuple[str, str | int]],
    placements: Placements,
    locations: Locations,
    takers: list[int],
) -> BalanceMove | None:
    """A replica from a machine (or rack) that has two of its write group to one that has none."""
    held = _held(placements)
    for group, replicas in sorted(placements.items()):
        spanned = Counter(domain_of(locations, it) for it in replicas)
        olds = [it for it in replicas if spanned[domain_of(locations, it)] > 1 and it in takers]
        news = [it for it in takers if domain_of(locations, it) not in spanned]
        for old in sorted(olds, key=lambda it: (held[it], it), reverse=True):
            for new in sorted(news, key=lambda it: (held[it], it)):
                if keeps_apart(locations, replicas, old, new):
                    name = getattr(locations[new], label) or f"that of node {new}"
                    return BalanceMove(group, old, new, f"to one {label} more, {name}")
    return None


def _more_even(placements: Placements, locations: Locations, takers: list[int]) -> BalanceMove | None:
    """A replica from the fullest node that can give one to the emptiest that can take it."""
    held = _held(placements)
    led = Counter(replicas[0] for replicas in placements.values() if replicas)
    for old, new in _pairs(held, takers):
        able = [
            group
            for group, replicas in sorted(placements.items())
            if old in replicas and new not in replicas and keeps_apart(locations, replicas, old, new)
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
