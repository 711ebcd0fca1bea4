"""The whole storage role under random programs on a simulated machine: invariants A to D, F, G and M.

A failure prints its seed; `play(seed, directory)` plays it again. What each invariant means here:

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

from pathlib import Path

import pytest
from tests.simulation.run import play

from mainstem.model import Tier

SEEDS = 300
CHUNK = 20

REGRESSIONS = (0, 1, 3, 5, 7, 9, 16, 24)
"""Seeds that found bugs which are fixed since; see the tests below for what they were."""


@pytest.mark.parametrize("first", range(1000, 1000 + SEEDS, CHUNK))
def test_abcdfgm_hold_in_random_programs(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_found_bugs(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path)


def test_the_programs_reach_every_tier_and_prune(tmp_path: Path) -> None:
    runs = [play(seed, tmp_path) for seed in range(40)]
    for tier in Tier:
        assert sum(run.served[tier] for run in runs) > 100, tier
    assert sum(run.pruned_segments for run in runs) > 200
    outcomes = {kind for run in runs for kind in run.splitters.outcomes}
    assert outcomes == {"committed", "replayed", "refused"}


def test_a_program_is_determined_by_its_seed(tmp_path: Path) -> None:
    first, second = (play(7, tmp_path / name) for name in ("first", "second"))
    assert first.machine.disk1.paths() == second.machine.disk1.paths()
    assert all(
        first.machine.disk1.content(path) == second.machine.disk1.content(path)
        for path in first.machine.disk1.paths()
    )
    assert first.served == second.served
