"""Which seeds are played when; and does the simulation find a bug? Only a check of the right invariant counts, not any
error that the bug causes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
from tests.simulation.oracle import Violation


class Play(Protocol):
    def __call__(self, seed: int, directory: Path, *, faults: Sequence[str] = ()) -> object: ...


def at_length(*values: object) -> Any:
    """Parameters with which a test is run by `make test-all` alone."""
    return pytest.param(*values, marks=pytest.mark.long)


def more_at_length(seeds: Iterable[int], always: int = 1) -> list[Any]:
    """The first `always` of the seeds are played at each change of the code, the others by `make test-all` as well."""
    return [seed if place < always else at_length(seed) for place, seed in enumerate(seeds)]


def seed_that_finds(
    play: Play, letters: str, seeds: Iterable[int], directory: Path, faults: Sequence[str] = (), *, says: str = ""
) -> int:
    """The first of these seeds with which a check of one of these invariants fails, that which `says` so. Raises
    `AssertionError`, with what was seen instead, when there is none."""
    others = []
    for seed in seeds:
        try:
            play(seed, directory / str(seed), faults=faults)
        except Violation as violation:
            if violation.breaks and violation.breaks in letters and says in str(violation):
                return seed
            others.append(str(violation))
    raise AssertionError(f"no check of {letters} failed; what did: {others or 'nothing'}")
