"""One simulated run of a cluster of whole nodes in which queues move between write groups whose replicas are on other
nodes, from one seed: each write group has fewer replicas than there are nodes.

In the end each node of a write group reads all that its queues have, whichever write groups they came through.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.moving.clusters import (
    ANSWER_SECONDS,
    Mover,
    MovingCluster,
    MovingClusterRun,
    MovingNode,
    MovingSettings,
)
from tests.simulation.oracle import seed_failed
from tests.simulation.whole.cluster import WholeSettings

from mainstem.errors import MainstemError
from mainstem.nameserver.nameserver import Nameserver

COPIES = 3


class ApartSettings(MovingSettings):
    """Four nodes, or five, with three copies of everything: no topic asks for more of them."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.nodes = rng.choice([4, 4, 5])
        self.groups = rng.choice([3, 4])
        self.forget_soon()  # guests come once logs begin behind what these have of later stays

    @property
    def copies(self) -> int:
        return COPIES


class ApartNode(MovingNode):
    def holds(self, group: int, index: int) -> bool:
        known = len(self.storage.groups) if hasattr(self, "storage") else 0
        return group < known and super().holds(group, index)


class ApartCluster(MovingCluster):
    node_kind = ApartNode


class ApartMover(Mover):
    async def take_back_what_may_wait(self) -> None:
        """Guests come once a log begins behind some fence, which may be its last block until somebody writes again."""
        nodes = [node for node in self._cluster.nodes.values() if node.serving is not None and node.roles is not None]
        for node in nodes[:1]:
            assert node.roles is not None
            nameserver = node.roles.nameserver
            for slot, wish in list(nameserver.lookups.moving_slots.wishes.items()):
                if not wish.begun:
                    await node.call(self._kept(nameserver, slot), patience=ANSWER_SECONDS)

    async def _kept(self, nameserver: Nameserver, slot: int) -> None:
        with suppress(MainstemError):  # it has begun meanwhile
            await nameserver.operations.keep_slot(slot)


class ApartRun(MovingClusterRun):
    """`ApartRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    def _mover(self, rng: random.Random) -> Mover:
        return ApartMover(self.cluster, self.work, rng)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return ApartSettings(rng)

    def _new_cluster(self, *arguments: Any) -> ApartCluster:
        return ApartCluster(*arguments)

    def _holders_of(self, group: int) -> Collection[SimulatedNode]:
        newest = self.cluster.newest_metadata()
        assert newest is not None, "nodes have started"
        return [self.cluster.nodes[node_id] for node_id in newest.lookups.placements()[group]]

    def _has_all_of(self, node: SimulatedNode) -> Callable[[int], bool]:
        """A node may keep what a queue had there once, of which it has no earlier part any more."""
        held = {self.cluster.group_of(queue_id) for queue_id in self._queue_ids}
        here = {group for group in held if node in self._holders_of(group)}
        return lambda queue_id: self.cluster.group_of(queue_id) in here


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Any:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = ApartRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
