"""Share groups on clusters of whole nodes under random faults (Q): see `windows` and `deliveries` for what must hold.

Members join, read, acknowledge, die and return, while nodes crash, leaders and coordinators move, files are split and
merged, and locks run out. In the end everything is given out that was not done.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.share_groups.load import SHARE_GROUPS
from tests.simulation.share_groups.planted import SHARE_BREAKS, SHARE_FOUND_BY, SHARE_PLANTS
from tests.simulation.transactions.load import TRANSACTIONS
from tests.simulation.whole.run import WholeRun, play

SEEDS_TO_FIND = 10
"""Runs within which a planted bug is found; the first few do, mostly."""

ALWAYS = "delivered-to-two-at-once"
"""The plant that is looked for at each change: it is found within a second."""

BROUGHT_TO_LIGHT_BY = {
    "share-lock-lost-at-failover": ["transfer"],
    "renewal-forgotten": ["clock"],
    "lock-never-runs-out": ["clock"],
}
"""Per planted bug the faults that show it, where these are not `FAULTS`."""
FAULTS = ["transfer", "restart"]


@pytest.mark.parametrize("seed", more_at_length(range(1, 9)))
def test_records_are_given_to_one_member_at_a_time_and_none_is_lost(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, faults=[SHARE_GROUPS, *FAULTS])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 26))
def test_share_groups_get_what_transactions_have_committed(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, faults=[SHARE_GROUPS, TRANSACTIONS, "transfer", "zombie"])


@pytest.mark.long
def test_members_meet_with_all_that_may_become_of_records(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 12):
        run = WholeRun(seed, tmp_path / str(seed), faults=[SHARE_GROUPS, *FAULTS])
        run.play()
        assert run.shares is not None
        seen.update(run.shares.deliveries.seen)
        if all(seen[kind] >= 10 for kind in ("reigns", "given out again", "answered", "refused", "renewed")):
            return
    raise AssertionError(f"none, or too few of some: {seen}")


@pytest.mark.parametrize(
    "name", [name if name == ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in SHARE_PLANTS]
)
def test_bugs_planted_in_share_groups_are_found_by_messages_of_their_own(name: str, tmp_path: Path) -> None:
    with planted(name, SHARE_PLANTS):
        assert seed_that_finds(
            play,
            SHARE_BREAKS[name],
            range(1, 1 + SEEDS_TO_FIND),
            tmp_path,
            [SHARE_GROUPS, *BROUGHT_TO_LIGHT_BY.get(name, FAULTS)],
            says=SHARE_FOUND_BY[name],
        )
