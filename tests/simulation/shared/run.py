"""A simulated run of a cluster whose queue store is one object store: nodes keep no files of their own, splitters of
leaders split, merge and compact into the store, and leaders change between the announcement, the upload and the record.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.simulation.cluster.faults import ROTTEN_MANIFEST, Kind
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import offsets_in, passes_seen
from tests.simulation.oracle import require
from tests.simulation.shared.writers import SharedCompactors, SharedMergers, SharedSplitters, StoreWriters
from tests.simulation.tiered.store_run import StoreFaults, StoreRun

from mainstem.errors import MainstemError
from mainstem.model import TopicSettings
from mainstem.storage.queue_store.reading.stored_slice import StoredSlice
from mainstem.storage.store_files.store_file import PACKED_DIRECTORY, QUEUES_DIRECTORY, RUNS_DIRECTORY

STORE_DIRECTORIES = (RUNS_DIRECTORY, PACKED_DIRECTORY, QUEUES_DIRECTORY)

TIER_MANIFEST_LOST = "tier's manifest lost"
"""The fault's name."""

LOOKS_MAX = 60
"""At the store, some seconds apart: one that counts as down is asked again soon."""


class SharedFaults(StoreFaults):
    """Those of a cluster with an object store. Nodes have no manifest of files of their own that could rot, but one of
    the files in the store, which they get back from each other."""

    def kinds(self) -> list[Kind]:
        kinds = [(name, fault) for name, fault in super().kinds() if name != ROTTEN_MANIFEST]
        return [*kinds, (TIER_MANIFEST_LOST, self._lose_tier_manifest)]

    async def _lose_tier_manifest(self) -> None:
        node = self._node()
        if not node.up or node.serving is None or node.life_stopped:
            return
        node.lose_power()
        node.boot()
        path = Path(node.manifest_path)
        names = [f"remote-{path.name}{suffix}" for suffix in ("", "-wal", "-shm")]
        kept = {name: (path.parent / name).read_bytes() for name in names if (path.parent / name).exists()}
        for name in kept:
            (path.parent / name).unlink()
        node.damaged.append(names[0])
        started = await node.start()
        node.damaged.remove(names[0])
        if started:
            return
        node.boot()
        for name, content in kept.items():  # nobody else has as many changes: somebody restores it
            (path.parent / name).unlink(missing_ok=True)
            (path.parent / name).write_bytes(content)
        await self._restarted(node)


class SharedRun(StoreRun):
    """`writers` are those who write to the store, by node."""

    new_faults = SharedFaults

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(seed, directory, seconds=seconds, faults=faults)
        self._seed = seed
        cluster = self.cluster
        cluster.shared = True
        self.objects.has_all = True
        self.writers: dict[int, StoreWriters] = {}
        for node in cluster.nodes.values():
            self.equip(node)

    def equip(self, node: SimulatedNode) -> None:
        """Have a node's splitters write to the store."""
        node_id, seed = node.node_id, self._seed
        self.writers[node_id] = writers = StoreWriters(node, random.Random(f"{seed} writers {node_id}"))
        self.splitters[node_id] = SharedSplitters(node, random.Random(f"{seed} splits {node_id}"), writers)
        self.mergers[node_id] = SharedMergers(node, random.Random(f"{seed} merges {node_id}"), writers)
        if self.compactors:
            rng = random.Random(f"{seed} compactions {node_id}")
            compactors = SharedCompactors(node, rng, passes_seen(self.cluster, node_id), writers)
            self.compactors = {**self.compactors, node_id: compactors}

    def busy(self) -> Sequence[StoreWriters]:
        return list(self.writers.values())

    def _is_live(self, queue_id: int, offset: int) -> bool:
        """Other checks look after what compaction may leave out (L)."""
        return queue_id not in self.cluster.history.compacted and super()._is_live(queue_id, offset)

    # --- the story ----------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        rng = self._tiering
        for _ in range(rng.randint(1, 3)):
            compaction = self._how_to_compact()
            settings = TopicSettings(retention_ms=-1, retention_bytes=rng.choice([-1, -1, 5000, 50_000]))
            await self.cluster.create_topic(
                rng.randint(1, 3), patience=30, compaction=compaction, settings=None if compaction else settings
            )

    async def _split(self, node: SimulatedNode) -> None:
        """Two at a time: one had the lease before the other."""
        await asyncio.gather(super()._split(node), super()._split(node))

    # --- the end ------------------------------------------------------------------------------------------

    async def _finish_work(self) -> None:
        """Leaders split for all: so all is split before anybody compares, and merged before anybody compares again."""
        await self._end_uploads()
        nodes = self.cluster.nodes.values()
        await asyncio.gather(*map(self._split_all, nodes))
        split = self._reached()
        await asyncio.gather(*(self._compare_history(node, split) for node in nodes))
        for work in (self._merge_all, self._compact_all):
            for node in nodes:
                await work(node)
            await asyncio.gather(*(self._compare_history(node, split) for node in nodes))

    def _reached(self) -> dict[int, int]:
        """Per write group, the last block up to which nothing is left to split."""
        return {
            group: max(node.storage.manifest.reached(group) for node in self._holders_of(group))
            for group in range(self.cluster.settings.groups)
        }

    async def _split_all(self, node: SimulatedNode) -> None:
        splitters = self.splitters[node.node_id]
        splitters.hurries = True
        for _ in range(LOOKS_MAX):
            if all(map(self._is_split, range(self.cluster.settings.groups))):
                return
            try:
                await node.call(splitters.split(well_behaved=True), patience=60)
            except (MainstemError, OSError):  # the store counts as down for a while, or another node leads
                await asyncio.sleep(1.0)
            await asyncio.sleep(self.cluster.settings.journal.flush_interval_seconds / 2)
        require(False, f"node {node.node_id}: never split: {node.storage.split_log.positions()}", "S")

    def _is_split(self, group: int) -> bool:
        """Whether all that there is of a write group is split, and all nodes know that."""
        leaders = self.cluster.leaders(group)
        if not leaders or leaders[0].storage.split_log.positions()[group].unsplit_bytes:
            return False
        decided = leaders[0].storage.remote.position(group).upto
        return all(node.storage.manifest.written(group) >= decided for node in self._holders_of(group))

    async def _compare_history(self, node: SimulatedNode, split: dict[int, int]) -> None:
        """The store alone holds the whole history, each batch once, in order (F)."""
        await self._check_extents(node, split)
        history = self.cluster.history
        for queue_id in self._held_queues(node):
            queue = history.queue(queue_id)
            offset, end = queue.log_start, queue.end_applied(split)
            what = f"node {node.node_id}: the store"
            served: list[int] = []
            tries = 0
            while (offset := max(offset, queue.log_start)) < end:
                try:
                    found = await node.call(self._stored(node, queue_id, offset), patience=60)
                except (MainstemError, OSError):
                    found = None
                if found is None or not found.batches:
                    tries += 1
                    require(tries < LOOKS_MAX or offset < queue.log_start, f"{what}: ends at {offset} of {end}", "F")
                    await asyncio.sleep(1.0)
                    continue
                tries = 0
                history.check_read(what, queue_id, offset, found.batches, found.next_offset)
                offset = found.next_offset
                if queue_id in history.compacted:
                    served += offsets_in(found.batches)
            if queue_id in history.compacted:
                history.compacted[queue_id].check_values(what, served, queue.log_start, offset)

    async def _stored(self, node: SimulatedNode, queue_id: int, offset: int) -> StoredSlice | None:
        """The next batches that the store has. Of a compacted queue nothing may be left of the rest of a stay."""
        read = node.storage.remote_history
        assert read is not None
        for group, first_offset, end in node.storage.placement.stretches_from(queue_id, offset):
            found = await read.read(queue_id, group, first_offset, 3000)
            if found is not None and found.base_offset < end:
                return found
            if queue_id not in self.cluster.history.compacted:
                return None
        return None

    async def _check_extents(self, node: SimulatedNode, split: Mapping[int, int] | None = None) -> None:
        """As with a store of one's own, as soon as the store gives its indexes."""
        for _ in range(LOOKS_MAX):
            try:
                await super()._check_extents(node, split)
            except (MainstemError, OSError):
                await asyncio.sleep(2.0)
            else:
                return
        require(False, f"node {node.node_id}: the store does not give its indexes", "S")

    def _check_replica(self, node: SimulatedNode, group: int) -> None:
        super()._check_replica(node, group)
        own = [path for path in node.disk2.paths() if path.partition("/")[0] in STORE_DIRECTORIES]
        require(not own, f"node {node.node_id} has files of its own: {own[:5]}", "U")
        require(
            not len(node.storage.queue_store.manifest.files), f"node {node.node_id}: its own manifest has files", "U"
        )
