"""Rot where nobody reads is found by the scrubber and mended from another replica."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from tests.simulation.cluster.node import SimulatedNode
from tests.simulation.cluster.run import LEFT_BEHIND, Run
from tests.simulation.cluster.stories.test_repair import Rotting, flip_batch, flip_index, lose
from tests.simulation.find import more_at_length

from mainstem.storage.journal.encoding.format import (
    BLOCK_HEADER_BYTES,
    DIRECTORY_ROW_BYTES,
    KIND_DATA,
    offset_of,
    segment_name,
    sequence_of,
)

INTERVAL_SECONDS = 30.0
SEGMENTS = 6


class ScrubbedRuns(Rotting):
    """One run is harmed; no client reads, and no splitter runs."""

    share = 0.0

    async def _story(self) -> None:
        settings = self.cluster.settings
        settings.storage = msgspec.structs.replace(settings.storage, scrub_interval_seconds=INTERVAL_SECONDS)
        await super()._story()

    async def _come_upon(self, node: SimulatedNode) -> None:
        async with asyncio.timeout(10 * INTERVAL_SECONDS):
            while not node.storage.scrubber.findings["runs"]:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.5)


class ScrubbedJournal(Run):
    """A batch of a sealed segment goes bad; nobody reads it, and nobody splits."""

    async def _story(self) -> None:
        cluster, rng = self.cluster, self._rng
        cluster.settings.storage = msgspec.structs.replace(
            cluster.settings.storage, scrub_interval_seconds=INTERVAL_SECONDS
        )
        for node in cluster.nodes.values():
            await node.start()
        await cluster.create_topic(3, patience=30)
        working = [self.loop.create_task(self._looked_after(task)) for task in self._load()]
        node = rng.choice(list(cluster.nodes.values()))
        async with asyncio.timeout(600):
            while len(node.storage.journal.segments()) < SEGMENTS:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.1)
        self.clients.ending = True
        await asyncio.gather(*working)
        blocks = node.storage.groups[0].blocks
        sealed = max(segment.end for segment in node.storage.journal.segments() if segment.sealed)
        places = [
            blocks.position_of(entry.index)
            for entry in blocks.entries(blocks.first_index(), blocks.last_index(), 1 << 30)
            if entry.kind == KIND_DATA and blocks.position_of(entry.index) < sealed
        ]  # fmt: skip
        place = rng.choice(places) + BLOCK_HEADER_BYTES + DIRECTORY_ROW_BYTES + 70
        path = f"journal/{segment_name(sequence_of(place))}"
        whole = node.disk1.content(path)
        node.disk1.troubles += 1
        node.disk1.flip(path, 8 * offset_of(place))
        async with asyncio.timeout(10 * INTERVAL_SECONDS):
            while node.disk1.content(path) != whole:  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(0.5)
        assert node.storage.damage.repaired == 1
        await self._settle()
        cluster.check_tasks()


@pytest.mark.parametrize("harm", [flip_batch, flip_index, lose])
def test_a_run_that_rots_unread_comes_back_from_another_replica(tmp_path: Path, harm: object) -> None:
    run = ScrubbedRuns(3, tmp_path, seconds=1.0, faults=[LEFT_BEHIND])
    run.harms = [harm]  # type: ignore[list-item]
    run.play()
    assert run.came_upon
    assert run.mended


@pytest.mark.parametrize("seed", more_at_length([1, 2]))
def test_a_block_that_rots_unread_is_made_whole_from_another_replica(tmp_path: Path, seed: int) -> None:
    ScrubbedJournal(seed, tmp_path, seconds=1.0, faults=[LEFT_BEHIND]).play()
