"""Queues move between write groups of three or five whole nodes, asked for of any node, under random faults: all
invariants of whole nodes hold, leader epochs never go back (C), and every move comes to its end (S). Checks find each
planted bug by what it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.cluster.run import LEFT_BEHIND
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.moving.clusters import play
from tests.simulation.share_groups.load import SHARE_GROUPS
from tests.simulation.share_groups.planted import SHARE_MOVE_PLANTS

SEEDS = range(12, 30)
"""In the first fifteen slots move."""

STARTS_WITHOUT_LOGS = 409
"""With this seed a node has files of blocks that it has not applied again since its start."""


@pytest.mark.parametrize("seed", more_at_length([STARTS_WITHOUT_LOGS, *SEEDS]))
def test_the_invariants_hold_while_queues_move_in_a_cluster(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path)
    assert outcomes.moves["moved"] >= outcomes.moves["asked"]


@pytest.mark.parametrize("seed", more_at_length(range(12, 16), always=0))
def test_share_groups_go_on_while_queues_move_in_a_cluster(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, faults=[SHARE_GROUPS])
    assert outcomes.moves["moved"] >= outcomes.moves["asked"]


@pytest.mark.long  # several runs
def test_a_window_that_begins_anew_behind_a_move_is_found(tmp_path: Path) -> None:
    with planted("window-not-looked-for", SHARE_MOVE_PLANTS):
        assert seed_that_finds(play, "Q", range(12, 18), tmp_path, [SHARE_GROUPS], says="a second window")


@pytest.mark.long  # a dozen runs
def test_snapshots_carry_what_moved(tmp_path: Path) -> None:
    seeds = (*range(40, 52), 332, 337, 341)
    snapshots = sum(play(seed, tmp_path / str(seed), faults=[LEFT_BEHIND]).snapshots for seed in seeds)
    assert snapshots > 12, "few members have needed one"


@pytest.mark.long  # many runs
@pytest.mark.parametrize(
    ("fault", "letters", "seeds"),
    [
        ("fence-ignored", "ACE", range(200, 240)),
        ("fence-not-awaited", "ABCFJ", range(200, 240)),
        ("chain-cut-early", "ABEF", range(200, 220)),
        ("epochs-go-back", "C", range(200, 240)),
        ("producers-left-behind", "D", range(200, 220)),
    ],
)
def test_planted_bugs_are_found_in_clusters(fault: str, letters: str, seeds: range, tmp_path: Path) -> None:
    seed_that_finds(play, letters, seeds, tmp_path, [fault])
