"""Access rules, quotas and credentials that change while nodes of a cluster fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation, seed_failed
from tests.simulation.whole.access import AccessRun

from mainstem.security.quotas.quota_table import QuotaTable

SECONDS = 4.0


def played(seed: int, directory: Path) -> AccessRun:
    directory.mkdir(parents=True, exist_ok=True)
    run = AccessRun(seed, directory, seconds=SECONDS, faults=["transfer", "restart", "pause", "cut off"])
    try:
        run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
    return run


@pytest.mark.parametrize("seed", more_at_length([1, 2]))
def test_rules_quotas_and_users_are_as_they_were_acknowledged(seed: int, tmp_path: Path) -> None:
    run = played(seed, tmp_path / str(seed))
    for one in run.changed:
        assert one.acknowledged > 0, one.kind


def test_a_quota_that_is_lost_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each third change of quotas is not made, on all nodes alike or not."""
    change, made = QuotaTable.change, 0

    def forgetful(table: QuotaTable, *arguments: Any) -> None:
        nonlocal made
        made += 1
        if made % 3:
            change(table, *arguments)

    monkeypatch.setattr(QuotaTable, "change", forgetful)
    with pytest.raises(Violation, match=r"quota|same metadata"):
        played(1, tmp_path)
