"""The leader of a write group knows how full the disks 1 of its followers are, and who has filled them, whoever leads
the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest
from tests.fakes.clock import FakeClock
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.cluster import disk_pressures
from mainstem.nameserver.cluster.disk_pressures import NO_PRESSURE, STALE_SECONDS, DiskPressures
from mainstem.rpc.messages.metadata import PRESSURE_MAX, TENANTS_PRESSING_MAX, DiskPressure
from mainstem.security.quotas.disk_shares import BEGINS_AT

NOTHING = (NO_PRESSURE, frozenset[str]())


def test_a_leader_hears_of_its_followers_and_of_nobody_else() -> None:
    async def scenario() -> None:
        cluster = Nameservers(91, count=4, write_groups=1)
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        replicas = cluster.running[1].lookups.placements()[0]
        (outside,) = cluster.running.keys() - set(replicas)
        leads, follows, _ = replicas
        cluster.running[leads].learned_leader(0, leads, 1)
        disks: dict[int, tuple[float, Collection[str]]] = dict.fromkeys(cluster.running, NOTHING)
        for node_id, nameserver in cluster.running.items():
            nameserver.measure_disk(lambda node_id=node_id: disks[node_id])  # type: ignore[misc]

        def told(node_id: int) -> tuple[float, frozenset[str]]:
            return cluster.running[node_id].lookups.followers_pressure()

        disks[outside] = 0.75, ["other"]
        await asyncio.sleep(3)
        assert told(leads) == NOTHING, "that one has no replica"
        disks[follows], disks[leads] = (0.25, ["flood"]), (0.5, ["own"])
        await asyncio.sleep(3)
        assert told(leads) == (0.25, frozenset({"flood"})), "its own it knows better"
        assert told(follows) == told(outside) == NOTHING, "they lead nothing"
        disks[follows] = BEGINS_AT, ["flood"]
        await asyncio.sleep(3)
        assert told(leads) == NOTHING
        disks[follows] = -0.25, ["flood", ""]
        metadata_leader = await cluster.elected()
        if metadata_leader not in (leads, follows):
            await cluster.kill(metadata_leader)
        await asyncio.sleep(8)
        assert told(leads) == (-0.25, frozenset({"flood", ""})), "the next leader of the metadata tells as well"
        await cluster.kill(follows)
        await asyncio.sleep(STALE_SECONDS + 8)
        assert told(leads) == NOTHING, "nobody waits for the disk of a node that is gone"
        await cluster.close()

    simulate(scenario())


def test_what_is_heard_is_bounded_and_grows_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pressures, "NODES_PRESSED_MAX", 3)
    clock = FakeClock()
    known = DiskPressures(9, clock.monotonic)
    for node_id in range(1, 9):
        known.heard(node_id, DiskPressure(77, node_id / 10, [str(node_id)]))
    assert [it.node for it in known.told()] == [1, 2, 3], "the connection tells which node it is"
    assert known.of(range(9)) == (0.3, frozenset({"1", "2", "3"}))
    known.heard(3, None)
    assert known.of(range(9)) == (0.2, frozenset({"1", "2"}))
    clock.advance(STALE_SECONDS)
    known.heard(1, DiskPressure(1, 0.5))
    clock.advance(0.1)
    assert known.told() == [DiskPressure(1, 0.5)]
    known.learn([DiskPressure(7, 0.7)])
    assert known.told() == [DiskPressure(7, 0.7)]
    assert known.of([1]) == NOTHING


def test_a_node_tells_of_its_disk_once_there_is_little_room() -> None:
    known = DiskPressures(9, FakeClock().monotonic)
    assert known.own() is None
    known.measure = lambda: (BEGINS_AT, ())
    assert known.own() is None
    crowd = [str(number) for number in range(100)]
    known.measure = lambda: (float("inf"), crowd)
    assert known.own() == DiskPressure(9, PRESSURE_MAX, crowd[:TENANTS_PRESSING_MAX])
