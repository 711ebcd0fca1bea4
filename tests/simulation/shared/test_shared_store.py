"""Clusters whose queue store is one object store, under random faults of nodes, networks, disks and the store: leaders
change between the announcement, the upload and the record, processes die there and their uploads go on, replicas are
away and come back, the store is out for a while and does late what was given up (U as in `test_remote_tier.py`, where
all that was split is in the store, each block once; and A, B, C, F, G, J, K, L as in `test_cluster.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.simulation.cluster.run import COMPACTION, LEFT_BEHIND, Outcomes
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation, seed_failed
from tests.simulation.shared.planted import BY_FAULTS, MESSAGES, SHARED_PLANTS, planted_in_the_store
from tests.simulation.shared.run import TIER_MANIFEST_LOST, SharedRun
from tests.simulation.tiered.store_run import BAD_WEATHER, DEPOSED, LEADS_AGAIN, OUTAGE

from mainstem.model import Tier
from mainstem.rpc.messages.split import PASSED_OVER

FIRST, SEEDS = 7_400_000, 40

SEEDS_TO_FIND = 12
"""Runs within which a planted bug is found."""

SOON_FOUND = ("input-deleted-before-its-merge-counts", "output-left-out", "pruned-when-decided")
"""Planted bugs that the first runs find: these are looked for at each change."""

STORE_FAULTS = [DEPOSED, OUTAGE, BAD_WEATHER, LEADS_AGAIN, LEFT_BEHIND, TIER_MANIFEST_LOST]


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    directory.mkdir(parents=True, exist_ok=True)
    run = SharedRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error


@pytest.mark.parametrize("seed", more_at_length(range(FIRST, FIRST + SEEDS), 2))
def test_the_invariants_hold_under_random_faults(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("seed", more_at_length(range(FIRST + 1000, FIRST + 1000 + SEEDS)))
def test_they_hold_while_leaders_are_deposed_and_the_store_is_out(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / str(seed), faults=STORE_FAULTS)


@pytest.mark.parametrize("seed", more_at_length(range(FIRST + 2000, FIRST + 2000 + SEEDS), 2))
def test_they_hold_while_topics_are_compacted(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path / str(seed), faults=[COMPACTION, DEPOSED, BAD_WEATHER, LEADS_AGAIN, "crash"])


@pytest.mark.long
def test_runs_do_all_that_can_be_done_to_the_store(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    wanted = (
        "split committed", "split replayed", f"split {PASSED_OVER}", "split refused", "merged", "merge refused",
        "killed", "spans", "gone", "deleted", "read", "snapshots", ".log", ".seg",
    )  # fmt: skip
    for seed in range(FIRST + 3000, FIRST + 3040):
        (directory := tmp_path / str(seed)).mkdir()
        run = SharedRun(seed, directory, seconds=4.0, faults=STORE_FAULTS)
        outcomes = run.play()
        seen.update({f"split {kind}": count for kind, count in outcomes.splits.items()})
        seen["merged"] += outcomes.merges.get("merged", 0)
        seen["merge refused"] += outcomes.merges.get("refused", 0)
        seen["read"] += outcomes.served.get(Tier.REMOTE, 0)
        seen["snapshots"] += outcomes.snapshots
        for writers in run.writers.values():
            seen.update(writers.outcomes)
        seen.update(run.objects.changes)
        if all(seen[what] for what in wanted):
            return
    raise AssertionError(f"never seen: {[what for what in wanted if not seen[what]]}, but {seen}")


@pytest.mark.parametrize(
    "name", [name if name in SOON_FOUND else pytest.param(name, marks=pytest.mark.long) for name in SHARED_PLANTS]
)
def test_planted_bugs_of_a_shared_store_are_found_by_their_own_messages(name: str, tmp_path: Path) -> None:
    said = []
    with planted_in_the_store(name):
        for seed in range(1, 1 + SEEDS_TO_FIND):
            try:
                play(seed, tmp_path / str(seed), seconds=4.0, faults=BY_FAULTS.get(name, STORE_FAULTS))
            except Violation as violation:
                said.append(str(violation))
                if re.search(MESSAGES[name], said[-1]):
                    return
    raise AssertionError(f"nobody says {MESSAGES[name]!r}: {said}")


@pytest.mark.long  # that of whole nodes sees more, at each change
def test_a_run_is_determined_by_its_seed(tmp_path: Path) -> None:
    traces = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run = SharedRun(FIRST + 4000, tmp_path / name, seconds=2.0)
        traces.append((run.play().trace, sorted(run.bucket.objects)))
    assert traces[0] == traces[1]
