"""Groups whose members change from the one protocol to the other and back, on clusters of whole nodes under random
faults (H): see `ownership` for what must hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.migrating_groups.load import MIGRATING_GROUPS
from tests.simulation.migrating_groups.planted import (
    MIGRATION_BREAKS,
    MIGRATION_FOUND_BY,
    MIGRATION_PLANTS,
    MIGRATION_SHOWN_BY,
)
from tests.simulation.whole.run import WholeRun, play

SEEDS = (6, 5, 3, 4, 7, 8, 9, 10, 1, 2)
"""The quickest first. A planted bug is found within these; the first few do, mostly."""

ALWAYS = "member-fenced-too-late"
"""The plant that is looked for at each change."""

FAULTS = [MIGRATING_GROUPS, "transfer", "restart", "clients cut off", "connections break"]

ALL_FAULTS = [
    *FAULTS, "crash", "crash later", "rolling restart", "pause", "zombie", "cut off", "one way", "bridge", "weather",
    "slow link", "slow disk",
]  # fmt: skip
"""Coordinators are killed or stand still, nodes do not hear each other, what they say is lost, and disks take long."""


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_partitions_have_one_member_at_a_time_and_offsets_are_kept_while_groups_change(
    seed: int, tmp_path: Path
) -> None:
    play(seed, tmp_path, faults=FAULTS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 28))
def test_groups_change_while_nodes_crash_and_do_not_reach_each_other(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, faults=ALL_FAULTS)


@pytest.mark.long
def test_groups_meet_with_all_that_may_become_of_them(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in (*SEEDS, *range(11, 21)):  # as many as it takes
        run = WholeRun(seed, tmp_path / str(seed), faults=FAULTS)
        run.play()
        assert run.migrating is not None
        seen.update(run.migrating.ownership.seen)
        if all(seen[kind] >= 10 for kind in ("reigns", "classic to consumer", "consumer to classic", "late, refused")):
            return
    raise AssertionError(f"none, or too few of some: {seen}")


@pytest.mark.parametrize(
    "name", [name if name == ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in MIGRATION_PLANTS]
)
def test_bugs_planted_in_groups_that_change_are_found_by_messages_of_their_own(name: str, tmp_path: Path) -> None:
    with planted(name, MIGRATION_PLANTS):
        assert seed_that_finds(
            play,
            MIGRATION_BREAKS[name],
            SEEDS,
            tmp_path,
            [MIGRATING_GROUPS, *MIGRATION_SHOWN_BY[name]] if name in MIGRATION_SHOWN_BY else FAULTS,
            says=MIGRATION_FOUND_BY[name],
        )
