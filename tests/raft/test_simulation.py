"""Groups of cores under random faults (`simulation`), and the proof that the simulation sees bugs (`planted`).

`RAFT_SEEDS=5000 pytest tests/raft/test_simulation.py` searches longer. `play(seed)` plays a failure again."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from tests.raft.invariants import Violation
from tests.raft.planted import PLANTED, CommitOldTerm, ReadsNumberedFromOne
from tests.raft.simulation import play
from tests.simulation.find import more_at_length

from mainstem.raft import RaftCore

SEEDS = int(os.environ.get("RAFT_SEEDS", "200"))
CHUNK = 20
PLANTED_SEEDS_MAX = 400
FOUND_LATE = (ReadsNumberedFromOne,)
"""After hundreds of seeds; the others after a few."""
LATE_FROM = 400
"""The first seed that is played for these: none of those before finds them, and as many are played behind."""


@pytest.mark.parametrize("first", more_at_length(range(1000, 1000 + SEEDS, CHUNK), always=5))
def test_invariants_hold(first: int) -> None:
    for seed in range(first, min(first + CHUNK, 1000 + SEEDS)):
        play(seed)


def test_everything_happens_in_the_simulation() -> None:
    happened: Counter[str] = Counter()
    for seed in range(40):
        happened += play(seed).happened
    for what in (
        "elected", "crash", "lost", "truncated", "compacted", "read", "proposed", "transfer", "TimeoutNow",
        "add learner", "promote", "remove", "InstallSnapshotResponse", "ReadIndexResponse", "withheld",
    ):  # fmt: skip
        assert happened[what] > 0, what


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.__name__, marks=[pytest.mark.long] if bug in FOUND_LATE else [])
        for bug in PLANTED
        if bug is not CommitOldTerm
    ],
)
def test_planted_bugs_are_caught(bug: type[RaftCore]) -> None:
    """All but the one of figure 8, which takes a script to come about: see test_replication."""
    first = LATE_FROM if bug in FOUND_LATE else 0
    for seed in range(first, first + PLANTED_SEEDS_MAX):
        try:
            play(seed, bug)
        except Violation:
            return
    raise AssertionError(f"{PLANTED_SEEDS_MAX} seeds do not find {bug.__name__}")
