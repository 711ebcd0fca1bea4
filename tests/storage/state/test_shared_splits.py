"""Split positions of a node with a shared store."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mainstem.storage.remote.decided.remote_state import RECORDED, REPLAYED, Notes
from mainstem.storage.remote.decided.remote_tier import RemotePosition, RemoteTier
from mainstem.storage.state.manifest_queue import SplitImage
from mainstem.storage.state.shared_splits import SharedSplits
from mainstem.storage.write_groups.control import RemoteChanged


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


def test_a_manifest_from_another_replica_has_moved_the_split(tmp_path: Path) -> None:
    """A start has the checkpoint's splits and then gets the tier's manifest, lost here, from another replica: that may
    have changes that follow in the log, where they are replays. Pruning goes by that manifest."""

    async def scenario() -> None:
        tier = await RemoteTier.open(str(tmp_path / "remote.sqlite"), lambda: 0)
        try:
            splits = SharedSplits(tier, 2, lambda: None)
            splits.load([SplitImage(0, 6, [(4, 6)]), SplitImage(2, 6, [(4, 6)])])
            await tier.supersede(0, RemotePosition(3, 1, 5), Notes({}, {}), ())
            await splits.begin_behind_remote(lambda group: tier.position(group).upto)
            assert tier.applied(0, RemoteChanged(3, 1, 5)) == REPLAYED
            assert splits.written(0) <= splits.reached(0)
            assert [(splits.decided(group), splits.reached(group)) for group in (0, 1)] == [(5, 5), (2, 3)]
            assert tier.applied(0, RemoteChanged(4, 1, 6)) == RECORDED
            assert splits.decided(0) == 6
        finally:
            await tier.close()

    asyncio.run(scenario())
