"""The places of replicas: always on different nodes, evenly, over as many machines and racks as can be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainstem.model import Location
from mainstem.nameserver.state.plans.replica_placement import (
    crowded_machines,
    machine_of,
    place_write_groups,
    rack_of,
    replacement_for,
)

MACHINES = {"m1": "a", "m2": "a", "m3": "b", "m4": None, "m5": "c", "m6": "c"}
"""By label, the rack that the machine is in."""

LOCATION = st.builds(Location, st.none() | st.sampled_from(["a", "b", "c"]), st.none()) | st.sampled_from(
    [Location(rack, machine) for machine, rack in MACHINES.items()]
)
LOCATIONS = st.dictionaries(st.integers(1, 50), LOCATION, min_size=1, max_size=12)
ANY_LABELS = st.dictionaries(
    st.integers(1, 50),
    st.builds(Location, st.none() | st.sampled_from(["a", "b"]), st.none() | st.sampled_from(["m1", "m2", "m3"])),
    min_size=1,
    max_size=12,
)


@given(st.integers(1, 40), LOCATIONS, st.integers(1, 5))
def test_every_group_has_its_replicas_on_different_nodes_of_different_racks(
    groups: int, locations: dict[int, Location], replicas: int
) -> None:
    placed = place_write_groups(groups, locations, replicas)
    there = len({rack_of(locations, node_id) for node_id in locations})
    assert len(placed) == groups
    for chosen in placed:
        assert len(set(chosen)) == len(chosen) == min(replicas, len(locations))
        assert len({rack_of(locations, node_id) for node_id in chosen}) == min(there, len(chosen))
    assert placed == place_write_groups(groups, locations, replicas)


@given(st.integers(1, 20), ANY_LABELS, st.integers(1, 5))
def test_no_machine_has_two_replicas_of_a_group_while_another_has_none(
    groups: int, locations: dict[int, Location], replicas: int
) -> None:
    """The labels of racks may contradict those of machines."""
    placed = place_write_groups(groups, locations, replicas)
    there = {machine_of(locations, node_id) for node_id in locations}
    for chosen in placed:
        used = Counter(machine_of(locations, node_id) for node_id in chosen)
        assert len(used) == min(len(chosen), len(there))
    told = crowded_machines(placed, locations)
    assert bool(told) == (min(replicas, len(locations)) > len(there)), "told if and only if there are too few machines"


@given(ANY_LABELS, st.integers(1, 20), st.integers(1, 4), st.data())
def test_a_replacement_goes_to_a_machine_without_a_replica_while_there_is_one(
    locations: dict[int, Location], groups: int, replicas: int, data: st.DataObject
) -> None:
    placements = dict(enumerate(map(tuple, place_write_groups(groups, locations, replicas))))
    old = data.draw(st.sampled_from(placements[0]))
    new = replacement_for(old, placements[0], locations, placements)
    stay = {machine_of(locations, it) for it in placements[0] if it != old}
    free = {machine_of(locations, it) for it in locations if it not in placements[0]} - stay
    if new is None:
        assert set(placements[0]) == set(locations)
    elif free:
        assert machine_of(locations, new) in free


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_without_racks_replicas_and_leaders_are_even(groups: int, nodes: int, replicas: int) -> None:
    placed = place_write_groups(groups, dict.fromkeys(range(1, nodes + 1), Location()), replicas)
    held = Counter(node_id for chosen in placed for node_id in chosen)
    led = Counter(chosen[0] for chosen in placed)
    assert max(held.values()) - min(held[node_id] for node_id in range(1, nodes + 1)) <= 1
    assert max(led.values()) <= -(-groups // nodes) + 1


def test_a_replacement_keeps_the_racks_apart() -> None:
    placements = {0: (1, 2), 1: (1, 3)}
    locations = {node_id: Location(rack) for node_id, rack in zip((1, 2, 3, 4, 5), "abbab", strict=True)}
    assert replacement_for(2, (1, 2), locations, placements) == 5
    assert replacement_for(1, (1, 2), locations, placements) == 4
    assert replacement_for(1, (1, 2), {1: Location("a"), 2: Location("b")}, placements) is None


def test_crowded_machines_are_told_by_their_labels() -> None:
    locations = {1: Location(machine="m1"), 2: Location(machine="m1"), 3: Location(machine="m2"), 4: Location("m1")}
    assert crowded_machines([(1, 2, 3), (1, 3, 4), (2, 1, 4), (3, 9)], locations) == {"m1": 2}
