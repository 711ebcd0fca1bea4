"""Nodes that follow the metadata wait for entries that they know of, not for long."""

from __future__ import annotations

import asyncio

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import NewTopic, NodeRole
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.quorum.follow import SILENCE_SECONDS_MAX
from mainstem.nameserver.waits import FOLLOW_SECONDS_MAX, FOLLOW_TRIES

BROKER = 4


async def trio_and_a_broker(seed: int) -> Nameservers:
    cluster = Nameservers(seed)
    cluster.roles[BROKER] = (NodeRole.BROKER,)
    await cluster.start_all()
    await cluster.start(BROKER)
    await cluster.settled()
    return cluster


async def another_entry(cluster: Nameservers) -> int:
    """An entry that all members have applied."""
    leader = cluster.running[await cluster.elected()]
    await leader.administration.create_topics([NewTopic(f"topic-{leader.replica.applied_index}", 1, 3, {})])
    index = leader.replica.applied_index
    await cluster.until(lambda: all(it.replica.applied_index >= index for it in members(cluster)))
    return index


def members(cluster: Nameservers) -> list[Nameserver]:
    return [it for node_id, it in cluster.running.items() if node_id != BROKER]


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_a_member_that_is_silent_about_an_entry_is_left_for_another(hidden: int) -> None:
    async def scenario() -> None:
        cluster = await trio_and_a_broker(80)
        broker = cluster.running[BROKER]
        cluster.network.cut = {frozenset({BROKER, hidden})}
        index = await another_entry(cluster)
        began = asyncio.get_running_loop().time()
        waiting = [asyncio.create_task(broker.waits.followed(index)) for _ in range(3)]
        await asyncio.gather(*waiting, broker.waits.followed(index))
        assert broker.replica.applied_index >= index
        assert not broker.waits.is_behind
        assert asyncio.get_running_loop().time() - began < SILENCE_SECONDS_MAX / 2
        await cluster.close()

    simulate(scenario())


def test_a_node_that_no_member_tells_of_an_entry_goes_on_without_it() -> None:
    async def scenario() -> None:
        cluster = await trio_and_a_broker(81)
        broker, loop = cluster.running[BROKER], asyncio.get_running_loop()
        cluster.network.split({1, 2, 3}, {BROKER})
        index = await another_entry(cluster)
        began = loop.time()
        await broker.waits.followed(index)
        assert loop.time() - began <= FOLLOW_TRIES * FOLLOW_SECONDS_MAX
        assert broker.waits.is_behind
        began = loop.time()
        await broker.waits.followed(index + 1)
        assert loop.time() == began, "who waits once more waits for nothing"
        cluster.network.heal()
        await cluster.until(lambda: broker.replica.applied_index >= index)
        assert not broker.waits.is_behind
        await broker.waits.followed(index)
        await cluster.close()

    simulate(scenario())
