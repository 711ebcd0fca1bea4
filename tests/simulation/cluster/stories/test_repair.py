"""Rot on disk 2 of a node is mended from the others: some bytes, an index, whole runs.

In the end everything that `Run` sees to holds here as well: the queue store of every node alone has the whole history,
each batch once, in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import HEALED_SECONDS, LEFT_BEHIND, Run, compactors_of
from tests.simulation.find import at_length, more_at_length
from tests.simulation.merger import Mergers
from tests.simulation.oracle import require

from mainstem.model import TopicSettings
from mainstem.storage.errors import StorageError
from mainstem.storage.extents.extent_format import FRAME_BYTES, RUN_MAGIC, FileFrame
from mainstem.storage.store_files.store_file import EXTENTS_SUFFIX, SEGMENT_SUFFIX, path_of

Harm = Callable[[SimulatedNode, str, random.Random], None]


def batches_of(node: SimulatedNode, path: str) -> tuple[int, int]:
    """The positions at which the batches of a file begin and end."""
    content = node.disk2.content(path)
    if path.endswith(SEGMENT_SUFFIX):
        return 0, len(content)
    return FRAME_BYTES, FRAME_BYTES + FileFrame.unpack(content[-FRAME_BYTES:], RUN_MAGIC, path).batch_bytes


def flip_batch(node: SimulatedNode, path: str, rng: random.Random) -> None:
    start, end = batches_of(node, path)
    for _ in range(rng.randint(1, 3)):
        node.disk2.flip(path, 8 * rng.randrange(start, end) + rng.randrange(8))


def flip_index(node: SimulatedNode, path: str, rng: random.Random) -> None:
    _start, end = batches_of(node, path)
    if path.endswith(SEGMENT_SUFFIX):
        path, end = path.removesuffix(SEGMENT_SUFFIX) + EXTENTS_SUFFIX, FRAME_BYTES
    size = len(node.disk2.content(path))
    node.disk2.flip(path, 8 * rng.randrange(end, size) + rng.randrange(8))


def zero_page(node: SimulatedNode, path: str, rng: random.Random) -> None:
    content = bytearray(node.disk2.content(path))
    at = rng.choice([place for place, byte in enumerate(content) if byte]) // 512 * 512
    content[at : at + 512] = bytes(len(content[at : at + 512]))
    node.disk2.put(path, bytes(content))


def cut_short(node: SimulatedNode, path: str, rng: random.Random) -> None:
    content = node.disk2.content(path)
    node.disk2.put(path, content[: rng.randrange(len(content))])


def swap(node: SimulatedNode, path: str, rng: random.Random) -> None:
    """The file is its neighbour's."""
    suffix = path[path.rindex(".") :]
    others = [other for other in node.disk2.paths() if other.endswith(suffix) and other != path]
    if others:
        node.disk2.put(path, node.disk2.content(rng.choice(others)))


def lose(node: SimulatedNode, path: str, rng: random.Random) -> None:
    node.disk2.put(path, b"")


HARMS: dict[str, Harm] = {
    "bits of batches": flip_batch,
    "bits of indexes": flip_index,
    "zeroed pages": zero_page,
    "cut short": cut_short,
    "swapped": swap,
    "lost": lose,
}

MERGED_HARMS = [harm if harm in ("bits of batches", "bits of indexes", "lost") else at_length(harm) for harm in HARMS]
"""At each change runs meet the others."""

COMPACTED = TopicSettings(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, delete_retention_ms=500)


class Rotting(Run):
    """Load and splits; then runs of one node are harmed while it is down."""

    harms: list[Harm]
    share = 0.5
    """Of its files."""
    merged = False
    """Its runs are merged before, those of others are not."""
    compacted_by = 0
    """Its topic is compacted, before as well, by so many nodes; if by one, by this one."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30, compaction=COMPACTED if self.compacted_by else None)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        splitting = [self.loop.create_task(self._looked_after(self._split(node))) for node in cluster.nodes.values()]
        await asyncio.sleep(4.0)
        self.clients.ending = True
        async with asyncio.timeout(HEALED_SECONDS):
            await asyncio.gather(*working)
        for task in splitting:
            task.cancel()
        node = rng.choice(list(cluster.nodes.values()))
        mergers, self.mergers = self.mergers, {}
        await asyncio.gather(*map(self._split_all, cluster.nodes.values()))
        if self.merged:
            self.mergers = {node.node_id: mergers[node.node_id]}
            require(await self._merge_all(node), "nothing was merged before")
        if self.compacted_by:
            await self._compact_before(node, mergers)
        named = sorted(node.storage.queue_store.manifest.files)
        require(bool(named), "nothing was split before")
        node.lose_power(keep_all=True)
        harmed = rng.sample(named, max(1, int(self.share * len(named))))
        for name in harmed:
            rng.choice(self.harms)(node, path_of(name), rng)
        require(await node.restart(), f"node {node.node_id} does not start with rotten runs")
        await self._come_upon(node)
        await self._mended(node)
        await self._settle()

    async def _compact_before(self, node: SimulatedNode, mergers: dict[int, Mergers]) -> None:
        """Twice, so that tombstones go as well."""
        nodes = sorted(self.cluster.nodes.values(), key=lambda other: other is not node)[: self.compacted_by]
        compactors = compactors_of(self.cluster, self.cluster.settings.nodes)
        self.mergers = {one.node_id: mergers[one.node_id] for one in nodes}
        self.compactors = {one.node_id: compactors[one.node_id] for one in nodes}
        for one in nodes:
            await self._merge_all(one)
            require(await self._compact_all(one), "nothing was compacted before")
            await asyncio.sleep(1.0)
            await self._compact_all(one)

    async def _come_upon(self, node: SimulatedNode) -> None:
        """Somebody reads all of it."""
        store = node.storage.queue_store

        async def look() -> bool:
            for name in list(store.manifest.files):
                try:
                    found = await store.mending.examine(name)
                except StorageError:  # it was mended meanwhile, by others in its place
                    continue
                for row in found.bad_rows:
                    assert found.extents is not None
                    extent = found.extents.rows[row]
                    queue_id, offset = int(extent["queue_id"]), int(extent["base_offset"])
                    try:
                        await store.history.read(queue_id, node.storage.group_of(queue_id), offset, 1)
                    except StorageError as error:
                        stem = name.rpartition(".")[0]
                        require(stem in str(error), f"the error does not name {name}: {error}")

            return True

        require(bool(await node.call(look(), patience=600)), "looking takes too long")

    async def _mended(self, node: SimulatedNode) -> None:
        async with asyncio.timeout(20 * HEALED_SECONDS):
            while node.storage.queue_store.damaged.all():  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(1.0)
        self.came_upon = node.storage.queue_store.damaged.met
        self.mended = node.storage.repair.mended_runs


class RottingAway(Rotting):
    """All of them."""

    share = 1.0


@pytest.mark.parametrize("harm", HARMS)
def test_harmed_runs_come_back_from_the_other_replicas(tmp_path: Path, harm: str) -> None:
    run = Rotting(3, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.harms = [HARMS[harm]]
    run.play()
    assert run.came_upon
    assert run.mended


@pytest.mark.parametrize("harm", MERGED_HARMS)
def test_harmed_merged_files_come_back_from_replicas_that_have_other_files(tmp_path: Path, harm: str) -> None:
    kinds = set()
    for seed in (3, 4):
        (directory := tmp_path / str(seed)).mkdir()
        run = Rotting(seed, directory, seconds=1.0, faults=[LEFT_BEHIND])
        run.harms = [HARMS[harm]]
        run.merged = True
        run.share = 1.0
        run.play()
        kinds |= {kind for mergers in run.mergers.values() for kind in mergers.kinds}
        assert run.mended
    assert kinds == {"pack", "log"}


@pytest.mark.parametrize("seed", more_at_length(range(1, 5)))
def test_a_whole_store_of_rotten_runs_comes_back(tmp_path: Path, seed: int) -> None:
    run = RottingAway(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.harms = list(HARMS.values())
    run.play()
    assert run.came_upon
    assert run.mended


@pytest.mark.parametrize("harm", MERGED_HARMS)
@pytest.mark.parametrize("nodes", more_at_length([1, 2]))
def test_harmed_files_of_compacted_queues_come_back_from_replicas_that_have_other_records(
    tmp_path: Path, harm: str, nodes: int
) -> None:
    run = Rotting(3, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.harms = [HARMS[harm]]
    run.share = 1.0
    run.merged, run.compacted_by = True, nodes
    run.play()
    assert run.mended


@pytest.mark.parametrize("seed", more_at_length([11, 12]))
def test_harmed_merged_files_come_back_between_whole_ones(tmp_path: Path, seed: int) -> None:
    run = Rotting(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.harms = [lose]
    run.merged = True
    run.play()
    assert run.mended
