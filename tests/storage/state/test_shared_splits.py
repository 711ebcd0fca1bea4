"""Split positions of a node with a shared store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mainstem.storage.remote.decided.remote_tier import RemoteTier
from mainstem.storage.state.shared_splits import SharedSplits


def test_nothing_before_a_snapshot_is_left_to_split_after_a_start(tmp_path: Path) -> None:
    """Blocks that a snapshot leaves out, and that no file holds, have no batch; the log has said nothing of them."""

    async def scenario() -> None:
        tier = await RemoteTier.open(str(tmp_path / "remote.sqlite"), lambda: 0)
        try:
            splits = SharedSplits(tier, 2, lambda: None)
            await splits.supersede(1, 8, [])
            await splits.vouch()
            assert splits.reached(1) == 8
            started = SharedSplits(tier, 2, lambda: None)
            started.load(splits.as_written(splits.dump()))
            assert started.reached(1) == 8
            assert started.decided(1) == 0
        finally:
            await tier.close()

    asyncio.run(scenario())
