"""Clusters of storage roles under random faults: invariants A to D, F, G, J and M on every node.

A failure prints its seed; `make simulate SEEDS=<seed>..<seed>` plays it again. What each invariant means here:

A  what was acknowledged with acks=all is there in the end, whoever crashed, was cut off or lost its power meanwhile
B  every read, at any node, on any tier and at any time, brings the bytes that were committed at its offsets, and what
   a leader has once shown stays
C  committed batches follow each other without a gap
D  what idempotent producers send again is committed once, in their order
F  every node's queue store alone holds the whole history, each batch once, whoever else committed whatever
G  nothing is pruned from a node's journal before it is in that node's manifest
J  all nodes apply the same blocks, and come to the same queues and producers
M  while a node's metadata knows no topic, it loses nothing
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.cluster.planted import PLANTS, planted
from tests.simulation.cluster.run import Run, play
from tests.simulation.oracle import Violation

SEEDS = 40
CHUNK = 10

BROUGHT_TO_LIGHT_BY = {
    "ack-before-quorum": ["cut off", "crash"],
    "vote-not-persisted": ["two candidates"],
    "truncation-below-commit": ["weather", "transfer"],
    "serve-before-no-op": ["cut off", "transfer", "pause"],
    "split-committed-twice": ["metadata"],
    "prune-before-manifest": ["metadata"],
    "producer-state-lost-at-failover": ["transfer"],
    "refuse-what-may-be-committed": ["transfer", "cut off"],
}
"""Per planted bug the faults that show it."""

SEEDS_TO_FIND = 40
"""Runs within which a planted bug is found; ten do, mostly."""


@pytest.mark.parametrize("first", range(100, 100 + SEEDS, CHUNK))
def test_abcdfgjm_hold_under_random_faults(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("name", PLANTS)
def test_planted_bugs_are_found(name: str, tmp_path: Path) -> None:
    def play_all() -> None:
        for seed in range(1, 1 + SEEDS_TO_FIND):
            play(seed, tmp_path / str(seed), faults=BROUGHT_TO_LIGHT_BY[name])

    with planted(name), pytest.raises(Violation):
        play_all()


def test_a_run_is_determined_by_its_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (Run(7, tmp_path / name) for name in ("first", "second"))
    assert first.play().trace == second.play().trace
    assert [node.disk1.paths() for node in first.cluster.nodes.values()] == [
        node.disk1.paths() for node in second.cluster.nodes.values()]
