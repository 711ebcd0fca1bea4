"""A node alone rests: no timer, no write, until it is asked for something; and a leader that stops hands over."""

from __future__ import annotations

import asyncio
import random

from tests.fakes.files import SimulatedFiles
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import Node
from mainstem.nameserver.config import NameserverConfig
from mainstem.nameserver.nameserver import Nameserver

DAY_SECONDS = 86_400.0


def test_alone_and_idle_nothing_wakes_or_writes() -> None:
    async def scenario() -> None:
        disk = SimulatedFiles()
        node = Node(node_id=1, host="h", port=1)
        nameserver = await Nameserver.open(disk, random.Random(1), NameserverConfig(), node)
        await nameserver.administration.create_topic("t", 1, 1, {})
        assert asyncio.get_running_loop().time() == 0, "nobody had to be waited for"
        changes, turns = disk.changes, 0

        def count() -> None:
            nonlocal turns
            turns += 1
            assert not scheduled(), "a timer of the nameserver's"

        for _ in range(10):
            await asyncio.sleep(DAY_SECONDS / 10)
            count()
        assert (turns, disk.changes) == (10, changes)
        await nameserver.close()

    def scheduled() -> list[object]:
        return list(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]  # noqa: SLF001  # asyncio tells nowhere else

    simulate(scenario())


def test_one_that_may_be_joined_rests_as_well() -> None:
    async def scenario() -> None:
        cluster = Nameservers(51, count=1)
        nameserver = await cluster.start(1)
        assert await nameserver.waits.placed() == dict.fromkeys(range(4), (1,))
        changes = cluster.disks[1].changes
        await asyncio.sleep(DAY_SECONDS)
        assert cluster.disks[1].changes == changes
        await nameserver.administration.create_topic("t", 1, 1, {})
        await cluster.close()

    simulate(scenario())


def test_a_leader_that_stops_hands_over() -> None:
    async def scenario() -> None:
        cluster = Nameservers(52)
        await cluster.start_all()
        for _ in range(5):
            leader = await cluster.elected()
            await asyncio.sleep(1)
            before = asyncio.get_running_loop().time()
            await cluster.stop(leader)
            assert await cluster.elected() != leader
            assert asyncio.get_running_loop().time() - before < 0.5, "an election takes half a second at least"
            await cluster.start(leader)
        await cluster.close()

    simulate(scenario())
