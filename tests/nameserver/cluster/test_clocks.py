"""The readings of the clocks of the metadata quorum: heartbeats bring them to the leader and from there to
everybody."""

from __future__ import annotations

import asyncio

from tests.fakes.clock import FakeClock
from tests.fakes.simulated_loop import SimulatedLoop
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import LevelRange
from mainstem.nameserver.cluster.clocks import STALE_SECONDS, Clocks
from mainstem.rpc.messages.metadata import NodeClock

YEAR_MS = 366 * 86_400_000
NOW = 1_700_000_000_000


def test_a_reading_goes_on_with_monotonic_time_until_it_is_stale() -> None:
    clock = FakeClock(NOW)
    clocks = Clocks(1, clock)
    clocks.heard(2, NOW + YEAR_MS)
    clock.advance(5)
    assert clocks.time_of(2) == NOW + YEAR_MS + 5000
    assert clocks.time_of(1) == NOW + 5000
    assert clocks.time_of(3) is None
    assert clocks.told() == [NodeClock(1, NOW + 5000), NodeClock(2, NOW + YEAR_MS + 5000, 5000)]
    clock.advance(STALE_SECONDS)
    assert clocks.time_of(2) is None
    assert clocks.told() == [NodeClock(1, NOW + 5000 + int(STALE_SECONDS * 1000))]


def test_what_a_node_is_told_of_itself_and_what_old_versions_leave_out_is_passed_over() -> None:
    clocks = Clocks(1, FakeClock(NOW))
    clocks.learn([NodeClock(1, 5), NodeClock(2, NOW + 9), NodeClock(3, 0)])
    assert [clocks.time_of(node_id) for node_id in (1, 2, 3)] == [NOW, NOW + 9, None]


def test_every_node_hears_what_all_clocks_say() -> None:
    async def scenario() -> None:
        cluster = Nameservers(5)
        await cluster.start_all()
        await cluster.settled()
        loop: SimulatedLoop = asyncio.get_running_loop()  # type: ignore[assignment]
        await cluster.until(
            lambda: all(None not in (it.lookups.quorum_times() or [None]) for it in cluster.running.values())
        )
        for nameserver in cluster.running.values():
            times = nameserver.lookups.quorum_times()
            assert times is not None
            assert len(times) == 3
            assert all(time is not None and abs(time - loop.now_ms()) < 5000 for time in times)
        gone = next(node_id for node_id in cluster.running if node_id != cluster.leader())
        await cluster.kill(gone)
        await asyncio.sleep(STALE_SECONDS + 5)
        for nameserver in cluster.running.values():
            times = nameserver.lookups.quorum_times()
            assert times is not None
            assert [time is None for time in times].count(True) == 1
        await cluster.close()

    simulate(scenario())


def test_in_a_cluster_of_the_first_level_a_node_goes_by_its_own_clock() -> None:
    async def scenario() -> None:
        cluster = Nameservers(6)
        cluster.levels = {2: LevelRange(1, 1)}
        await cluster.start_all()
        await cluster.settled()
        assert [it.lookups.quorum_times() for it in cluster.running.values()] == [None, None, None]
        await cluster.close()

    simulate(scenario())
