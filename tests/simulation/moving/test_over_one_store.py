"""Queues move between write groups on other nodes over one shared store, under random faults of nodes, networks and the
store: all that holds where nodes have files of their own (`test_other_nodes.py`), and all that holds of a shared store
(U). Checks find each planted bug by what it breaks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.moving.other_nodes import FEWER
from tests.simulation.moving.over_one_store import play
from tests.simulation.moving.planted import APART_PLANTS, STORE_PLANTS

SEEDS = range(40, 48)

SECONDS = 0.8
"""Simulated, of load and faults: several nodes that split into one store take their time."""


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_the_invariants_hold_while_queues_move_over_one_store(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, seconds=SECONDS)
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.parametrize("seed", more_at_length(range(1, 5), 0))
def test_the_invariants_hold_while_topics_over_one_store_have_fewer_copies(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, seconds=SECONDS, faults=[FEWER])
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.long  # several runs
def test_objects_that_go_early_are_found(tmp_path: Path) -> None:
    with planted("old-copies-go-early", APART_PLANTS):
        seed_that_finds(partial(play, faults=[FEWER]), "U", range(1, 13), tmp_path, says="in it, which is live")


@pytest.mark.long  # several runs
def test_reads_that_pass_over_what_was_before_are_found(tmp_path: Path) -> None:
    with planted("earlier-objects-passed-over", STORE_PLANTS):
        seed_that_finds(play, "A", range(1, 9), tmp_path, says="nothing at")
