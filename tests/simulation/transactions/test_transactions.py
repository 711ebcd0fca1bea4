"""Transactions on clusters of whole nodes under random faults (E): see `atomicity` for what must hold.

Producers of both client generations, several of one transactional id at a time, write to all topics and commit offsets
with that, while nodes crash, leaders and coordinators move, and files are split and merged. Readers of committed
transactions read the tiers that there are.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.simulation.cluster.planted import planted
from tests.simulation.find import more_at_length, seed_that_finds
from tests.simulation.oracle import Violation
from tests.simulation.transactions.atomicity import outcome
from tests.simulation.transactions.load import TRANSACTIONS
from tests.simulation.transactions.planted import FOUND_BY, TRANSACTION_BREAKS, TRANSACTION_PLANTS
from tests.simulation.whole.run import WholeRun, play

KINDS = ("committed", "aborted", "left_out", "offsets", "write_cache", "journal", "queue_store")
"""Of transactions, of what readers are told of them, and the tiers that they read."""

SEEDS_TO_FIND = 10
"""Runs within which a planted bug is found; the first does, mostly."""


@pytest.mark.parametrize("seed", more_at_length([6, 10, 4, 11, 29, 33, 44, 51], always=2))
def test_transactions_are_atomic_to_whoever_reads_committed_ones(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, faults=[TRANSACTIONS])


@pytest.mark.long
def test_there_are_transactions_of_all_kinds_and_they_are_read_from_all_tiers(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in (6, 10, 12, *range(20, 40)):
        run = WholeRun(seed, tmp_path / str(seed), faults=[TRANSACTIONS, "transfer", "zombie"])
        seen.update({tier.value: slices for tier, slices in run.play().served.items()})
        assert run.transactions is not None
        atomicity = run.transactions.atomicity
        seen.update({outcome(committed): count for committed, count in atomicity.markers.items()})
        seen.update(left_out=atomicity.left_out, offsets=atomicity.offsets_shown, late=atomicity.late)
        if all(seen[kind] >= 5 for kind in KINDS) and seen["late"]:
            return
    raise AssertionError(f"none, or too few of some: {seen}")


@pytest.mark.long
@pytest.mark.parametrize("name", TRANSACTION_PLANTS)
def test_bugs_planted_in_transactions_are_found_by_messages_of_their_own(name: str, tmp_path: Path) -> None:
    with planted(name, TRANSACTION_PLANTS):
        seed = seed_that_finds(play, TRANSACTION_BREAKS[name], range(1, 1 + SEEDS_TO_FIND), tmp_path, [TRANSACTIONS])
        with pytest.raises(Violation) as found:
            play(seed, tmp_path / "again", faults=[TRANSACTIONS])
    assert any(words in str(found.value) for words in FOUND_BY[name]), found.value
