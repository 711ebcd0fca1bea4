"""A busy queue goes to another write group by itself, under random faults: all invariants of moves hold, and two that
share a write group come apart (S)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.find import more_at_length
from tests.simulation.moving.busy_pairs import play

SEEDS = (2, 1, 3, 4, 5, 6, 7, 8)


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_the_invariants_hold_while_a_busy_queue_moves_by_itself(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path)
    assert 0 < outcomes.moves["moved"] <= outcomes.moves["asked"]
