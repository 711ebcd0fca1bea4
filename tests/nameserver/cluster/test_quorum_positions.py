"""How far the nodes of a cluster are in the metadata's log, as every node tells: its leader is asked."""

from __future__ import annotations

import asyncio

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.nameserver.cluster.log_positions import LogPositions
from mainstem.nameserver.errors import MetadataUnavailable


def test_every_node_tells_of_the_quorum_what_its_leader_knows() -> None:
    async def scenario() -> None:
        cluster = Nameservers(71)
        await cluster.start_all()
        await cluster.start(4)
        await cluster.settled()
        leader = await cluster.elected()
        await asyncio.sleep(3)
        last = cluster.running[leader].lookups.version
        for nameserver in cluster.running.values():
            told = await nameserver.quorum_positions.told()
            assert (told.leader, told.commit_index) == (leader, last)
            assert told.term == cluster.running[leader].lookups.metadata_term
            assert [(it.node_id, it.last_index) for it in told.voters] == [(1, last), (2, last), (3, last)]
            assert [(it.node_id, it.last_index) for it in told.observers] == [(4, last)]
            now_ms = next(it.heard_ms for it in told.voters if it.node_id == leader)
            for it in (*told.voters, *told.observers):
                assert now_ms - 3_000 < it.heard_ms <= now_ms
                assert it.caught_up_ms == it.heard_ms, "nothing changes, so that all have all"
        await cluster.close()

    simulate(scenario())


def test_a_node_that_is_gone_falls_behind_and_was_level_when_it_was_last_heard() -> None:
    async def scenario() -> None:
        cluster = Nameservers(72)
        await cluster.start_all()
        await cluster.settled()
        leader = await cluster.elected()
        await asyncio.sleep(3)
        gone = next(node_id for node_id in cluster.running if node_id != leader)
        before = await cluster.running[leader].quorum_positions.told()
        await cluster.kill(gone)
        for number in range(3):
            await cluster.running[leader].administration.create_topic(f"t{number}", 1, 1, {})
        await asyncio.sleep(5)
        after = await cluster.running[leader].quorum_positions.told()
        (old,) = [it for it in before.voters if it.node_id == gone]
        (new,) = [it for it in after.voters if it.node_id == gone]
        assert after.commit_index >= before.commit_index + 3
        assert new.last_index == old.last_index < after.commit_index
        assert old.caught_up_ms <= new.caught_up_ms <= new.heard_ms
        now_ms = next(it.heard_ms for it in after.voters if it.node_id == leader)
        assert now_ms - new.heard_ms >= 5_000
        await cluster.close()

    simulate(scenario())


def test_without_a_leader_nothing_is_told() -> None:
    async def scenario() -> None:
        cluster = Nameservers(73, change_wait_ms_max=2_000)
        await cluster.start_all()
        leader = await cluster.elected()
        others = [node_id for node_id in cluster.running if node_id != leader]
        for node_id in others:
            await cluster.kill(node_id)
        await cluster.until(lambda: not cluster.running[leader].lookups.leads_metadata)
        with pytest.raises(MetadataUnavailable, match="does not answer"):
            await cluster.running[leader].quorum_positions.told()
        await cluster.close()

    simulate(scenario())


def test_a_node_that_trails_was_level_at_the_heartbeat_before_if_it_has_what_the_leader_had_then() -> None:
    positions = LogPositions()
    assert positions.of(2) is None

    def caught_up(applied: int, leader_applied: int, now: float) -> float | None:
        positions.heard(2, applied, leader_applied, now)
        heard = positions.of(2)
        assert heard is not None
        assert (heard.applied, heard.heard_at) == (applied, now)
        return heard.caught_up_at

    assert caught_up(5, 10, 1.0) is None
    assert caught_up(9, 20, 2.0) is None
    assert caught_up(20, 30, 3.0) == 2.0
    assert caught_up(25, 40, 4.0) == 2.0
    assert caught_up(40, 40, 5.0) == 5.0
