"""The reasons that keep the roles of a node from opening on a shared store."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.fakes.clock import LoopClock
from tests.fakes.files import SimulatedFiles
from tests.fakes.object_store import SimulatedBucket, SimulatedObjectStore

from mainstem.model import FeatureLevel, LevelRange, Node
from mainstem.node.config import NodeConfig
from mainstem.node.node_ports import NodePorts
from mainstem.node.node_roles import Roles
from mainstem.node.storage_role.store_directory import StoreUnsupported
from mainstem.rpc.handlers import Handlers


async def opened(directory: Path, newest: FeatureLevel) -> None:
    """Open the roles of a new node alone that reads levels up to this one."""
    clock = LoopClock()
    ports = NodePorts(
        clock=clock,
        randomness=lambda: random.Random(1),
        new_id=lambda: "1",
        write_files=SimulatedFiles(1),
        store_files=SimulatedFiles(2),
        remote_store=SimulatedObjectStore(SimulatedBucket(clock, random.Random(1))),
        write_dir=directory,
        store_dir=directory / "cache",
        handlers=Handlers(),
        connect=None,
        levels=LevelRange(newest=newest),
    )
    async with AsyncExitStack() as stack:
        await Roles.open(NodeConfig(store_dir="s3://bucket/x"), Node(node_id=1, host="h", port=1), ports, stack)


def test_a_shared_store_takes_a_cluster_whose_logs_may_tell_of_it(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsupported, match="a shared store takes feature level 4, and the cluster is at 3"):
        asyncio.run(opened(tmp_path / "old", FeatureLevel.MERGED))
    (tmp_path / "new").mkdir()
    asyncio.run(opened(tmp_path / "new", FeatureLevel.newest()))
