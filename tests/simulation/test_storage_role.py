"""The whole storage role under random programs on a simulated machine: invariants A to D, F, G and M.

A failure prints its seed; `play(seed, directory)` plays it again. The meaning of each invariant here:

A  after a power cut a queue reaches at least as far as what was acknowledged, read or administered (sync), or
   as what was synced (async); after a killed process and a clean stop, likewise
B  every read, on any tier and under any amount of pruning, brings the very bytes of its offsets
C  every append gets the offset behind the one before it; a read leaves nothing out
D  duplicates are answered with their first offset, gaps and stale epochs refused, also after a restart
F  the queue store alone holds each queue's whole history, each batch once, whoever else committed whatever
G  everything is pruned in the end, and nothing is missing then
M  while the metadata knows no topic, neither split nor retention nor pruning loses a record
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.find import more_at_length
from tests.simulation.run import play
from tests.simulation.steps import parting

from mainstem.model import Tier

SEEDS = 260
CHUNK = 10
ALWAYS = 1
"""Chunks that are played at each change."""

REGRESSIONS = {
    1007: "a block grew larger than a segment and ended all writing",
    1012: "a log start was confirmed before it was durable (async)",
    1013: "a split ahead of the newest checkpoint fell behind itself at the next start and refused every commit",
    1023: "a run that one group had refused counted for it in retention and usage",
    1110: "a look-up by timestamp failed when its segment was recycled meanwhile",
    1219: "runs of a group were not visited oldest first when one was committed late",
    21687: "what a log start that was not durable yet let go was missing after a crash took it back (async)",
}
"""Seeds that find these bugs again when they are put back."""


@pytest.mark.parametrize("first", more_at_length(range(5000, 5000 + SEEDS, CHUNK), ALWAYS))
def test_abcdfgm_hold_in_random_programs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_found_bugs(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


def test_the_programs_reach_every_tier_of_the_disks_and_prune(tmp_path: Path) -> None:
    served, pruned, outcomes = Counter[Tier](), 0, set[str]()

    def is_enough() -> bool:
        here = set(Tier) - {Tier.REMOTE}  # `tests/simulation/tiered` has an object store
        return all(served[tier] > 50 for tier in here) and pruned > 100 and len(outcomes) == 3

    for seed in range(25):
        run = play(seed, tmp_path)
        served.update(run.served)
        pruned += run.pruned_segments
        outcomes |= run.splitters.outcomes.keys()
        if is_enough():
            break
    assert is_enough(), (served, pruned)
    assert outcomes == {"committed", "replayed", "refused"}


@pytest.mark.long  # whole nodes are played so at each change
def test_what_a_storage_role_does_depends_on_nothing_but_the_seed(tmp_path: Path) -> None:
    assert not parting("role", 7, tmp_path)


@pytest.mark.long  # the test before sees more, at each change
def test_a_program_is_determined_by_its_seed(tmp_path: Path) -> None:
    first, second = (play(7, tmp_path / name) for name in ("first", "second"))
    assert first.machine.disk1.paths() == second.machine.disk1.paths()
    assert all(
        first.machine.disk1.content(path) == second.machine.disk1.content(path) for path in first.machine.disk1.paths()
    )
    assert first.served == second.served
