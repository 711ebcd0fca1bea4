"""One fault that leaves a majority which can hear each other, and customers that are served all the same (S)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.whole.availability import AVAILABILITY_PLANTS, STORIES, TOLD_BY, play

SEEDS = 2
SEEDS_TO_FIND = 10
"""Runs within which a planted bug is found; a few do, mostly."""


@pytest.mark.parametrize("seed", more_at_length(range(1, 1 + SEEDS)))
@pytest.mark.parametrize("story", STORIES)
def test_partitions_are_served_again_within_a_bound(story: str, seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / str(seed), faults=[story])


@pytest.mark.long
@pytest.mark.parametrize("name", AVAILABILITY_PLANTS)
def test_bugs_that_keep_customers_waiting_are_found(name: str, tmp_path: Path) -> None:
    seeds = range(1, 1 + SEEDS_TO_FIND)
    with planted(name, AVAILABILITY_PLANTS):
        assert seed_that_finds(play, "S", seeds, tmp_path, [TOLD_BY[name]])
