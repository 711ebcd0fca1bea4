"""The blocks that have gone into no checkpoint yet: by bytes and by blocks, since many small blocks take long to apply
again."""

from __future__ import annotations

from pathlib import Path

from tests.storage.small_node import SmallNode, simulated


def test_blocks_count_as_well_as_bytes(tmp_path: Path) -> None:
    async def story(node: SmallNode) -> None:
        checkpointer = node.storage.checkpointer
        await checkpointer.checkpoint()
        assert (checkpointer.blocks_since, checkpointer.bytes_since) == (0, 0)
        await node.fill(7, size=10)
        assert checkpointer.blocks_since == 7
        assert checkpointer.bytes_since > 0
        await checkpointer.checkpoint()
        assert (checkpointer.blocks_since, checkpointer.bytes_since) == (0, 0)
        await node.fill(2, size=10)
        await node.restart()
        assert node.storage.checkpointer.blocks_since <= 3, "the stop left a checkpoint; a new term has a no-op"

    simulated(tmp_path, story)
