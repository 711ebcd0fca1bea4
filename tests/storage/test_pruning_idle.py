"""A node at rest: what is split leaves the journal although nobody writes any more, and nothing is written for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
from tests.storage.small_node import SmallNode, simulated


def test_the_last_segment_leaves_too_and_the_journal_comes_to_rest(tmp_path: Path) -> None:
    def prepare(node: SmallNode) -> None:
        node.journal_config = msgspec.structs.replace(node.journal_config, segment_age_seconds=2.0)
        node.config = msgspec.structs.replace(node.config, prune_seconds=0.5, checkpoint_seconds=0.5)

    async def story(node: SmallNode) -> None:
        await node.fill(5)
        for done in await node.slices():
            assert set(await node.storage.split_log.commit(done.ranges, done.files)) <= {"committed", "replayed"}
        await asyncio.sleep(20)
        journal, journal_map = node.storage.journal, node.storage.state.journal_map
        assert not any(journal_map.holds_data(segment.sequence) for segment in journal.segments())
        assert await node.read_offsets() == [0, 1, 2, 3, 4]
        end = journal.end
        await asyncio.sleep(60)
        assert journal.end == end, "no block begets another"

    simulated(tmp_path, story, prepare)
