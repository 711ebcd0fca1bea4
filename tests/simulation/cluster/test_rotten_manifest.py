"""Manifests with a flipped bit, or a page of zeros, under nodes that start on them: a node refuses one by name and says
what to do, or the manifest says what it said before."""

from __future__ import annotations

from pathlib import Path

from tests.simulation.cluster.faults import ROTTEN_MANIFEST
from tests.simulation.cluster.run import Run

SEEDS = range(5, 11)
"""Some in which every outcome comes."""


def test_a_rotten_manifest_is_refused_or_without_effect(tmp_path: Path) -> None:
    refused: list[str] = []
    unharmed = 0
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        run = Run(seed, tmp_path / str(seed), seconds=4.0, faults=[ROTTEN_MANIFEST, "crash"])
        run.play()
        refused += run.faults.manifests_refused
        unharmed += run.faults.manifests_unharmed
    assert len(refused) > len(SEEDS)
    assert unharmed > len(SEEDS)
    assert any("damaged" in why or "cannot be read" in why for why in refused)
    assert any("old copy" in why for why in refused)  # the log of sqlite ends early
