"""The places of replicas: always on different nodes, evenly, over as many racks as can be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mainstem.nameserver.state.replica_placement import place_write_groups, replacement_for

RACKS = st.dictionaries(st.integers(1, 50), st.none() | st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12)


@given(st.integers(1, 40), RACKS, st.integers(1, 5))
def test_every_group_has_its_replicas_on_different_nodes_of_different_racks(
    groups: int, racks: dict[int, str | None], replicas: int
) -> None:
    placed = place_write_groups(groups, racks, replicas)
    there = len({rack or node_id for node_id, rack in racks.items()})
    assert len(placed) == groups
    for chosen in placed:
        assert len(set(chosen)) == len(chosen) == min(replicas, len(racks))
        assert len({racks[node_id] or node_id for node_id in chosen}) == min(there, len(chosen))
    assert placed == place_write_groups(groups, racks, replicas)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 5))
def test_without_racks_replicas_and_leaders_are_even(groups: int, nodes: int, replicas: int) -> None:
    placed = place_write_groups(groups, dict.fromkeys(range(1, nodes + 1)), replicas)
    held = Counter(node_id for chosen in placed for node_id in chosen)
    led = Counter(chosen[0] for chosen in placed)
    assert max(held.values()) - min(held[node_id] for node_id in range(1, nodes + 1)) <= 1
    assert max(led.values()) <= -(-groups // nodes) + 1


def test_a_replacement_keeps_the_racks_apart() -> None:
    placements = {0: (1, 2), 1: (1, 3)}
    racks: dict[int, str | None] = {1: "a", 2: "b", 3: "b", 4: "a", 5: "b"}
    assert replacement_for(2, (1, 2), racks, placements) == 5
    assert replacement_for(1, (1, 2), racks, placements) == 4
    assert replacement_for(1, (1, 2), {1: "a", 2: "b"}, placements) is None
