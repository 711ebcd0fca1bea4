"""A block that goes bad on the disk of one replica is made whole from another one, before it is split."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.find import more_at_length
from tests.simulation.oracle import require

from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    KIND_DATA,
    offset_of,
    segment_name,
    sequence_of,
)

SEGMENTS = 6

DAMAGED = 2
"""Blocks, one after the other."""


class Story(Run):
    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        node = rng.choice(list(cluster.nodes.values()))
        async with asyncio.timeout(600):
            while len(node.storage.journal.segments()) < SEGMENTS:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        node.disk1.troubles += 1  # who reads it before it is split hears so
        for group in node.storage.groups:
            entries = group.blocks.entries(1, group.applied_index // 2, 1 << 30)
            index = rng.choice([entry.index for entry in entries if entry.kind == KIND_DATA])  # others may be left out
            place = group.blocks.position_of(index)
            end = BLOCK_HEADER_BYTES + (group.blocks.length_of(index) - BLOCK_HEADER_BYTES) // 2  # not the padding
            path = f"journal/{segment_name(sequence_of(place))}"
            node.disk1.flip(path, 8 * (offset_of(place) + rng.randrange(end)) + rng.randrange(8))
        async with asyncio.timeout(60):
            while node.storage.damage.repaired < len(node.storage.groups):
                require(not node.storage.damage.waiting(), "a block waits while others have it")
                await node.call(self._split_once(node, self.splitters[node.node_id], forward=True), patience=60)
                await asyncio.sleep(0.1)
        self.clients.ending = True
        await asyncio.gather(*working)
        await self._settle()
        cluster.check_tasks()


class DamagedAtStart(Run):
    """Headers and directories go bad while the node is off, where its next start has to walk."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        cluster.settings.storage = msgspec.structs.replace(
            cluster.settings.storage, checkpoint_seconds=3600.0, checkpoint_bytes=1 << 30
        )
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        node = rng.choice(list(cluster.nodes.values()))
        async with asyncio.timeout(600):
            places: dict[int, int] = {}
            while len(node.storage.journal.segments()) < SEGMENTS or len(places) < DAMAGED:
                await asyncio.sleep(0.1)
                places = {
                    group.blocks.position_of(index): BLOCK_HEADER_BYTES
                    for group in node.storage.groups for index in range(1, group.applied_index - 10)
                }  # fmt: skip
        node.lose_power(keep_all=True)
        node.boot()
        for place in rng.sample(sorted(places), DAMAGED):
            path = f"journal/{segment_name(sequence_of(place))}"
            whole = node.disk1.content(path)
            node.disk1.flip(path, 8 * (offset_of(place) + rng.randrange(places[place])) + rng.randrange(8))
            require(await node.start(), "a node does not start although others have what is damaged here")
            require(node.disk1.content(path) == whole, "it was not made whole")
            node.lose_power(keep_all=True)
            node.boot()
        require(await node.start(), "it does not start")
        self.clients.ending = True
        await asyncio.gather(*working)
        await self._settle()
        cluster.check_tasks()


@pytest.mark.parametrize("seed", more_at_length([1, 2, 3]))
def test_a_start_has_a_damaged_block_made_whole_from_another_replica(tmp_path: Path, seed: int) -> None:
    DamagedAtStart(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()


@pytest.mark.parametrize("seed", more_at_length([1, 2, 3]))
def test_a_damaged_block_is_made_whole_from_another_replica(tmp_path: Path, seed: int) -> None:
    run = Story(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.cluster.settings.snapshots = True
    run.play()
