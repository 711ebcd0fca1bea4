"""Clusters whose brokers have no storage: all invariants of whole nodes hold, as clients see them through brokers.

Three nodes store and keep the metadata, with all the faults that whole nodes have; or three others keep it, which die
and stand still as well. Two brokers die, stand still until they are held for dead and go on with what they knew, and
lose sight of one node that stores, or keeps the metadata, or of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.simulation.apart.planted import BROKER_BREAKS, BROKER_PLANTS
from tests.simulation.apart.run import BROKER_FAULTS, VOTES_APART, play
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.migrating_groups.load import MIGRATING_GROUPS
from tests.simulation.share_groups.load import SHARE_GROUPS
from tests.simulation.steps import parting

SEEDS = range(4, 11)

FAULTS = ["no majority", "crash", "weather"]
"""Those in which a leader's log has for a while what is not confirmed."""

SEEDS_TO_FIND = 5
"""Runs within which a planted bug is found: the first does."""

SEED_THAT_LAGS = 1_600_010
"""A broker is behind with the metadata when it is asked what was committed in a topic that is deleted."""


@pytest.mark.parametrize("seed", more_at_length([*SEEDS, SEED_THAT_LAGS]))
def test_the_invariants_hold_behind_brokers_without_storage(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path / str(seed))
    assert outcomes.blocks


def test_the_invariants_hold_while_brokers_die_and_lose_sight_of_others(tmp_path: Path) -> None:
    outcomes = play(1, tmp_path, faults=BROKER_FAULTS)
    assert outcomes.acknowledged
    assert outcomes.happened.keys() <= set(BROKER_FAULTS)


@pytest.mark.parametrize("seed", more_at_length(range(1, 9)))
def test_the_invariants_hold_where_nodes_that_store_do_not_keep_the_metadata(seed: int, tmp_path: Path) -> None:
    assert play(seed, tmp_path, faults=[VOTES_APART]).blocks


@pytest.mark.parametrize("load", [SHARE_GROUPS, MIGRATING_GROUPS])
@pytest.mark.parametrize("seed", more_at_length(range(1, 5), always=0))
def test_groups_of_all_kinds_keep_their_promises_behind_brokers(seed: int, load: str, tmp_path: Path) -> None:
    assert play(seed, tmp_path, faults=[load]).blocks


@pytest.mark.parametrize(
    ("name", "seeds", "faults"),
    [
        ("tails-beyond-what-is-confirmed", range(1, 1 + SEEDS_TO_FIND), FAULTS),
        ("offsets-of-deleted-topics-told", [SEED_THAT_LAGS], ()),
    ],
)
def test_bugs_planted_between_brokers_and_storage_are_found_by_checks_of_their_own(
    name: str, seeds: Sequence[int], faults: Sequence[str], tmp_path: Path
) -> None:
    with planted(name, BROKER_PLANTS):
        assert seed_that_finds(play, BROKER_BREAKS[name], seeds, tmp_path, faults)


@pytest.mark.long  # that of whole nodes sees most of it, at each change
def test_what_brokers_apart_do_depends_on_nothing_but_the_seed(tmp_path: Path) -> None:
    assert not parting("brokers", SEEDS[0], tmp_path)
