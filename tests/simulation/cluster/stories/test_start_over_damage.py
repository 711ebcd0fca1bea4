"""A replica whose journal is damaged, and that reaches nobody when it starts, starts all the same: it gets back from
the others what it lacks before it counts for anything, and nothing that was acknowledged is lost meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.storage.journal.encoding.format import BLOCK_HEADER_BYTES, offset_of, segment_name, sequence_of

SEGMENTS = 4
APART_SECONDS = 1.5


class OverDamage(Run):
    """Load; one node is killed, harmed, and started while it reaches nobody."""

    checkpoints = True

    async def _story(self) -> None:
        cluster = self.cluster
        storage = cluster.settings.storage
        if not self.checkpoints:
            storage = msgspec.structs.replace(storage, checkpoint_seconds=3600.0, checkpoint_bytes=1 << 30)
        cluster.settings.storage = storage
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        node = self._rng.choice(list(cluster.nodes.values()))
        async with asyncio.timeout(600):
            while len(node.storage.journal.segments()) < SEGMENTS:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        await self._before(node)
        node.lose_power(keep_all=True)
        node.boot()
        await self._harm(node)
        others = set(cluster.nodes) - {node.node_id}
        cut = {way for other in others for way in ((other, node.node_id), (node.node_id, other))}
        cluster.network.cut |= cut
        require(await node.start(), "a node with a damaged journal does not start")
        self._started(node)
        await asyncio.sleep(APART_SECONDS)
        require(not any(node.leads(group.group) for group in node.storage.groups), "it leads though it lacks blocks")
        cluster.network.cut -= cut
        async with asyncio.timeout(120):
            while self._lacks(node):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.2)
        self.clients.ending = True
        await asyncio.gather(*working)
        await self._settle()
        cluster.check_tasks()

    async def _before(self, node: SimulatedNode) -> None: ...

    async def _harm(self, node: SimulatedNode) -> None:
        raise NotImplementedError

    def _started(self, node: SimulatedNode) -> None: ...

    def _lacks(self, node: SimulatedNode) -> bool:
        storage = node.storage
        return bool(
            storage.rejoining.not_back() or storage.waiting.reasons() or node.starts.lost
            or storage.queue_store.damaged.all()
        )  # fmt: skip


class TornLogs(OverDamage):
    """A header behind the newest checkpoint goes bad."""

    checkpoints = False

    async def _harm(self, node: SimulatedNode) -> None:
        group = max(node.storage.groups, key=lambda group: group.applied_index)
        place = group.blocks.position_of(self._rng.randrange(2, group.applied_index))
        path = f"journal/{segment_name(sequence_of(place))}"
        node.disk1.flip(path, 8 * (offset_of(place) + self._rng.randrange(BLOCK_HEADER_BYTES)) + 1)

    def _started(self, node: SimulatedNode) -> None:
        require(bool(node.storage.replication.silent), "a replica that lacks blocks takes part")


class MissingSegment(OverDamage):
    """The oldest segment is gone."""

    async def _before(self, node: SimulatedNode) -> None:
        await node.call(node.storage.maintenance.index_sealed(), patience=30)
        await node.call(node.storage.checkpointer.checkpoint(), patience=30)

    async def _harm(self, node: SimulatedNode) -> None:
        segments = [path for path in node.disk1.paths() if path.startswith("journal/0") and path.endswith(".wal")]
        await node.disk1.remove(min(segments))
        node.disk1.troubles += 1  # who reads what was in it hears so until it is made anew

    def _started(self, node: SimulatedNode) -> None:
        require(bool(node.storage.queue_store.damaged.all()), "nobody misses the segment")

    def _lacks(self, node: SimulatedNode) -> bool:
        for other in self.cluster.nodes.values():  # others can tell what was in blocks that they have split
            self.splitters[other.node_id].hurries = True
            self.loop.create_task(self._looked_after(self._splits(other)))
        return super()._lacks(node)

    async def _splits(self, node: SimulatedNode) -> None:
        if node.serving is not None:
            await node.call(self._split_once(node, self.splitters[node.node_id], forward=True), patience=60)


@pytest.mark.parametrize("seed", more_at_length([3, 2]))
def test_a_replica_with_a_torn_log_comes_back_as_one_that_has_forgotten(tmp_path: Path, seed: int) -> None:
    TornLogs(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()


@pytest.mark.parametrize("seed", more_at_length([1, 2]))
def test_a_replica_with_a_missing_segment_makes_its_run_anew(tmp_path: Path, seed: int) -> None:
    MissingSegment(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()
