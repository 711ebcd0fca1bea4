"""One run: what runs of whole nodes do, through brokers that die, stand still, and lose sight of the others."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.simulation.apart.brokers import ApartCluster, ApartSettings, NodeApart
from tests.simulation.cluster.faults import Kind
from tests.simulation.cluster.run import HasLived, Outcomes
from tests.simulation.oracle import seed_failed
from tests.simulation.whole.client import Partition
from tests.simulation.whole.clients import Reader
from tests.simulation.whole.cluster import WholeCluster, WholeSettings
from tests.simulation.whole.connection import NoAnswer
from tests.simulation.whole.faults import WholeFaults
from tests.simulation.whole.run import WholeRun

TAIL_READERS, READS_MAX = 3, 30

STILL_SECONDS = (0.3, 1.0, 3.0, 5.0)
"""The longer ones are longer than it takes until a broker is held for dead."""

BROKER_FAULTS = ("broker dies", "broker stands still", "broker sees no store", "broker sees nobody")

VOTES_APART = "votes apart"
"""Stands for nodes without storage that alone vote on the metadata, as transactions do among the faults."""


class ApartFaults(WholeFaults):
    _cluster: ApartCluster

    def kinds(self) -> list[Kind]:
        return [
            *super().kinds(),
            ("broker dies", self._kill_broker),
            ("broker stands still", self._stop_broker),
            ("broker sees no store", self._hide_a_store),
            ("broker sees nobody", self._hide_all),
            *([("voter dies", self._kill_voter), ("voter stands still", self._stop_voter)] if self._voters else []),
        ]

    @property
    def _voters(self) -> list[NodeApart]:
        return list(self._cluster.voters.values())

    def _broker(self) -> NodeApart:
        return self._rng.choice(list(self._cluster.brokers.values()))

    async def heal(self) -> None:
        await super().heal()
        for node in (*self._voters, *self._cluster.brokers.values()):
            if not node.up:
                await node.start()

    async def _kill_broker(self) -> None:
        await self._kill(self._broker())

    async def _kill_voter(self) -> None:
        await self._kill(self._rng.choice(self._voters))

    async def _kill(self, node: NodeApart) -> None:
        if node.up and node.roles is not None:
            node.kill()
            await asyncio.sleep(self._some_time())
            if not node.up:
                await node.start()

    async def _stop_broker(self) -> None:
        """It serves what it knew when it goes on."""
        await self._stop(self._broker())

    async def _stop_voter(self) -> None:
        await self._stop(self._rng.choice(self._voters))

    async def _stop(self, node: NodeApart) -> None:
        life = node.lives[-1]
        if node.up and not life.stopped:
            self._cluster.loop.stop_life(life)
            await asyncio.sleep(self._rng.choice(STILL_SECONDS))
            if life.alive:
                self._cluster.loop.continue_life(life)

    async def _hide_a_store(self) -> None:
        voters = list(self._cluster.voters)
        await self._hide(self._broker(), [self._rng.choice(voters) if voters else self._node().node_id])

    async def _hide_all(self) -> None:
        await self._hide(self._broker(), [*self._cluster.nodes, *self._cluster.voters])

    async def _hide(self, broker: NodeApart, node_ids: Sequence[int]) -> None:
        ways = {way for other in node_ids for way in ((broker.node_id, other), (other, broker.node_id))}
        self._network.cut |= ways
        await asyncio.sleep(self._some_time())
        self._network.cut -= ways


class TailReader(Reader):
    """Stays with a partition for a while, mostly at its end, where the broker is told what comes."""

    async def run(self) -> None:
        while not self._work.ending:
            await self._work.pause(0.02, 0.2)
            if there := self._work.partitions():
                topic, partition = self._rng.choice(there)
                try:
                    for _ in range(READS_MAX):
                        if self._work.ending or not self._work.wanted(topic):
                            break
                        await self.read(topic, partition)
                        await self._work.pause(0.0, 0.01)
                except NoAnswer:
                    self._client.doubt(Partition(topic.topic_id, partition))


class ApartRun(WholeRun):
    cluster: ApartCluster

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        self._votes_apart = VOTES_APART in faults
        names = [fault for fault in faults if fault != VOTES_APART]
        super().__init__(seed, directory, seconds=seconds, faults=names)

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        for _ in range(TAIL_READERS):
            yield TailReader(self.work).run()

    def _settings(self, rng: random.Random) -> WholeSettings:
        return ApartSettings(rng, votes_apart=self._votes_apart)

    def _new_cluster(self, *arguments: Any) -> WholeCluster:
        return ApartCluster(*arguments)

    def _new_faults(self, rng: random.Random, faults: Sequence[str]) -> WholeFaults:
        return ApartFaults(self.cluster, rng, faults)

    async def _start_nodes(self) -> None:
        voters = [asyncio.ensure_future(voter.start()) for voter in self.cluster.voters.values()]
        await super()._start_nodes()
        await asyncio.gather(*voters)
        await asyncio.gather(*(broker.start() for broker in self.cluster.brokers.values()))

    def _nodes_ever(self) -> Sequence[HasLived]:
        return [*super()._nodes_ever(), *self.cluster.brokers.values(), *self.cluster.voters.values()]


def play(seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> Outcomes:
    """Play one run; a failure names its seed."""
    directory.mkdir(parents=True, exist_ok=True)
    run = ApartRun(seed, directory, seconds=seconds, faults=faults)
    try:
        return run.play()
    except Exception as error:
        raise seed_failed(seed, error) from error
