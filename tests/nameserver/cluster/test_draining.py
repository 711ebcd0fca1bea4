"""Nodes are drained by whoever leads the metadata, through deaths of leaders, until they hold and vote nothing. The
replicas of lost nodes are rebuilt on others, unless those return first."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import FeatureLevel, slot_of
from mainstem.nameserver.cluster.node_liveness import NodeState
from mainstem.nameserver.errors import InvalidPlacement, NodeWasRemoved
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans import reduced_slots
from mainstem.nameserver.state.plans.drain_plan import GroupStanding

COPY_SECONDS = 2.5
"""For which a new replica learns."""


class WriteGroups:
    """Stands for the storage roles: the members of each write group follow what a node knows of placement, later."""

    def __init__(self, cluster: Nameservers) -> None:
        self._cluster = cluster
        self.voters: dict[int, frozenset[int]] = {}
        self.stands_still = False

    async def follow(self) -> None:
        while True:
            await asyncio.sleep(COPY_SECONDS)
            lookups = self._cluster.running[min(self._cluster.running)].lookups
            for group, replicas in lookups.placements().items():
                if not self.stands_still:
                    self.voters[group] = frozenset(replicas)

    async def standings(self) -> dict[int, GroupStanding]:
        return {group: GroupStanding(voters, voters, voters) for group, voters in self.voters.items()}


@asynccontextmanager
async def draining_cluster(seed: int, **config: int) -> AsyncIterator[tuple[Nameservers, WriteGroups]]:
    """Three nodes that hold everything, and a fourth that holds nothing."""
    cluster = Nameservers(seed, write_groups=3, **config)
    groups = WriteGroups(cluster)
    async with asyncio.TaskGroup() as tasks:
        await cluster.start_all()
        await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
        await cluster.start(4)
        works = [tasks.create_task(groups.follow())]
        works += [tasks.create_task(drains(it, groups)) for it in cluster.running.values()]
        await cluster.until(lambda: bool(groups.voters))
        try:
            yield cluster, groups
        finally:
            for work in works:
                work.cancel()
            await cluster.close()


async def drains(nameserver: Nameserver, groups: WriteGroups) -> None:
    await nameserver.draining(groups.standings).run()


def holds(cluster: Nameservers, node_id: int) -> bool:
    lookups = cluster.running[min(cluster.running)].lookups
    return any(node_id in replicas for replicas in lookups.placements().values())


@pytest.mark.parametrize("drains_leader", [True, False], ids=["the leader", "another node"])
def test_a_drained_node_gives_away_its_replicas_and_its_vote(drains_leader: bool) -> None:
    async def scenario() -> None:
        async with draining_cluster(81) as (cluster, _):
            leader = await cluster.elected()
            node_id = leader if drains_leader else next(it for it in (1, 2, 3) if it != leader)
            others = {1, 2, 3, 4} - {node_id}
            asked = cluster.running[4]
            assert asked.lookups.feature_level >= FeatureLevel.ELASTIC
            await asked.operations.set_draining(node_id, draining=True)
            await cluster.until(lambda: not holds(cluster, node_id))
            await cluster.until(lambda: asked.lookups.metadata_voters == others)
            assert all(set(replicas) == others for replicas in asked.lookups.placements().values())
            assert cluster.leader() != node_id
            with pytest.raises(InvalidPlacement, match=rf"node {node_id} is drained.*--cancel"):
                await asked.operations.move_replica(0, 4, node_id)

    simulate(scenario())


def test_a_drain_goes_on_under_the_next_leader_with_one_move_at_a_time() -> None:
    async def scenario() -> None:
        async with draining_cluster(82) as (cluster, groups):
            leader = await cluster.elected()
            node_id, other = (it for it in (1, 2, 3) if it != leader)
            await cluster.running[other].operations.set_draining(node_id, draining=True)
            lookups = cluster.running[other].lookups
            await cluster.until(lambda: any(4 in replicas for replicas in lookups.placements().values()))
            groups.stands_still = True
            await cluster.kill(leader)
            await cluster.elected()
            await asyncio.sleep(10)
            moved = [replicas for replicas in lookups.placements().values() if 4 in replicas]
            assert len(moved) == 1, "the move of the last leader is still under way"
            await cluster.start(leader)
            groups.stands_still = False
            await cluster.until(lambda: not holds(cluster, node_id) and node_id not in lookups.metadata_voters)

    simulate(scenario())


def test_a_drain_that_is_cancelled_begins_no_other_move_and_outlives_restarts() -> None:
    async def scenario() -> None:
        async with draining_cluster(83) as (cluster, groups):
            leader = await cluster.elected()
            node_id, other = (it for it in (1, 2, 3) if it != leader)
            groups.stands_still = True
            nameserver = cluster.running[other]
            with pytest.raises(InvalidPlacement, match="node 9 is not registered"):
                await nameserver.operations.set_draining(9, draining=True)
            await nameserver.operations.set_draining(node_id, draining=True)
            await cluster.until(lambda: bool(nameserver.lookups.placements()))
            for number in range(200):  # more than the log keeps: a snapshot takes its place
                await nameserver.administration.create_topic(f"t{number}", 1, 1, {"retention.ms": "1000"})
            await cluster.kill(node_id)
            back = await cluster.start(node_id)
            await cluster.until(lambda: back.lookups.draining == {node_id})
            await nameserver.operations.set_draining(node_id, draining=False)
            groups.stands_still = False
            placements = nameserver.lookups.placements()
            await asyncio.sleep(10)
            assert nameserver.lookups.placements() == placements
            assert node_id in nameserver.lookups.metadata_voters
            await cluster.settled()

    simulate(scenario())


REBUILT_AFTER = 20


def test_what_a_lost_node_held_is_rebuilt_one_replica_at_a_time_and_it_keeps_its_vote() -> None:
    async def scenario() -> None:
        async with draining_cluster(84, rebuild_after_seconds=REBUILT_AFTER) as (cluster, groups):
            leader = await cluster.elected()
            lost = next(it for it in (1, 2, 3) if it != leader)
            lookups = cluster.running[leader].lookups
            placed = lookups.placements()
            groups.stands_still = True
            await cluster.kill(lost)
            await asyncio.sleep(REBUILT_AFTER)
            assert lookups.placements() == placed, "it was held for dead some seconds later"
            await asyncio.sleep(REBUILT_AFTER)
            assert [4 in replicas for replicas in lookups.placements().values()].count(True) == 1
            groups.stands_still = False
            await cluster.until(lambda: not any(lost in voters for voters in groups.voters.values()))
            assert lost in lookups.metadata_voters
            await cluster.start(lost)
            await asyncio.sleep(REBUILT_AFTER)
            assert not holds(cluster, lost)

    simulate(scenario())


def test_a_lost_node_that_returns_keeps_what_is_not_rebuilt_yet() -> None:
    async def scenario() -> None:
        async with draining_cluster(85, rebuild_after_seconds=REBUILT_AFTER) as (cluster, groups):
            leader = await cluster.elected()
            lost = next(it for it in (1, 2, 3) if it != leader)
            lookups = cluster.running[leader].lookups
            placed = {group: set(replicas) for group, replicas in lookups.placements().items()}
            groups.stands_still = True
            await cluster.kill(lost)
            await cluster.until(lambda: any(4 in replicas for replicas in lookups.placements().values()))
            await cluster.start(lost)
            await cluster.until(
                lambda: {group: set(replicas) for group, replicas in lookups.placements().items()} == placed
            )
            groups.stands_still = False
            await asyncio.sleep(REBUILT_AFTER)
            assert {group: set(replicas) for group, replicas in lookups.placements().items()} == placed

    simulate(scenario())


def queue_in(cluster: Nameservers, group: int) -> tuple[str, int]:
    """A partition of topic `moves` in a write group."""
    lookups = cluster.running[min(cluster.running)].lookups
    (topic,) = [it for it in lookups.topics() if it.name == "moves"]
    queues = ((topic.name, it) for it in range(topic.partitions) if lookups.write_group(topic.queue_id(it)) == group)
    return next(queues)


async def create_moves(nameserver: Nameserver) -> None:
    """A topic with queues in all write groups."""
    await nameserver.administration.create_topic("moves", 16, 3, {})


def test_a_slot_on_its_way_keeps_the_replicas_of_its_write_groups_and_no_others() -> None:
    async def scenario() -> None:
        async with draining_cluster(87, rebuild_after_seconds=REBUILT_AFTER) as (cluster, groups):
            leader = await cluster.elected()
            lost = next(it for it in (1, 2, 3) if it != leader)
            nameserver = cluster.running[leader]
            await create_moves(nameserver)
            await nameserver.operations.move_slot_of(*queue_in(cluster, 0), 1)
            await cluster.kill(lost)
            await cluster.until(lambda: lost not in groups.voters[2])
            await asyncio.sleep(REBUILT_AFTER)
            placed = nameserver.lookups.placements()
            assert [lost in placed[group] for group in range(3)] == [True, True, False]
            (slot,) = nameserver.lookups.moving_slots.wishes
            await nameserver.operations.keep_slot(slot)
            await cluster.until(lambda: not any(lost in voters for voters in groups.voters.values()))

    simulate(scenario())


def test_slots_that_go_back_to_their_class_are_asked_for_once_while_a_node_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reduced_slots, "RESTORED_FROM", 1)

    async def scenario() -> None:
        async with draining_cluster(86, rebuild_after_seconds=REBUILT_AFTER) as (cluster, groups):
            nameserver = cluster.running[await cluster.elected()]
            lookups, operations = nameserver.lookups, nameserver.operations
            await operations.set_draining(4, draining=True)  # no node takes what a lost one held
            await operations.add_write_groups(4, 1)
            await cluster.until(lambda: 3 in groups.voters)
            await nameserver.administration.create_topic("a", 2, 3, {})
            topic = lookups.topic("a")
            assert topic is not None
            slots = [slot_of(topic.queue_id(partition)) for partition in range(2)]
            for partition, slot in enumerate(slots):
                await operations.move_slot_of("a", partition, 3)
                await operations.slot_moved(slot, 3, 1, [])
                await operations.slot_settled(slot, 1)
            (single,) = lookups.placements()[3]
            lost = next(it for it in (1, 2, 3) if it not in (cluster.leader(), single))
            await nameserver.administration.delete_topics(["a"])
            await cluster.until(lambda: lookups.moving_slots.wishes.keys() == set(slots))
            await cluster.kill(lost)
            await asyncio.sleep(3 * REBUILT_AFTER)
            assert [caplog.text.count(f"slot {slot} stays where it is") for slot in slots] == [1, 1]
            assert lookups.moving_slots.wishes == {}

    simulate(scenario())


def test_a_move_that_waits_for_a_lost_node_is_taken_back_and_its_replica_is_rebuilt() -> None:
    async def scenario() -> None:
        async with draining_cluster(88, rebuild_after_seconds=REBUILT_AFTER) as (cluster, groups):
            leader = await cluster.elected()
            nameserver = cluster.running[leader]
            lookups, operations = nameserver.lookups, nameserver.operations
            await create_moves(nameserver)
            other = next(it for it in (1, 2, 3) if it != leader)
            await operations.move_replica(1, other, 4)
            await cluster.until(lambda: 4 in groups.voters[1])
            await operations.move_slot_of(*queue_in(cluster, 0), 1)
            await operations.move_slot_of(*queue_in(cluster, 2), 0)
            assert lookups.guests()[0] == {4}
            await cluster.kill(4)
            await cluster.until(lambda: 4 not in groups.voters[1])
            assert [wish.group for wish in lookups.moving_slots.wishes.values()] == [0], "this one waits for no guest"

    simulate(scenario())


@pytest.mark.parametrize(("after", "killed"), [(0, 1), (REBUILT_AFTER, 2)], ids=["switched off", "half are dead"])
def test_nothing_is_rebuilt_by_itself(after: int, killed: int) -> None:
    async def scenario() -> None:
        async with draining_cluster(86, rebuild_after_seconds=after) as (cluster, _):
            leader = await cluster.elected()
            gone = [it for it in (4, 1, 2, 3) if it != leader][:killed]
            lookups = cluster.running[leader].lookups
            placed = lookups.placements()
            await asyncio.gather(*(cluster.kill(it) for it in gone))
            await asyncio.sleep(3 * REBUILT_AFTER)
            assert cluster.leader()
            assert lookups.placements() == placed

    simulate(scenario())


def test_a_node_that_is_drained_and_dead_is_removed_and_refused_when_it_comes_back() -> None:
    async def scenario() -> None:
        async with draining_cluster(87) as (cluster, _):
            leader = await cluster.elected()
            node_id, other = (it for it in (1, 2, 3) if it != leader)
            nameserver = cluster.running[other]
            operations, lookups = nameserver.operations, nameserver.lookups
            for wrong, why in ((9, "not registered"), (node_id, "member of the metadata quorum")):
                with pytest.raises(InvalidPlacement, match=why):
                    await operations.remove_node(wrong)
            await operations.set_draining(node_id, draining=True)
            await cluster.until(lambda: not holds(cluster, node_id) and node_id not in lookups.metadata_voters)
            with pytest.raises(InvalidPlacement, match=f"node {node_id} is alive: stop it first"):
                await operations.remove_node(node_id)
            await cluster.kill(node_id)
            await cluster.until(lambda: lookups.verdict(node_id).state is NodeState.DEAD)
            await operations.remove_node(node_id)
            assert node_id not in {node.node_id for node in lookups.nodes()}
            assert lookups.draining == frozenset()
            with pytest.raises(InvalidPlacement, match=f"node {node_id} is removed already"):
                await operations.remove_node(node_id)

            with pytest.raises(NodeWasRemoved, match=f"node {node_id} was removed from this cluster"):
                await cluster.start(node_id)
            for number in range(200):  # a snapshot takes the place of the log
                await nameserver.administration.create_topic(f"t{number}", 1, 1, {"retention.ms": "1000"})
            cluster.disks.pop(node_id)
            with pytest.raises(NodeWasRemoved, match=f"node {node_id} was removed from this cluster"):
                await cluster.start(node_id)
            assert node_id not in {node.node_id for node in lookups.nodes()}

    simulate(scenario())


def test_a_node_that_is_not_drained_is_not_removed_and_one_that_only_serves_clients_needs_no_drain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with draining_cluster(88) as (cluster, _):
            leader = await cluster.elected()
            operations, lookups = cluster.running[leader].operations, cluster.running[leader].lookups
            cluster.roles[5] = ("broker",)
            broker = await cluster.start(5)
            await cluster.kill(4)
            cluster.network.split({1, 2, 3}, {5})

            def are_dead() -> bool:
                return all(lookups.verdict(node_id).state is NodeState.DEAD for node_id in (4, 5))

            await cluster.until(are_dead)
            with pytest.raises(InvalidPlacement, match="node 4 is not drained"):
                await operations.remove_node(4)
            await operations.remove_node(5)
            assert 5 not in {node.node_id for node in lookups.nodes()}
            assert not broker.supervision.ended.done(), "it has not heard of it"
            cluster.network.heal()
            await cluster.until(broker.supervision.ended.done)
            assert "node 5 was removed from this cluster" in str(broker.supervision.why_not())
            assert "node 5 is dead" in caplog.text
            assert "node 5 is alive" not in caplog.text, "it is gone"

    simulate(scenario())
