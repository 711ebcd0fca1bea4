"""Nodes that show each other their starts, on simulated disks, time and network: who is accused of being an older copy,
and by whom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.fakes.cluster import SimulatedNetwork
from tests.fakes.files import SimulatedFiles
from tests.nameserver.nameservers import simulate

from mainstem.nameserver.cluster.start_check import OldCopy, StartCheck
from mainstem.nameserver.disk.starts import LossCause
from mainstem.nameserver.disk.starts_file import StartsFile
from mainstem.rpc.messages.starts import SHOW_START, StartJudged, StartShown
from mainstem.rpc.raft.raft_member import METADATA_QUORUM
from mainstem.rpc.wire.identity import Identity

HELD, RESTORED, OTHER = 1, 2, 3
NODES = (HELD, RESTORED, OTHER)
LATE_SECONDS = 10.0
"""Long enough for a node that runs to be judged by everybody that answers."""


class Life:
    """One start of a node, which answers the others from its first moment on."""

    def __init__(self, starts: StartsFile, check: StartCheck) -> None:
        self.starts = starts
        self.check = check

    @property
    def forgot(self) -> bool:
        return self.starts.loss is LossCause.COPY


class Nodes:
    def __init__(self, seed: int) -> None:
        self.network = SimulatedNetwork(seed)
        self.disks = {node_id: SimulatedFiles(seed * 10 + node_id) for node_id in NODES}
        self._random = random.Random(seed)
        self._lives: dict[int, Life] = {}

    async def start(self, node_id: int) -> Life:
        """Its files are open, and it answers others; it has yet to show its start."""
        starts = await StartsFile.open(self.disks[node_id], node_id)
        await starts.begin(node_id, "", self._random.randbytes, acknowledges_unsynced=False)
        end = self.network.attach(Identity("cluster", node_id, bytes([node_id]) * 16))
        end.ports.handlers.unary(SHOW_START, starts.answer)
        self._lives[node_id] = Life(starts, StartCheck(node_id, starts, end.ports))
        return self._lives[node_id]

    async def stop(self, node_id: int) -> None:
        self.network.ends[node_id].detach()
        await self._lives.pop(node_id).starts.close()

    async def restart(self, node_id: int, disk: SimulatedFiles | None = None) -> Life:
        """From what it has, or from a copy; returns when it may speak. Its replicas have caught up by then."""
        if node_id in self._lives:
            await self.stop(node_id)
        self.disks[node_id] = disk or self.disks[node_id]
        life = await self.start(node_id)
        await life.check.before_all(NODES)
        return life

    async def catch_up(self, node_id: int) -> None:
        starts = self._lives[node_id].starts
        for group in (0, 1, METADATA_QUORUM):
            await starts.got_back(group)
        await starts.all_got_back()

    def copy(self, node_id: int) -> SimulatedFiles:
        return self.disks[node_id].clone(self._random.randrange(1 << 30))

    async def close(self) -> None:
        for node_id in list(self._lives):
            await self.stop(node_id)
        await self.network.close()


@asynccontextmanager
async def running(seed: int) -> AsyncIterator[Nodes]:
    """Three nodes that have started twice."""
    nodes = Nodes(seed)
    try:
        lives = [await nodes.start(node_id) for node_id in NODES]
        await asyncio.gather(*(life.check.before_all(NODES) for life in lives))
        for node_id in NODES:
            assert not (await nodes.restart(node_id)).forgot
        yield nodes
    finally:
        await nodes.close()


async def both_restored(nodes: Nodes, *, caught_up: bool) -> None:
    """RESTORED is on an older copy, and knows. So does HELD, from an even older one, which the other's does not
    know."""
    first = nodes.copy(HELD)
    await nodes.restart(HELD)
    second = nodes.copy(RESTORED)
    await nodes.restart(RESTORED)
    assert (await nodes.restart(HELD, first)).forgot
    await nodes.catch_up(HELD)
    assert (await nodes.restart(RESTORED, second)).forgot
    if caught_up:
        await nodes.catch_up(RESTORED)


@pytest.mark.parametrize("caught_up", [False, True])
def test_an_older_copy_does_not_accuse_who_was_restored_since(caught_up: bool) -> None:
    async def story() -> None:
        async with running(1) as nodes:
            await both_restored(nodes, caught_up=caught_up)
            life = await nodes.restart(HELD)
            assert not life.forgot
            await asyncio.wait_for(life.check.run(), LATE_SECONDS)  # believed by the other, it is taken at its word
            assert not life.forgot
            for _ in range(2):
                assert not (await nodes.restart(HELD)).forgot

    simulate(story())


def test_who_is_judged_by_an_older_copy_alone_waits_for_somebody_who_can_tell() -> None:
    async def story() -> None:
        async with running(2) as nodes:
            await both_restored(nodes, caught_up=False)
            await nodes.stop(OTHER)
            await nodes.stop(HELD)
            life = await nodes.start(HELD)
            waiting = asyncio.create_task(life.check.before_all(NODES))
            await asyncio.sleep(LATE_SECONDS)
            assert not waiting.done()
            assert not life.forgot
            await nodes.start(OTHER)
            await waiting
            assert not life.forgot

    simulate(story())


def test_an_older_copy_is_right_about_who_was_never_restored() -> None:
    async def story() -> None:
        async with running(3) as nodes:
            older = nodes.copy(HELD)
            nodes.network.split({HELD, RESTORED}, {OTHER})
            await nodes.restart(HELD)  # the third does not see that
            nodes.network.heal()
            second = nodes.copy(RESTORED)
            await nodes.restart(RESTORED)
            assert (await nodes.restart(RESTORED, second)).forgot
            await nodes.stop(HELD)
            nodes.disks[HELD] = older
            life = await nodes.start(HELD)
            nodes.network.cut.add(frozenset({HELD, RESTORED}))
            await life.check.before_all(NODES)  # the third knows nothing better
            nodes.network.heal()
            told: list[OldCopy] = []
            life.check.found_late.add_done_callback(lambda found: told.append(found.result()))
            with pytest.raises(OldCopy, match=f"node {RESTORED} has seen a start") as raised:
                await asyncio.wait_for(life.check.run(), LATE_SECONDS)
            assert life.forgot
            life.check.found_late.add_done_callback(lambda found: told.append(found.result()))
            assert told == [raised.value] * 2, "also those are told that ask only then"

    simulate(story())


def test_a_second_restore_is_found_out_by_whoever_goes_by_no_copy() -> None:
    async def story() -> None:
        async with running(4) as nodes:
            await both_restored(nodes, caught_up=True)
            older = nodes.copy(HELD)
            await nodes.restart(HELD)
            assert (await nodes.restart(HELD, older)).forgot

    simulate(story())


def test_nodes_of_a_version_that_judges_no_starts_are_not_waited_for() -> None:
    async def scenario() -> None:
        async with running(9) as nodes:
            for node_id in (RESTORED, OTHER):
                await nodes.restart(node_id)
                await nodes.stop(node_id)
                nodes.network.attach(Identity("cluster", node_id, bytes([node_id]) * 16))
            async with asyncio.timeout(LATE_SECONDS):
                life = await nodes.restart(HELD)
                await life.check.run()
            assert not life.forgot

    simulate(scenario())


def test_what_was_shown_is_on_the_disk_before_it_is_answered() -> None:
    """The node that judges loses its power right after its answer; a copy from before that start is found out after."""

    async def scenario() -> None:
        async with running(10) as nodes:
            await nodes.restart(OTHER)
            await nodes.restart(RESTORED)
            copy = nodes.copy(RESTORED)
            await nodes.restart(RESTORED)
            await nodes.stop(OTHER)
            nodes.disks[OTHER].crash(keep_bytes=0)
            await nodes.restart(OTHER)
            life = await nodes.restart(RESTORED, copy)
            assert life.forgot

    simulate(scenario())


class OldJudged(msgspec.Struct):
    matches: bool


class OldShown(msgspec.Struct):
    drawn: list[bytes]
    forgot: bool


def test_older_versions_read_the_messages_and_newer_ones_theirs() -> None:
    judged = msgspec.msgpack.encode(StartJudged(False, outdated=True))
    assert msgspec.msgpack.decode(judged, type=OldJudged) == OldJudged(False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(OldJudged(True)), type=StartJudged) == StartJudged(True)
    shown = StartShown([bytes(8)], forgot=False, restored=True, believed=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shown), type=OldShown) == OldShown([bytes(8)], False)
    old = msgspec.msgpack.encode(OldShown([bytes(8)], True))
    assert msgspec.msgpack.decode(old, type=StartShown) == StartShown([bytes(8)], forgot=True)
