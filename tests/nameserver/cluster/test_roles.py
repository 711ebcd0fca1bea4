"""Nodes that have only some of the roles: what is placed on them, and what they may leave."""

from __future__ import annotations

import asyncio

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import FeatureLevel, LevelRange, NodeRole
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.directory import nodes_named
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidMembership, InvalidPlacement, InvalidRoles

METADATA_ALONE = (NodeRole.NAMESERVER,)
STORES = (NodeRole.BROKER, NodeRole.STORAGE)


async def trio_and_two(seed: int) -> Nameservers:
    """Three nodes that vote, and hold nothing; and two that hold two replicas of each write group."""
    cluster = Nameservers(seed, replication_factor=2)
    cluster.roles = dict.fromkeys((1, 2, 3), METADATA_ALONE) | dict.fromkeys((4, 5), STORES)
    await cluster.start_all()
    await cluster.start(4)
    await asyncio.sleep(5)
    assert not cluster.running[4].lookups.placements(), "one node that stores is too few"
    await cluster.start(5)
    await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
    return cluster


def test_replicas_are_placed_where_they_are_stored_and_clients_are_sent_to_brokers() -> None:
    async def scenario() -> None:
        cluster = await trio_and_two(71)
        for nameserver in cluster.running.values():
            lookups = nameserver.lookups
            assert all(set(replicas) == {4, 5} for replicas in lookups.placements().values())
            assert {node.node_id for node in lookups.alive_nodes()} == {4, 5}
            assert {node.node_id for node in lookups.nodes()} == {1, 2, 3, 4, 5}
            assert lookups.feature_level >= FeatureLevel.ELASTIC
        await cluster.running[1].administration.create_topic("new", 1, 1, {})
        await cluster.running[4].waits.current()
        assert cluster.running[4].lookups.topic("new") is not None, "a node that has no vote knows what is current, too"
        operations = cluster.running[4].operations
        with pytest.raises(InvalidPlacement, match="node 1 does not have the role storage"):
            await operations.move_replica(0, 4, 1)
        with pytest.raises(InvalidPlacement, match="every node that lives and stores"):
            await operations.move_replica(0, 4)
        with pytest.raises(InvalidMembership, match="node 4 does not have the role nameserver"):
            await operations.change_member(1, 4)
        await cluster.close()

    simulate(scenario())


def test_nodes_that_no_leader_of_the_metadata_hears_tell_each_other_who_leads() -> None:
    async def scenario() -> None:
        cluster = await trio_and_two(73)
        cluster.roles[6] = (NodeRole.BROKER,)
        broker = (await cluster.start(6)).lookups
        cluster.running[4].learned_leader(0, 4, 1)
        await cluster.until(lambda: broker.heard(0) == (4, 1))
        cluster.network.split({1, 2, 3}, {4, 5, 6})
        await asyncio.sleep(5)
        cluster.running[5].learned_leader(0, 5, 2)
        await cluster.until(lambda: broker.heard(0) == (5, 2))
        assert cluster.running[1].lookups.heard(0)[1] == 1, "it has heard nothing"
        cluster.network.split({1, 2, 3, 4, 5}, {6})
        cluster.running[4].learned_leader(0, 4, 3)
        await asyncio.sleep(10)
        assert broker.heard(0) == (5, 2), "it hears nobody"
        cluster.network.heal()
        await cluster.until(lambda: all(it.lookups.heard(0) == (4, 3) for it in cluster.running.values()))
        await cluster.close()

    simulate(scenario())


def test_a_stopped_node_names_the_others_that_hold_something_by_its_metadata() -> None:
    async def scenario() -> None:
        cluster = await trio_and_two(70)
        cluster.roles[6] = (NodeRole.BROKER,)
        await cluster.start(6)
        await cluster.start(7)
        await cluster.stop(7)
        operations = cluster.running[await cluster.elected()].operations
        await cluster.until(lambda: cluster.running[1].lookups.verdict(7).state is NodeState.DEAD)
        await operations.set_draining(7, draining=True)
        await operations.remove_node(7)
        await cluster.settled()
        for node_id, others in ((1, [2, 3, 4, 5]), (4, [])):
            await cluster.stop(node_id)
            assert await nodes_named(cluster.disks[node_id], node_id) == others
        await cluster.close()

    simulate(scenario())


def test_a_role_is_kept_as_long_as_something_is_held_by_it() -> None:
    async def scenario() -> None:
        cluster = await trio_and_two(72)
        await cluster.stop(5)
        cluster.roles[5] = METADATA_ALONE
        with pytest.raises(
            InvalidRoles, match=r"without the role storage: it holds replicas of write groups 0, 1, 2, 3"
        ):
            await cluster.start(5)
        await cluster.stop(1)
        cluster.roles[1] = STORES
        with pytest.raises(InvalidRoles, match="node 1 cannot do without the role nameserver: it is a member"):
            await cluster.start(1)
        cluster.roles[1] = (*STORES, *METADATA_ALONE)
        await cluster.start(1)
        for group in range(4):
            await cluster.running[1].operations.move_replica(group, 5, 1)
        await cluster.start(5)
        assert {node.node_id for node in cluster.running[5].lookups.alive_nodes()} == {1, 4}
        await cluster.close()

    simulate(scenario())


def test_some_of_the_roles_take_a_level_that_all_nodes_read() -> None:
    async def scenario() -> None:
        cluster = Nameservers(73)
        cluster.levels = dict.fromkeys((1, 2, 3), LevelRange(newest=FeatureLevel.SECURED))
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        cluster.roles[4] = STORES
        with pytest.raises(FeatureLevelTooLow, match="this takes level 7"):
            await cluster.start(4)
        await cluster.close()

    simulate(scenario())


def test_a_node_that_holds_nothing_is_missed_soon() -> None:
    async def scenario() -> None:
        cluster = Nameservers(74)
        cluster.roles = dict.fromkeys((4, 5), (NodeRole.BROKER,))
        await cluster.start_all()
        await asyncio.gather(cluster.start(4), cluster.start(5))
        await asyncio.sleep(1)
        assert {node.node_id for node in cluster.running[5].lookups.alive(NodeRole.BROKER)} == {1, 2, 3, 4, 5}
        own = cluster.network.ends[5]
        own.cut_off |= {4, 1}
        assert {node.node_id for node in cluster.running[5].lookups.alive_nodes()} == {1, 2, 3, 5}, (
            "a connection that ends tells of a node that holds nothing, and of no other"
        )
        assert cluster.running[5].lookups.verdict(4).state is NodeState.ALIVE, "the metadata's leader is the judge"
        own.cut_off.clear()
        await cluster.kill(4)
        leader = cluster.running[5].lookups.metadata_leader
        gone = next(node_id for node_id in (1, 2, 3) if node_id != leader)
        await cluster.kill(gone)
        await asyncio.sleep(2)
        lookups = cluster.running[5].lookups
        assert lookups.verdict(4).state is NodeState.DEAD, "nothing is risked"
        assert lookups.verdict(gone).state is NodeState.SUSPECTED, "it may only be slow"
        await cluster.close()

    simulate(scenario())
