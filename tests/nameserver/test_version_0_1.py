"""Directories that version 0.1 wrote are taken over: what they hold, and that nobody else voted there.

`version_0_1.b85` holds two of them as that version left them, one without and one with a snapshot (zlib, base 85; JSON
of path → hex).
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.files import PowerLoss, SimulatedFiles
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.errors import ForeignDirectory, MetadataCorrupt, MetadataUnavailable
from mainstem.nameserver.nameserver import Nameserver

NODE = Node(node_id=1, host="127.0.0.1", port=9092, rack="r1")


def old_directories() -> dict[str, Any]:
    text = Path(__file__).with_name("version_0_1.b85").read_text().replace("\n", "")
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b85decode(text)))
    return found


OLD = old_directories()


def disk_of(kind: str, seed: int = 0) -> SimulatedFiles:
    disk = SimulatedFiles(seed)
    for path, content in OLD[kind]["files"].items():
        disk.put(path, bytes.fromhex(content))
    return disk


async def opened(disk: SimulatedFiles, **config: Any) -> Nameserver:
    return await Nameserver.open(disk, random.Random(disk.changes), NameserverConfig(**config), NODE)


def check(nameserver: Nameserver, kind: str) -> None:
    assert nameserver.lookups.cluster_id() == OLD[kind]["cluster_id"]
    orders, payments = nameserver.lookups.topic("orders"), nameserver.lookups.topic("payments")
    assert orders is not None
    assert payments is not None
    assert orders.configs == {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert (orders.number, payments.number, payments.partitions) == (1, 2, 3)
    assert nameserver.lookups.topic("a") is None
    assert nameserver.lookups.was_deleted(3)
    assert list(nameserver.lookups.nodes()) == [NODE]
    assert nameserver.lookups.placements() == dict.fromkeys(range(4), (1,))


@pytest.mark.parametrize("kind", ["log", "snapshot"])
def test_is_read_and_goes_on_in_this_versions_format(kind: str) -> None:
    async def scenario() -> None:
        disk = disk_of(kind)
        numbers = []
        for turn in range(4):
            nameserver = await opened(disk, log_bytes_max=4096)
            check(nameserver, kind)
            assert await nameserver.administration.allocate_producer_id() == 1_000 * (turn + 1)
            for number in range(turn * 20, turn * 20 + 20):
                numbers.append((await nameserver.administration.create_topic(f"new{number}", 1, 1, {})).number)
            await nameserver.close()
        assert numbers == sorted(set(numbers))
        assert numbers[0] == (5 if kind == "log" else 65)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["log", "snapshot"])
def test_the_power_may_go_at_every_write_of_the_upgrade(kind: str) -> None:
    async def upgrade(disk: SimulatedFiles) -> None:
        nameserver = await opened(disk)
        check(nameserver, kind)
        await nameserver.close()

    for cut_after in range(1, 200):
        disk = disk_of(kind, cut_after)
        disk.cut_power(after=cut_after)
        try:
            asyncio.run(upgrade(disk))
        except (PowerLoss, MetadataUnavailable):
            disk.crash()
            asyncio.run(upgrade(disk))
            continue
        assert cut_after > 10
        return
    raise AssertionError("the upgrade never ends")


def test_damage_is_found_as_it_was_then() -> None:
    for kind in ("log", "snapshot"):
        for path, content in OLD[kind]["files"].items():
            size = len(content) // 2 - 28  # but for the mark at the end of a log
            for position in random.Random(7).sample(range(size), 25):
                disk = disk_of(kind)
                disk.flip(path, position * 8 + position % 8)
                with pytest.raises(MetadataCorrupt) as raised:
                    asyncio.run(opened(disk))
                assert raised.value.path == path


def test_another_node_or_cluster_is_refused() -> None:
    async def other_node() -> None:
        await Nameserver.open(
            disk_of("log"), random.Random(1), NameserverConfig(node_id=2), Node(node_id=2, host="h", port=1)
        )

    with pytest.raises(ForeignDirectory, match="belongs to node 1"):
        asyncio.run(other_node())
    with pytest.raises(ForeignDirectory, match="belongs to cluster"):
        asyncio.run(opened(disk_of("log"), cluster_id="x" * 22))


def test_a_node_of_version_0_1_becomes_the_first_of_a_cluster() -> None:
    async def scenario() -> None:
        cluster = Nameservers(21)
        cluster.disks[1] = disk_of("snapshot")
        await cluster.start(1)
        assert cluster.leader() == 1  # alone, whatever `peers` says: the others have no part in what is there
        first = cluster.running[1]
        for node_id in (2, 3):
            await cluster.start(node_id, cluster_id=first.lookups.cluster_id())
            await first.operations.change_member(0, node_id)
        assert first.lookups.metadata_voters == {1, 2, 3}
        await cluster.kill(1)
        await cluster.elected()
        await cluster.running[2].administration.create_topic("by the others".replace(" ", "-"), 1, 1, {})
        await cluster.start(1)
        await cluster.settled()
        assert cluster.running[3].lookups.topic("orders") is not None
        for node_id in (1, 2, 3):
            await cluster.kill(node_id)
        await cluster.start_all()
        await cluster.settled()
        await cluster.close()

    simulate(scenario())
