"""An elastic cluster behind two brokers without storage: replicas move, nodes that store come, are drained, stay dead
and go, and write groups are added, while brokers die, stand still and lose sight of them. Brokers coordinate all
groups and transactions, and follow whoever leads meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.simulation.apart.brokers import BROKERS, ApartCluster, ApartSettings
from tests.simulation.apart.run import ApartRun
from tests.simulation.cluster.run import Outcomes
from tests.simulation.elastic.cluster import ElasticCluster, ElasticSettings
from tests.simulation.elastic.run import ElasticRun
from tests.simulation.oracle import play_seed

FIRST_BROKER = 21
"""Behind all nodes that store, which are joined by two at most."""


class BehindBrokersSettings(ApartSettings, ElasticSettings):
    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.groups = rng.choice([2, 3, 4])
        self.brokers = range(FIRST_BROKER, FIRST_BROKER + BROKERS)


class BehindBrokersCluster(ApartCluster, ElasticCluster):
    settings: BehindBrokersSettings


class BehindBrokersRun(ApartRun, ElasticRun):
    """`BehindBrokersRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    cluster: BehindBrokersCluster

    def _settings(self, rng: random.Random) -> BehindBrokersSettings:
        return BehindBrokersSettings(rng)

    def _new_cluster(self, *arguments: Any) -> BehindBrokersCluster:
        return BehindBrokersCluster(*arguments)


def play(seed: int, directory: Path, *, seconds: float | None = None) -> Outcomes:
    """Play one run; a failure names its seed."""
    return play_seed(BehindBrokersRun, seed, directory, seconds)
