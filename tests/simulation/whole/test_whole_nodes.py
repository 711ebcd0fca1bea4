"""Clusters of whole nodes under random faults: invariants A to D, F to H, J and M, as their clients see them.

What the simulation of storage roles checks is checked here too; clients speak to the nodes' dispatchers, in Kafka's
protocol. What is more:

A  a topic that was created is there, and one that was deleted is gone, on every node, with its queues
D  producer ids are handed out once
H  whoever asks for a group's committed offset is told at least what was acknowledged, or told to anybody, before
M  log starts move only where a client or the topic's retention wants it, queues go only with topics that somebody
   wanted to be deleted

Transactions (E) do not exist yet.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.whole.run import WholeRun, play

SEEDS = 6
CHUNK = 3


@pytest.mark.parametrize("first", range(100, 100 + SEEDS, CHUNK))
def test_abcdfghjm_hold_for_clients_of_whole_nodes_under_random_faults(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed))


def test_a_run_of_whole_nodes_is_determined_by_its_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (WholeRun(48, tmp_path / name) for name in ("first", "second"))
    assert first.play().trace == second.play().trace
    assert [node.disk1.paths() for node in first.cluster.nodes.values()] == [
        node.disk1.paths() for node in second.cluster.nodes.values()]
