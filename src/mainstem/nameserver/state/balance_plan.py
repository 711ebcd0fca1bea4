"""Plans how replicas are spread evenly: first over racks, then over nodes by their number. No I/O.

Each move makes a write group span one rack more, or takes a replica from a node to one that has at least two fewer and
leaves the racks of its write group as many as they are. So a plan ends, and a second one behind it is empty. Nodes that
are dead or drained neither give nor take: `drain_plan` empties these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from mainstem.nameserver.state.drain_plan import (
    Placements,
    PlannedMove,
    Standings,
    is_settled,
    keeps_racks,
    not_following,
    stuck,
    under_way,
)
from mainstem.nameserver.state.replica_placement import rack_of

Racks = Mapping[int, str | None]


class BalanceMove(NamedTuple):
    """`why` is for people."""

    group: int
    old: int
    new: int
    why: str


def plan_balance(placements: Placements, racks: Racks, takers: Collection[int]) -> list[BalanceMove]:
    """All moves, in the order in which they are meant. `racks` has all nodes; `takers` live, store and are not
    drained."""
    if not takers:
        return []
    planned = dict(placements)
    moves: list[BalanceMove] = []
    for step in (_wider, _more_even):
        while (move := step(planned, racks, sorted(takers))) is not None:
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


def _wider(placements: Placements, racks: Racks, takers: list[int]) -> BalanceMove | None:
    """A replica from a rack that has two of its write group to a rack that has none."""
    held = _held(placements)
    for group, replicas in sorted(placements.items()):
        spanned = Counter(rack_of(racks, it) for it in replicas)
        olds = [it for it in replicas if spanned[rack_of(racks, it)] > 1 and it in takers]
        news = [it for it in takers if rack_of(racks, it) not in spanned]
        if olds and news:
            old = max(olds, key=lambda it: (held[it], it))
            new = min(news, key=lambda it: (held[it], it))
            rack = racks[new] or f"that of node {new}"
            return BalanceMove(group, old, new, f"to one rack more, {rack}")
    return None


def _more_even(placements: Placements, racks: Racks, takers: list[int]) -> BalanceMove | None:
    """A replica from the fullest node that can give one to the emptiest that can take it."""
    held = _held(placements)
    led = Counter(replicas[0] for replicas in placements.values() if replicas)
    for old, new in _pairs(held, takers):
        able = [
            group
            for group, replicas in sorted(placements.items())
            if old in replicas and new not in replicas and keeps_racks(racks, replicas, old, new)
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
