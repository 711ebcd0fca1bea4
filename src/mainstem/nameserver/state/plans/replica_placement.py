"""Chooses the nodes for replicas of write groups: evenly, no two on one machine while there are other machines, and no
two in one rack while there are other racks. No I/O.

A rack holds whole machines, so that the first rule never stands against the second one. The machine counts if labels
contradict that: all of its nodes fail together for certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from mainstem.model import Location

Locations = Mapping[int, Location]


def place_write_groups(
    groups: int, locations: Locations, replicas: int, present: Mapping[int, Sequence[int]] | None = None
) -> list[list[int]]:
    """Per write group its nodes, preferred leader first. `locations` names the nodes to choose from; each write group
    gets `replicas` of them, or all there are. `present` are the write groups that are placed already."""
    assert locations, "a place needs a node"
    there = (present or {}).values()
    held = Counter(node_id for replicas_there in there for node_id in replicas_there)
    led = Counter(replicas_there[0] for replicas_there in there if replicas_there)
    placed: list[list[int]] = []
    for group in range(len(there), len(there) + groups):
        chosen = _choose(group, locations, min(replicas, len(locations)), held)
        leader = min(chosen, key=lambda node_id: (led[node_id], held[node_id], chosen.index(node_id)))
        led[leader] += 1
        held.update(chosen)
        placed.append([leader, *(node_id for node_id in chosen if node_id != leader)])
    return placed


def _choose(group: int, locations: Locations, replicas: int, held: Counter[int]) -> list[int]:
    """The nodes with the fewest replicas, from unused machines and unused racks as long as there are any. Ties are
    broken in turns, so that it is not always the same nodes that share write groups."""
    order = sorted(locations)
    turn = {node_id: (position - group) % len(order) for position, node_id in enumerate(order)}
    chosen: list[int] = []
    used: Counter[object] = Counter()
    while len(chosen) < replicas:
        best = min(
            (node_id for node_id in order if node_id not in chosen),
            key=lambda node_id: (
                used[machine_of(locations, node_id)],
                used[rack_of(locations, node_id)],
                held[node_id],
                turn[node_id],
            ),
        )
        chosen.append(best)
        used[machine_of(locations, best)] += 1
        used[rack_of(locations, best)] += 1
    return chosen


def machine_of(locations: Locations, node_id: int) -> tuple[str, str | int]:
    """The fault domain that no two replicas share while there are others; a node that names no machine is one of its
    own."""
    machine = locations[node_id].machine
    return "machine", node_id if machine is None else machine


def rack_of(locations: Locations, node_id: int) -> tuple[str, str | int]:
    """The larger fault domain; the nodes of a machine that name no rack are a rack of their own."""
    rack = locations[node_id].rack
    return ("rack of", machine_of(locations, node_id)[1]) if rack is None else ("rack", rack)


def crowded_machines(placements: Collection[Collection[int]], locations: Locations) -> dict[str, int]:
    """By the label of a machine, how many write groups have several replicas on it; nodes that are not known, and
    machines without a label, are passed over."""
    crowded: Counter[str] = Counter()
    for replicas in placements:
        machines = Counter(locations[it].machine for it in replicas if it in locations)
        crowded.update(machine for machine, count in machines.items() if machine is not None and count > 1)
    return dict(sorted(crowded.items()))


def replacement_for(
    old: int, replicas: tuple[int, ...], locations: Locations, placements: Mapping[int, tuple[int, ...]]
) -> int | None:
    """The node that should take over the replica of `old`: on a machine and in a rack without another of its replicas
    if there is one, then the node with the fewest replicas. None: all nodes in `locations` hold one already."""
    held = Counter(node_id for group in placements.values() for node_id in group)
    stay = [node_id for node_id in replicas if node_id != old and node_id in locations]
    machines, racks = ({of(locations, node_id) for node_id in stay} for of in (machine_of, rack_of))
    candidates = [node_id for node_id in locations if node_id not in replicas]
    if not candidates:
        return None
    return min(
        candidates,
        key=lambda node_id: (
            machine_of(locations, node_id) in machines,
            rack_of(locations, node_id) in racks,
            held[node_id],
            node_id,
        ),
    )
