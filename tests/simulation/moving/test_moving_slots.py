"""Slots move between the write groups of a storage role under random programs: invariants A to D, F, G and M of
`tests/simulation/test_storage_role.py`, and leader epochs that never go back (C). Checks find each
planted bug by what it breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.moving.run import play

SEEDS = 120
CHUNK = 10


@pytest.mark.parametrize("first", more_at_length(range(1, 1 + SEEDS, CHUNK)))
def test_invariants_hold_while_slots_move(first: int, tmp_path: Path) -> None:
    moved = 0
    for seed in range(first, first + CHUNK):
        moved += play(seed, tmp_path / str(seed)).node.moved
    assert moved > CHUNK, "few slots have moved"


REGRESSIONS = {
    47: "retention took the files of a later stay, which came first, for all that a queue had",
    5: "a start did not wait for a write group whose arrivals waited for fences",
    214: "retention counted bytes twice when a history was cut meanwhile",
}
"""Seeds that find these bugs again when they are put back."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_found_bugs(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


FIRST_SEEDS = {"epochs-go-back": 25, "gaps-untold": 17}
"""Before these seeds nothing finds the bug, and to play them takes long."""


@pytest.mark.parametrize(
    ("fault", "letters", "says"),
    [
        ("epochs-go-back", "C", "leader epoch"),
        ("fence-ignored", "C", "not AppendResult(outcome=<Outcome.NOT_LEADER"),
        ("chain-cut-early", "B", "other bytes"),
        ("producers-left-behind", "D", "SKIPPED_SEQUENCE"),
        ("return-forgotten", "B", "other bytes"),
        ("gaps-untold", "F", "is next"),
    ],
)
def test_planted_bugs_are_found(fault: str, letters: str, says: str, tmp_path: Path) -> None:
    first = FIRST_SEEDS.get(fault, 3)
    seed_that_finds(play, letters, range(first, first + 37), tmp_path, [fault], says=says)
