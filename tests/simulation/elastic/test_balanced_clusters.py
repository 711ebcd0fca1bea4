"""Clusters that spread their load by themselves: all invariants of elastic clusters hold meanwhile, and

S  where no faults are any more, the balancer comes to an end at which nothing has too much to do; it moves no write
   group that has not rested, and none back to where it took it from
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.elastic.balanced import play
from tests.simulation.find import more_at_length

SEEDS = range(1, 9)
"""In the first one the balancer moves something."""


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_the_invariants_hold_while_the_cluster_spreads_its_load_by_itself(seed: int, tmp_path: Path) -> None:
    moves = play(seed, tmp_path / str(seed)).moves
    assert "balanced" in moves
    assert seed != SEEDS[0] or "by itself" in moves
