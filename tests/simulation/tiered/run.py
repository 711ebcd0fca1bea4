"""A simulated run of a cluster with a remote tier: some topics go to an object store that has outages, their local
files go soon, and leaders change between the intent, the upload and the record."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from tests.simulation.cluster.history import QueueHistory
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.oracle import require
from tests.simulation.tiered.store_run import StoreRun
from tests.simulation.tiered.tierer import Tierers

from mainstem.errors import MainstemError
from mainstem.model import TopicSettings
from mainstem.storage.split.copying import LOOK_SECONDS

DAY_MS = 24 * 60 * 60 * 1000


class TieredRun(StoreRun):
    """`tierers` are those who upload, by node."""

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(seed, directory, seconds=seconds, faults=faults)
        self.tierers: Mapping[int, Tierers] = {
            node_id: Tierers(node, random.Random(f"{seed} tierers {node_id}"), node.new_object_store)
            for node_id, node in self.cluster.nodes.items()
        }

    def busy(self) -> Sequence[Tierers]:
        return list(self.tierers.values())

    def local_copies_gone(self) -> int:
        """Files of disk 2 that went since the remote tier has them, on all nodes."""
        opened = [storage for node in self.cluster.nodes.values() for storage in node.opened]
        samples = [sample for storage in opened for sample in storage.local_copies.samples()]
        return int(sum(one.value for one in samples if one.name == "mainstem_local_retention_dropped_files_total"))

    # --- the story ----------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        rng = self._tiering
        for number in range(rng.randint(1, 3)):
            settings = TopicSettings(
                remote_storage_enable=number == 0 or rng.random() < 0.6,
                retention_ms=-1,
                retention_bytes=rng.choice([-1, -1, 5000, 50_000]),
                local_retention_ms=rng.choice([0, 0, 500]),
            )
            await self.cluster.create_topic(rng.randint(1, 3), patience=30, settings=settings)

    async def _merge(self, node: SimulatedNode) -> None:
        """Those that merge files of one node, and upload them, well-behaved or not, one after the other, as they have
        the same lease; they run on its host and die with it."""
        mergers, tierers = self.mergers[node.node_id], self.tierers[node.node_id]
        while True:
            await asyncio.sleep(mergers.rng.choice([0.05, 0.1, 0.3]))
            if node.serving is not None:
                forward = mergers.rng.random() < 0.85
                merge = partial(mergers.merge, drain=mergers.rng.random() < 0.5)
                await node.call(self._once(node, merge if forward else mergers.replay), patience=30)
            for _ in range(tierers.rng.randint(1, 3)):
                if node.serving is not None:
                    forward = tierers.rng.random() < 0.85
                    await node.call(self._once(node, tierers.tier if forward else tierers.replay), patience=120)

    # --- the end ------------------------------------------------------------------------------------------

    async def _end_uploads(self) -> None:
        """Upload whatever may be, once those have ended that were still uploading."""
        await super()._end_uploads()
        for node in self.cluster.nodes.values():
            for _ in range(200):
                try:
                    if not await node.call(self.tierers[node.node_id].tier(well_behaved=True), patience=120):
                        break
                except (MainstemError, OSError):  # the store counts as down for a while
                    await asyncio.sleep(5.0)
            else:
                require(False, f"node {node.node_id}: there is always more to tier", "S")

    async def _compare_history(self, node: SimulatedNode, split: dict[int, int]) -> None:
        """Disk 2 and the remote tier together hold the whole history (F)."""
        await self._check_extents(node, split)

    async def _check_extents(self, node: SimulatedNode, split: Mapping[int, int] | None = None) -> None:
        """The content of the indexes of a node's files and of the remote ones together: no hole behind a log start (F).
        Every batch on disk 2 lies there once."""
        storage, history = node.storage, self.cluster.history

        async def local() -> dict[int, list[tuple[int, int]]]:
            await storage.manifest.settled()
            self._check_spans(node)
            pieces = [rows async for rows in storage.queue_store.stored.all_rows(storage.placement.groups_at)]
            found: dict[int, list[tuple[int, int]]] = {}
            for rows in [numpy.sort(numpy.concatenate(pieces), order=["queue_id", "base_offset"])] if pieces else []:
                for queue_id, base, last in rows[["queue_id", "base_offset", "last_offset"]].tolist():
                    extents = found.setdefault(queue_id, [])
                    twice = extents and base < extents[-1][1] and not history.queue(queue_id).deleted
                    require(not twice, f"node {node.node_id}: queue {queue_id:#x}: {base} is on disk 2 twice", "F")
                    extents.append((base, last + 1))
            return found

        extents = await node.call(local(), patience=60)
        require(extents is not None, f"node {node.node_id} does not say what it has")
        assert extents is not None
        for group in self.objects.tiers:
            for queue_id, base, end in self.objects.extents(group):
                extents.setdefault(queue_id, []).append((base, end))
        for queue_id in self._queue_ids:
            queue, group = history.queue(queue_id), storage.group_of(queue_id)
            end = queue.end_after(storage.queue_store.splits.split_position(group) if split is None else split[group])
            self._check_covered(node, queue, sorted(extents.get(queue_id, [])), end)

    def _check_covered(
        self, node: SimulatedNode, queue: QueueHistory, extents: list[tuple[int, int]], end: int
    ) -> None:
        what = f"node {node.node_id}: queue {queue.queue_id:#x}: a hole in the split history:"
        covered = queue.log_start
        for base, last in extents:
            if base >= end:  # others have split and uploaded more
                break
            require(
                base <= covered or queue.deleted,
                f"{what} {base} on disk 2 or in the store where {covered} is next, the log starts at {queue.log_start}",
                "F",
            )
            covered = max(covered, last)
        require(covered >= end, f"{what} it ends at {covered} of {end}, the log starts at {queue.log_start}", "F")


class CopyingRun(TieredRun):
    """Topics of the tier are not copied for a while, now and then, and some of them still are not when all else is in
    the store; in the end all of them are."""

    def __init__(self, seed: int, directory: Path, *, seconds: float | None = None, faults: Sequence[str] = ()) -> None:
        super().__init__(seed, directory, seconds=seconds, faults=faults)
        self._copying = random.Random(f"{seed} copying")

    def fills(self) -> int:
        """How many commands brought what had been passed over."""
        return sum(
            bool(change.spans) and change.upto == before.upto and change.spans[0].upto <= before.upto
            for tier in self.objects.tiers.values()
            for before, change in zip(tier.positions, tier.changes, strict=False)
        )

    # --- the story ----------------------------------------------------------------------------------------

    def _load(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield from super()._load()
        yield self._switch_copying()

    async def _create_topics(self) -> None:
        """Three that ask, the last of them always; their files are of different classes."""
        for retention_ms in (100_000 * DAY_MS, 1_000_000 * DAY_MS, -1):
            settings = TopicSettings(
                remote_storage_enable=True,
                retention_ms=retention_ms,
                local_retention_ms=self._copying.choice([0, 500]),
            )
            await self.cluster.create_topic(2, patience=30, settings=settings)

    async def _switch_copying(self) -> None:
        rng = self._copying
        while not self.clients.ending:
            self._copy(rng.randrange(2), wanted=rng.random() < 0.4)
            await asyncio.sleep(rng.choice([0.5, 2.5]))
        self._copy(rng.randrange(2), wanted=False)

    def _copy(self, at: int, *, wanted: bool) -> None:
        topic = self.cluster.topics[at]
        settings = dataclasses.replace(topic.settings, remote_log_copy_disable=not wanted)
        self.cluster.topics[at] = dataclasses.replace(topic, settings=settings)

    # --- the end ------------------------------------------------------------------------------------------

    async def _end_uploads(self) -> None:
        await super()._end_uploads()
        for at in range(len(self.cluster.topics)):
            self._copy(at, wanted=True)
        await asyncio.sleep(LOOK_SECONDS)
        await super()._end_uploads()
