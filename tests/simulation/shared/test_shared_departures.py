"""Replicas of a cluster with a shared store leave a node and come back: nothing but rows and the unsplit end of the log
is copied, and nothing that others count on is deleted (invariants as in `test_shared_store.py`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND
from tests.simulation.cluster.stories.test_departures import MovedWhileAway, ThereAndBack
from tests.simulation.shared.run import SharedRun


class SharedThereAndBack(SharedRun, ThereAndBack):
    """Those of the files in the store that a node counts go with its replicas."""

    async def _begin(self) -> tuple[SimulatedNode, list[asyncio.Task[None]]]:
        new, working = await super()._begin()
        self.equip(new)
        return new, working

    def _files(self, node: SimulatedNode) -> list[str]:
        return list(node.storage.remote.manifest.files)


class SharedCrashingOnTheWay(SharedThereAndBack):
    crashes = True


class SharedMovedWhileAway(SharedThereAndBack, MovedWhileAway):
    pass


@pytest.mark.parametrize(
    ("seed", "story"),
    [
        (1, SharedThereAndBack),
        *[pytest.param(seed, SharedThereAndBack, marks=pytest.mark.long) for seed in range(2, 6)],
        *[pytest.param(seed, SharedCrashingOnTheWay, marks=pytest.mark.long) for seed in range(1, 6)],
        *[pytest.param(seed, SharedMovedWhileAway, marks=pytest.mark.long) for seed in range(1, 5)],
    ],
)
def test_a_replica_takes_rows_with_it_and_leaves_the_store_alone(
    tmp_path: Path, seed: int, story: type[SharedThereAndBack]
) -> None:
    run = story(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.directory = tmp_path
    run.play()
