"""Clusters with a remote tier, under random faults of nodes, networks, disks and the object store: leaders change
between the intent, the upload and the record, replicas are away and come back, the store is out for a while and does
late what was given up, and local files go soon (U, and A, B, C, F, J as in `test_cluster.py`).

U  the logs and the object store agree on the remote tier: what counts is in the store, whole, from the moment at which
   it counts; nothing is deleted that counts; all replicas count the same; in the end nothing else is in the store
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.simulation.cluster.run import LEFT_BEHIND, Outcomes
from tests.simulation.find import more_at_length
from tests.simulation.oracle import Violation, seed_failed
from tests.simulation.tiered.planted import MESSAGES, TIER_PLANTS, planted_in_the_tier
from tests.simulation.tiered.run import CopyingRun, TieredRun
from tests.simulation.tiered.store_run import BAD_WEATHER, DEPOSED, LEADS_AGAIN, OUTAGE

from mainstem.model import Tier

SEEDS = 40
CHUNK = 1

SEEDS_TO_FIND = 24
"""Runs within which a planted bug is found."""

SOON_FOUND = ("number-given-twice", "local-file-dropped-early")
"""Planted bugs that the first runs find: these are looked for at each change."""


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    directory.mkdir(parents=True, exist_ok=True)
    run = TieredRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error


@pytest.mark.parametrize("first", more_at_length(range(3000, 3000 + SEEDS, CHUNK)))
def test_the_invariants_hold_under_random_faults(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed))


@pytest.mark.parametrize("first", more_at_length(range(4000, 4000 + SEEDS, CHUNK), 0))  # the next test plays some
def test_they_hold_while_leaders_are_deposed_and_the_store_is_out(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + CHUNK):
        play(seed, tmp_path / str(seed), faults=[DEPOSED, OUTAGE, BAD_WEATHER, LEADS_AGAIN, LEFT_BEHIND])


@pytest.mark.parametrize("at_length", [False, pytest.param(True, marks=pytest.mark.long)])
def test_runs_upload_and_delete_and_read_what_is_in_the_store_alone(at_length: bool, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    def is_enough() -> bool:
        usual = ("recorded", "kept", "spans", "read", "local copies that went")
        rare = ("killed", "refused", "gone", ".log", ".seg")
        often = all(seen[what] > 5 * at_length for what in (*usual, "deleted"))
        return often and (not at_length or all(seen[what] for what in rare))

    for seed in range(4002, 4062):
        (directory := tmp_path / str(seed)).mkdir()
        run = TieredRun(seed, directory, seconds=4.0, faults=[DEPOSED, OUTAGE, BAD_WEATHER, LEADS_AGAIN])
        seen["read"] += run.play().served.get(Tier.REMOTE, 0)
        seen["local copies that went"] += run.local_copies_gone()
        for tierers in run.tierers.values():
            seen.update(tierers.outcomes)
        seen.update(run.objects.changes)
        if is_enough():
            break
    assert is_enough(), seen


@pytest.mark.parametrize("at_length", [False, pytest.param(True, marks=pytest.mark.long)])
def test_they_hold_while_copying_is_switched_off_and_on(at_length: bool, tmp_path: Path) -> None:
    """Files that were passed over come to count behind the tier's position, in spans that overlap others."""
    fills, least = 0, 10 if at_length else 1
    for seed in range(5000, 5000 + (24 if at_length else 8)):
        (directory := tmp_path / str(seed)).mkdir()
        run = CopyingRun(seed, directory, seconds=6.0, faults=[DEPOSED, BAD_WEATHER, LEADS_AGAIN, LEFT_BEHIND])
        try:
            run.play()
        except Exception as error:
            raise seed_failed(seed, error) from error
        fills += run.fills()
        if fills >= least and not at_length:
            break
    assert fills >= least


@pytest.mark.parametrize(
    "name", [name if name in SOON_FOUND else pytest.param(name, marks=pytest.mark.long) for name in TIER_PLANTS]
)
def test_planted_bugs_of_the_tier_are_found_by_their_own_messages(name: str, tmp_path: Path) -> None:
    said = []
    with planted_in_the_tier(name):
        for seed in range(1, 1 + SEEDS_TO_FIND):
            try:
                play(seed, tmp_path / str(seed), seconds=4.0, faults=[DEPOSED, BAD_WEATHER, LEADS_AGAIN])
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
        run = TieredRun(4001, tmp_path / name, seconds=2.0)
        traces.append((run.play().trace, sorted(run.bucket.objects)))
    assert traces[0] == traces[1]
