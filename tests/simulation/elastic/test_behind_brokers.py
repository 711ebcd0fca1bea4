"""Elastic clusters behind brokers without storage: all invariants of both hold, as clients see them, and the moves come
about that operators ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.elastic.behind_brokers import play
from tests.simulation.find import more_at_length

SEEDS = range(1, 9)


@pytest.mark.parametrize("seed", more_at_length(SEEDS, always=0))
def test_the_invariants_hold_while_replicas_move_behind_brokers(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path / str(seed))
    assert {"joined", "balanced"} <= outcomes.moves.keys()
