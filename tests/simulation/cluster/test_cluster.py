"""Clusters of storage roles under random faults: invariants A to D, F, G, J and M on every node.

A failure prints its seed; `make simulate SEEDS=<seed>..<seed>` plays it again. The meaning of each invariant here:

A  what was acknowledged with acks=all is there in the end, whoever crashed, was cut off or lost its power meanwhile
B  every read, at any node, on any tier and at any time, brings the bytes that were committed at its offsets, and what
   a leader has once shown stays
C  committed batches follow each other without a gap
D  what idempotent producers send again is committed once, in their order
F  every node's queue store alone holds the whole history, each batch once, whoever else committed whatever
G  nothing is pruned from a node's journal before it is in that node's manifest
J  all nodes apply the same blocks, and come to the same queues and producers
L  of a compacted queue every node has the latest record of each key, or its tombstone for as long as it is asked to
   stay, and no older value behind that; what is there is what was committed at its offset
K  what a start reads of the journal is bounded by what is not split
M  while a node's metadata knows no topic, it loses nothing
N  a node keeps what it told others, whatever happened to it since: terms, votes, what is durable
R  what was refused is in no log, nor will be
S  what has a majority is served again when all faults are over
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.cluster.faults import MERGE_CRASH, ROTTEN_MANIFEST
from tests.simulation.cluster.planted import BREAKS, PLANTS, planted
from tests.simulation.cluster.replica_reads import REPLICA_READS
from tests.simulation.cluster.rivals import RIVALS
from tests.simulation.cluster.run import COMPACTION, Run, play
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.oracle import Violation
from tests.simulation.steps import parting

ROOT = Path(__file__).parents[3]

SEEDS = 40
CHUNK = 2
ALWAYS = 1
"""Chunks that are played at each change; `make simulate` plays any number."""

BROUGHT_TO_LIGHT_BY = {
    "ack-before-quorum": ["cut off", "crash"],
    "vote-not-persisted": ["two candidates"],
    "truncation-below-commit": ["weather", "transfer"],
    "serve-before-no-op": ["cut off", "transfer", "pause"],
    "split-recorded-anywhere": ["metadata"],
    "prune-before-manifest": ["metadata"],
    "producer-state-lost-at-failover": ["transfer"],
    "refuse-what-may-be-committed": ["transfer", "cut off"],
    "owner-epoch-not-checked": [RIVALS, "transfer"],
    "manifest-not-summed": [ROTTEN_MANIFEST],
    "copy-not-checked": [ROTTEN_MANIFEST],
    "input-removed-before-the-replace": [MERGE_CRASH],
    "output-left-out": ["crash"],
    "merged-for-another-group": ["crash"],
    "tombstone-gone-early": [COMPACTION, "crash"],
    "tombstone-leaves-its-value": [COMPACTION, "crash"],
    "batch-lost-in-a-rewrite": [COMPACTION, "crash"],
    "batch-left-out-of-a-log": [COMPACTION, "crash"],
    "served-before-it-is-committed": [REPLICA_READS, "transfer"],
}
"""Per planted bug the faults that show it."""

SEEDS_TO_FIND = 40
"""Runs within which a planted bug is found; ten do, mostly."""


@pytest.mark.parametrize("first", more_at_length(range(100, 100 + SEEDS, CHUNK), ALWAYS))
def test_the_invariants_hold_under_random_faults(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed))


def test_machines_that_take_a_queue_from_each_other_write_behind_what_they_know(tmp_path: Path) -> None:
    fenced = written = 0
    for seed in range(1, 9):
        if fenced > 10 and written > 40:
            break
        run = Run(seed, tmp_path / str(seed), faults=[RIVALS, "transfer", "cut off", "pause", "crash"])
        run.play()
        fenced += sum(rival.fenced for rival in run.rivals)
        written += sum(rival.written for rival in run.rivals)
    assert fenced > 10
    assert written > 40


@pytest.mark.long
@pytest.mark.parametrize("name", PLANTS)
def test_planted_bugs_are_found_by_the_invariants_they_break(name: str, tmp_path: Path) -> None:
    with planted(name):
        assert seed_that_finds(play, BREAKS[name], range(1, 1 + SEEDS_TO_FIND), tmp_path, BROUGHT_TO_LIGHT_BY[name])


MERGE_MESSAGES = {
    "input-removed-before-the-replace": "is removed, and the manifest counts on it",
    "output-left-out": "a hole in the split history",
    "merged-for-another-group": "is counted for it, and has queues of write group",
}
"""The messages for bugs in merges."""


@pytest.mark.long
@pytest.mark.parametrize("name", MERGE_MESSAGES)
def test_planted_bugs_of_merges_are_found_by_their_own_messages(name: str, tmp_path: Path) -> None:
    said: list[str] = []
    with planted(name):
        for seed in range(1, 6):
            try:
                play(seed, tmp_path / str(seed), faults=["metadata"])
            except Violation as violation:
                said.append(str(violation))
                if MERGE_MESSAGES[name] in said[-1]:
                    return
    raise AssertionError(said)


def test_runs_merge_runs_into_packed_files_and_segments_and_are_killed_meanwhile(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def is_enough() -> bool:
        merged = all(seen[what] > 40 for what in ("merged", "pack", "log"))
        return merged and seen["killed"] > 3 and seen["gone"] + seen["refused"] > 0

    for seed in range(1, 17):
        seen.update(play(seed, tmp_path / str(seed), faults=[MERGE_CRASH, "transfer"]).merges)
        if is_enough():
            break
    assert is_enough(), seen


@pytest.mark.long
@pytest.mark.parametrize("name", ["vote-not-persisted", "truncation-below-commit"])
def test_bugs_of_consensus_are_found_whatever_goes_wrong(name: str, tmp_path: Path) -> None:
    with planted(name):
        assert seed_that_finds(play, BREAKS[name], range(1, 1 + SEEDS_TO_FIND), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", ["ack-before-quorum", "prune-before-manifest"])
def test_bugs_are_found_where_python_checks_no_assertions(name: str) -> None:
    """A bug is found by a check of the simulation, not an `assert` of the code that has it."""
    command = [sys.executable, "-O", "-m", "tests.simulation.cluster", f"1..{SEEDS_TO_FIND}", "--quiet"]
    faults = ["--faults", ",".join(BROUGHT_TO_LIGHT_BY[name])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    played = subprocess.run(
        [*command, "--plant", name, *faults], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert played.returncode == 0, played.stdout + played.stderr


@pytest.mark.parametrize("seed", more_at_length([7, 8], 0))  # whole nodes are played so at each change
def test_what_a_cluster_does_depends_on_nothing_but_the_seed(seed: int, tmp_path: Path) -> None:
    assert not parting("cluster", seed, tmp_path)


@pytest.mark.long  # the test before sees more, at each change
def test_a_run_is_determined_by_its_seed(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    first, second = (Run(7, tmp_path / name) for name in ("first", "second"))
    assert first.play().trace == second.play().trace
    assert [node.disk1.paths() for node in first.cluster.nodes.values()] == [
        node.disk1.paths() for node in second.cluster.nodes.values()
    ]
