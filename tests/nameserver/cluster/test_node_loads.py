"""The metadata leader knows how loaded the nodes are, whoever leads, and for as long as they tell it."""

from __future__ import annotations

import asyncio
from functools import partial

from tests.fakes.clock import FakeClock
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.cluster.node_loads import SETTLED_SECONDS, STALE_SECONDS, NodeLoads
from mainstem.rpc.messages.loads import ToldLoad, ToldWriteGroupLoad


def load(*groups: tuple[int, float, float], cpu: float = 0.0) -> ToldLoad:
    """(write group, bytes in per second, seconds measured) each."""
    told = [ToldWriteGroupLoad(group, rate, 0.0, 0.0, seconds) for group, rate, seconds in groups]
    return ToldLoad(write_groups=told, cpu_share=cpu)


def test_the_leader_hears_every_node_and_so_does_the_next_leader() -> None:
    async def scenario() -> None:
        cluster = Nameservers(77)
        await cluster.start_all()
        for node_id, nameserver in cluster.running.items():
            nameserver.measure_load(partial(load, (node_id, 100.0 * node_id, 60.0), cpu=node_id / 10))
        for _ in range(2):
            leader = await cluster.elected()
            await asyncio.sleep(3)
            known = cluster.running[leader].loads()
            assert known is not None
            assert {it.node: it.load.cpu_share for it in known.nodes} == {it: it / 10 for it in cluster.running}
            assert {it.group: it.bytes_in for it in known.write_groups} == {it: 100.0 * it for it in cluster.running}
            others = [it for node_id, it in cluster.running.items() if node_id != leader]
            assert all(it.loads() is None for it in others), "the leader alone knows"
            await cluster.kill(leader)
        await cluster.close()

    simulate(scenario())


def test_what_changes_its_leader_keeps_its_load_until_the_next_has_measured_it() -> None:
    clock = FakeClock()
    loads = NodeLoads(1, clock.monotonic)
    loads.heard(2, load((0, 500.0, 300.0)), 1)
    clock.advance(1)
    loads.heard(2, load(), 1)
    loads.heard(3, load((0, 1.0, 1.0)), 1)
    assert [it.bytes_in for it in loads.told(1).write_groups] == [500.0]
    clock.advance(1)
    loads.heard(3, load((0, 400.0, SETTLED_SECONDS)), 1)
    assert [it.bytes_in for it in loads.told(1).write_groups] == [400.0]


def test_a_leader_that_is_gone_for_long_no_longer_says_how_busy_its_write_groups_are() -> None:
    clock = FakeClock()
    loads = NodeLoads(1, clock.monotonic)
    loads.heard(2, load((0, 500.0, 300.0), (1, 7.0, 300.0)), 1)
    clock.advance(STALE_SECONDS + 1)
    assert loads.told(1).nodes == []
    assert len(loads.told(1).write_groups) == 2
    clock.advance(SETTLED_SECONDS)
    loads.heard(3, load((0, 1.0, 5.0)), 1)
    clock.advance(SETTLED_SECONDS)
    assert [(it.group, it.bytes_in) for it in loads.told(1).write_groups] == [(0, 1.0)]


def test_a_new_leadership_begins_with_nothing_and_versions_that_tell_nothing_are_not_known() -> None:
    clock = FakeClock()
    loads = NodeLoads(1, clock.monotonic)
    loads.measure = lambda: load(cpu=0.5)
    loads.heard(2, load((0, 500.0, 300.0)), 1)
    loads.heard(3, None, 1)
    assert [it.node for it in loads.told(1).nodes] == [1, 2]
    assert [(it.node, it.load.cpu_share) for it in loads.told(2).nodes] == [(1, 0.5)]
    assert loads.told(2).write_groups == []
