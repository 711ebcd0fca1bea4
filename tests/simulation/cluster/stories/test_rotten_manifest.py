"""Manifests with a flipped bit, or a page of zeros, or gone, under nodes that start on them: a node refuses one by name
and says what to do, or the manifest says what it said before. One that is made of its copy does, too, unless that is
damaged as well, and then the repair names it."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.cluster.faults import ROTTEN_MANIFEST
from tests.simulation.cluster.run import Run

SEEDS = range(20, 100)
"""As many are played as it takes until each outcome has come some times."""

OFTEN = 3


def test_a_rotten_manifest_is_refused_or_without_effect(tmp_path: Path) -> None:
    refused: list[str] = []
    unharmed = made = copies_refused = 0
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        run = Run(seed, tmp_path / str(seed), seconds=4.0, faults=[ROTTEN_MANIFEST, "crash"])
        run.play()
        refused += run.faults.manifests_refused
        unharmed += run.faults.manifests_unharmed
        made += run.faults.manifests_made
        copies_refused += run.faults.copies_refused
        is_old = any("old copy" in why for why in refused)  # the log of sqlite ends early
        if is_old and min(len(refused), unharmed) > OFTEN and min(made, copies_refused) > 1:
            break
    assert len(refused) > OFTEN
    assert unharmed > OFTEN
    assert any("damaged" in why or "cannot be read" in why for why in refused)
    assert is_old
    assert made > 1
    assert copies_refused > 1
