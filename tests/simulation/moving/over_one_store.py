"""One simulated run of a cluster of whole nodes over a shared store in which queues move between write groups whose
replicas are on other nodes, from one seed.

A node to which a queue comes has no file of the write group before, and gets none: it follows that one's log, which
says which objects count. All that holds of a shared store holds (U), and each node of a write group reads all that its
queues have (A), whoever put it into the store.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.simulation.cluster.node import READ_CACHE, SimulatedNode
from tests.simulation.moving.other_nodes import FEWER, REPLACED, ApartCluster, ApartRun, ApartSettings
from tests.simulation.moving.other_nodes import play as play_apart
from tests.simulation.oracle import seed_failed
from tests.simulation.shared.run import SharedFaults, SharedRun
from tests.simulation.tiered.store_run import GRACE_MS
from tests.simulation.whole.cluster import WholeSettings
from tests.simulation.whole.faults import WholeFaults

from mainstem.node.config import NodeConfig

ONE_STORE = "one store"
"""Stands for a shared store, as transactions do among the faults."""


class OneStoreSettings(ApartSettings):
    def config(self, node_id: int) -> NodeConfig:
        return replace(super().config(node_id), store_dir="s3://store", read_cache=READ_CACHE)


class OneStoreFaults(SharedFaults, WholeFaults):
    """Those of a shared store, and of whole nodes."""


class OneStoreRun(SharedRun, ApartRun):
    """`OneStoreRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    new_faults = OneStoreFaults
    cluster: ApartCluster
    faults: OneStoreFaults

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        names = [name for name in faults if name not in (FEWER, REPLACED, ONE_STORE)]
        super().__init__(seed, directory, seconds=seconds, faults=names)
        self.objects.joins = lambda: True  # the metadata of whole nodes is at the newest level
        self._have(seed, faults)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return OneStoreSettings(rng)

    async def _create_topics(self) -> None:
        await super(SharedRun, self)._create_topics()

    async def _delete_records(self) -> None:
        """Operators do that (`whole/admin.py`), and know what they were answered."""

    def _let_a_day_pass(self) -> None:
        """Whole nodes hear of each other's clocks with heartbeats, which a step of a day would outrun: the tier alone
        takes it to be over."""
        for node in self.cluster.nodes.values():
            remote = node.storage.remote
            remote.now_ms = partial(_a_day_later, remote.now_ms)

    async def _finish_work(self) -> None:
        await super()._finish_work()
        if self.transactions is not None:
            await self.transactions.read_all()

    async def _read_all(self, node: SimulatedNode) -> None:
        await super()._read_all(node)
        for queue_id in self._queue_ids:
            await self._read_before(node, queue_id)


def _a_day_later(now_ms: Callable[[], int]) -> int:
    return now_ms() + GRACE_MS


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Any:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = OneStoreRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error


def play_moving_queues(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Any:
    """Play one run, over a shared store if the faults say so."""
    return (play if ONE_STORE in faults else play_apart)(seed, directory, seconds=seconds, faults=faults)
