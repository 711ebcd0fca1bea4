"""One simulated run of a cluster of whole nodes in which queues move between write groups, from one seed. Each write
group has a replica on each node.

An operator asks any node to have the slot of some queue move, while clients are at work, under the faults that whole
nodes have anyway. In the end every move that was begun has come to its end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.simulation.cluster.run import HEALED_SECONDS, Outcomes
from tests.simulation.moving.planted import CLUSTER_PLANTS
from tests.simulation.oracle import require, seed_failed
from tests.simulation.whole.clients import Work
from tests.simulation.whole.cluster import WholeCluster, WholeSettings
from tests.simulation.whole.node import WholeNode
from tests.simulation.whole.run import WholeRun

from mainstem.errors import MainstemError
from mainstem.model import Topic, slot_of
from mainstem.nameserver.nameserver import Nameserver
from mainstem.storage.role import Storage

LOOK_SECONDS = 0.2

ANSWER_SECONDS = 5.0
"""How long the operator waits for an answer."""


class MovingSettings(WholeSettings):
    """There are at least two write groups, and half of the journals are short, so that snapshots are sent."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.groups = rng.choice([2, 3, 4])
        self.begins_old = False
        if rng.random() < 0.5:
            self.forget_soon()


class MovingNode(WholeNode):
    cluster: MovingCluster

    def watch_storage(self, storage: Storage, life: Any) -> None:
        super().watch_storage(storage, life)
        for plant in self.cluster.plants:
            plant(storage)


class MovingCluster(WholeCluster):
    node_kind: ClassVar[type[WholeNode]] = MovingNode
    plants: Sequence[Callable[[Storage], None]] = ()

    def newest_metadata(self) -> Nameserver | None:
        """That of the node which has applied most; None: no node has any."""
        known = [node.roles.nameserver for node in self.nodes.values() if node.serving and node.roles]
        return max(known, key=lambda nameserver: nameserver.replica.applied_index, default=None)

    def group_of(self, queue_id: int) -> int:
        newest = self.newest_metadata()
        return newest.lookups.write_group(queue_id) if newest is not None else super().group_of(queue_id)


class Mover:
    """Asks for moves until the work ends, and then waits for what is under way; `asked` counts those that began."""

    coordinators: random.Random
    """Draws when a coordinator's queue is to move."""

    def __init__(self, cluster: MovingCluster, work: Work, rng: random.Random) -> None:
        self._cluster = cluster
        self._work = work
        self._rng = rng
        self.asked = 0

    async def run(self) -> None:
        while not self._work.ending:
            await self._ask()
            await asyncio.sleep(self._rng.choice([0.0, 0.1, 0.3, 1.0]))
        looks = int(HEALED_SECONDS / LOOK_SECONDS)
        for look in range(looks):
            if not self.wished():
                return
            if look > looks // 2:
                await self.take_back_what_may_wait()
            await asyncio.sleep(LOOK_SECONDS)
        why = [node.serving.mover.standing for node in self._cluster.nodes.values() if node.serving is not None]
        require(False, f"slots do not come to where they are to move: {self.wished()}, {why}", "S")

    async def take_back_what_may_wait(self) -> None:
        """Take wishes back that may have to wait until something else is done: none."""

    def wished(self) -> list[int]:
        """The slots on their way."""
        newest = self._cluster.newest_metadata()
        return sorted(newest.lookups.moving_slots.wishes) if newest is not None else [-1]

    async def _ask(self) -> None:
        nodes = [node for node in self._cluster.nodes.values() if node.serving is not None and node.roles is not None]
        places = self._work.partitions()
        if self.coordinators.random() < 0.3:
            internal = [topic for topic in self._work.kept() if topic.internal]
            places = [(topic, partition) for topic in internal for partition in range(topic.partitions)] or places
        if not nodes or not places:
            return
        node, (topic, partition) = self._rng.choice(nodes), self._rng.choice(places)
        assert node.roles is not None
        nameserver = node.roles.nameserver
        moving, slot = nameserver.lookups.moving_slots, slot_of(topic.queue_id(partition))
        now = nameserver.lookups.write_group(topic.queue_id(partition))
        others = [group for group in range(nameserver.lookups.write_groups()) if group != now]
        if not others or slot in moving.wishes:
            return
        group = self._rng.choice(others)

        self._asks(topic, partition, nameserver, group)

        async def move() -> bool:
            try:
                await nameserver.operations.move_slot_of(topic.name, partition, group)
            except MainstemError:
                return False
            return True

        if await node.call(move(), patience=ANSWER_SECONDS):
            self.asked += 1
            self._cluster.history.note("asked to move", topic.name, partition, group)

    def _asks(self, topic: Topic, partition: int, nameserver: Nameserver, group: int) -> None:
        """A move is about to be asked for."""


class MovingClusterRun(WholeRun):
    """`MovingClusterRun(seed, directory).play()` raises `Violation` when an invariant does not hold."""

    cluster: MovingCluster
    _ending_seconds = 2 * HEALED_SECONDS

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        plants = [CLUSTER_PLANTS[name] for name in faults if name in CLUSTER_PLANTS]
        super().__init__(
            seed, directory, seconds=seconds or 6.0, faults=[name for name in faults if name not in CLUSTER_PLANTS]
        )
        self.cluster.plants = plants
        self.work.compacting = ["compact", "compact", "compact,delete"]
        self.mover = self._mover(random.Random(f"{seed} mover"))
        self.mover.coordinators = random.Random(f"{seed} coordinators")

    def _mover(self, rng: random.Random) -> Mover:
        return Mover(self.cluster, self.work, rng)

    def _settings(self, rng: random.Random) -> WholeSettings:
        return MovingSettings(rng)

    def _new_cluster(self, *arguments: Any) -> MovingCluster:
        return MovingCluster(*arguments)

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        yield self.mover.run()

    def _outcomes(self) -> Outcomes:
        outcomes = super()._outcomes()
        numbers: dict[int, int] = {}
        if (newest := self.cluster.newest_metadata()) is not None:
            numbers = dict(newest.lookups.moving_slots.numbers)
        outcomes.moves = {"asked": self.mover.asked, "moved": sum(numbers.values())}
        return outcomes


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = MovingClusterRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
