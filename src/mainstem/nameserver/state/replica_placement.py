"""Chooses the nodes for replicas of write groups: evenly, no two in one rack while there are other racks. No
I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def place_write_groups(groups: int, racks: Mapping[int, str | None], replicas: int) -> list[list[int]]:
    """Per write group its nodes, preferred leader first. `racks` names the rack of each node to choose from
    (None: a rack of its own); each write group gets `replicas` of them, or all there are."""
    assert racks, "a place needs a node"
    held: Counter[int] = Counter()
    led: Counter[int] = Counter()
    placed: list[list[int]] = []
    for group in range(groups):
        chosen = _choose(group, racks, min(replicas, len(racks)), held)
        leader = min(chosen, key=lambda node_id: (led[node_id], held[node_id], chosen.index(node_id)))
        led[leader] += 1
        held.update(chosen)
        placed.append([leader, *(node_id for node_id in chosen if node_id != leader)])
    return placed


def _choose(group: int, racks: Mapping[int, str | None], replicas: int, held: Counter[int]) -> list[int]:
    """The nodes with the fewest replicas, from unused racks as long as there are any. Ties are broken in
    turns, so that it is not always the same nodes that share write groups."""
    order = sorted(racks)
    turn = {node_id: (position - group) % len(order) for position, node_id in enumerate(order)}
    chosen: list[int] = []
    used: Counter[object] = Counter()
    while len(chosen) < replicas:
        best = min(
            (node_id for node_id in order if node_id not in chosen),
            key=lambda node_id: (used[rack_of(racks, node_id)], held[node_id], turn[node_id]),
        )
        chosen.append(best)
        used[rack_of(racks, best)] += 1
    return chosen


def rack_of(racks: Mapping[int, str | None], node_id: int) -> object:
    """The fault domain that no two replicas should share; a node that names no rack is one of its own."""
    rack = racks[node_id]
    return node_id if rack is None else rack


def replacement_for(
    old: int,
    replicas: tuple[int, ...],
    racks: Mapping[int, str | None],
    placements: Mapping[int, tuple[int, ...]],
) -> int | None:
    """The node that should take over the replica of `old`: from a rack without another of its replicas if
    there is one, then the node with the fewest replicas. None: all nodes in `racks` hold one already."""
    held = Counter(node_id for group in placements.values() for node_id in group)
    kept = {rack_of(racks, node_id) for node_id in replicas if node_id != old and node_id in racks}
    candidates = [node_id for node_id in racks if node_id not in replicas]
    if not candidates:
        return None
    return min(candidates, key=lambda node_id: (rack_of(racks, node_id) in kept, held[node_id], node_id))
