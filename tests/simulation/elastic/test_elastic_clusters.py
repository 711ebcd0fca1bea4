"""Clusters whose replicas move: all invariants of whole nodes hold, as their clients see them, and P besides.

P  a write group never has fewer voters than copies are wanted, no replica goes that has a vote, and a drain ends when
   nothing is left; in the end each write group has as many good replicas as in the beginning, where placement wants
   them, with everything in them that is committed, and no node keeps anything of another one
   a queue stays in the write group that it hashed to when it was made, with as many copies as its topic asked for
S  joins, drains and rebalances come to their end once there are no faults any more, and a node that was removed ends

A spare node or two join; any node is drained, which is cancelled at times; any node is dead for longer than
`nameserver.rebuild_after_seconds`, and returns when what it held is rebuilt, or in the middle of that; replicas are
spread evenly; write groups are added; a node that is empty is removed. All of it is asked for as operators ask for it,
of any node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.elastic.planted import ELASTIC_BREAKS, ELASTIC_PLANTS, FOUND_BY, WITH_CLASSES
from tests.simulation.elastic.run import CLASSES, play
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.steps import parting

SEEDS = range(1, 13)
"""In the first a node is rebuilt within half a minute, in the second one another one is emptied."""

SEED_THAT_GROWS = 3
"""Twice, while a node joins and another one is drained."""

SEEDS_WITH_CLASSES = (9, 4, 5, 6, 13, 15, 16, 18)
"""In the first one a node is drained and removed while one of its write groups has one copy in all."""

SEEDS_TO_FIND = 10
"""Runs within which a planted bug is found; most do."""

KINDS = {
    "joined", "drained", "cancelled", "emptied", "removed", "lost", "rebuilding", "rebuilt", "balancing", "balanced",
    "grown",
}  # fmt: skip
"""The moves, and ends of moves, that an operator brings about, and a machine that is lost."""


@pytest.mark.parametrize("seed", more_at_length(SEEDS))
def test_the_invariants_hold_while_replicas_move_under_random_faults(seed: int, tmp_path: Path) -> None:
    outcomes = play(seed, tmp_path / str(seed))
    assert {"joined", "balanced"} <= outcomes.moves.keys()


def test_the_invariants_hold_while_write_groups_are_added(tmp_path: Path) -> None:
    assert "grown" in play(SEED_THAT_GROWS, tmp_path).moves


@pytest.mark.parametrize("seed", more_at_length(SEEDS_WITH_CLASSES))
def test_the_invariants_hold_where_topics_choose_their_number_of_copies(seed: int, tmp_path: Path) -> None:
    assert "classed" in play(seed, tmp_path, faults=[CLASSES]).moves


@pytest.mark.long  # many runs
def test_all_kinds_of_moves_come_about(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(100, 140):
        seen |= play(seed, tmp_path / str(seed)).moves.keys()
        if seen >= KINDS:
            return
    raise AssertionError(f"never: {sorted(KINDS - seen)}")


@pytest.mark.long
@pytest.mark.parametrize("name", ELASTIC_PLANTS)
def test_bugs_planted_where_replicas_move_are_found_by_checks_of_their_own(name: str, tmp_path: Path) -> None:
    seeds = range(1, 1 + SEEDS_TO_FIND)
    with planted(name, ELASTIC_PLANTS):
        faults = [CLASSES] if name in WITH_CLASSES else []
        assert seed_that_finds(play, ELASTIC_BREAKS[name], seeds, tmp_path, faults, says=FOUND_BY[name])


@pytest.mark.long  # that of whole nodes sees most of it, at each change
def test_what_elastic_clusters_do_depends_on_nothing_but_the_seed(tmp_path: Path) -> None:
    assert not parting("elastic", SEEDS[1], tmp_path)
