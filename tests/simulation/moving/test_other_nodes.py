"""Queues move between write groups with replicas on three of four or five nodes, under random faults: all invariants of
whole nodes hold, every move comes to its end (S), and each node of a write group has all that its queues have, from
before their moves, too (A, B, F); the nodes of a write group that it left keep what it had there, as long as anybody
counts on that (A). So it is where queues are kept three times and once by turns, and where compacted ones move, of
which each key has its latest value (L). Checks find each planted bug by what it breaks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.cluster.run import COMPACTION
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.moving.other_nodes import FEWER, REPLACED, play
from tests.simulation.moving.planted import APART_PLANTS

SEEDS = range(1, 17)

COMPACTED = [COMPACTION, "crash"]


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_the_invariants_hold_while_queues_move_to_other_nodes(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path)
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.parametrize("seed", [*more_at_length(range(1, 7)), 222])  # a guest starts again before it got anything
def test_the_invariants_hold_while_topics_have_fewer_copies_and_more(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, faults=[FEWER])
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.parametrize("seed", more_at_length(range(304, 312)))
def test_the_invariants_hold_while_replicas_move_from_node_to_node(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, faults=[REPLACED])
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.parametrize("seed", more_at_length(range(1, 7)))
def test_each_key_has_its_latest_value_where_compacted_queues_move(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, faults=COMPACTED)
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.parametrize("seed", [*more_at_length(range(1, 5), always=0), 9201])  # two starts wait for each other
def test_compacted_queues_have_fewer_copies_and_more(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path, faults=[*COMPACTED, FEWER])
    assert outcomes.moves["moved"] or not outcomes.moves["asked"]


@pytest.mark.long  # several runs
def test_old_copies_that_go_early_are_found(tmp_path: Path) -> None:
    with planted("old-copies-go-early", APART_PLANTS):
        seed_that_finds(
            partial(play, faults=[FEWER]), "A", range(1, 9), tmp_path, says="a copy from before its move is gone"
        )


@pytest.mark.long  # several runs
@pytest.mark.parametrize(
    ("plant", "letters", "says"),
    [
        ("guests-leave-early", "B", "read at"),
        ("guests-not-awaited", "S", "slots do not come to where they are to move"),
    ],
)
def test_planted_bugs_are_found_where_write_groups_are_apart(
    plant: str, letters: str, says: str, tmp_path: Path
) -> None:
    with planted(plant, APART_PLANTS):
        seed_that_finds(play, letters, range(1, 9), tmp_path, says=says)
