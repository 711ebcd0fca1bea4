"""The metadata leader spreads load by itself where it shall: slowly, with its reasons, and never while the cluster has
other things to do."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.nameserver.cluster.test_draining import COPY_SECONDS, WriteGroups
from tests.nameserver.nameservers import Nameservers, simulate

from mainstem.model import OWN_LEVELS, FeatureLevel, partition_of, slot_of
from mainstem.nameserver.cluster.balance_planner import ToldFacts
from mainstem.nameserver.cluster.balancing import QUEUES_SETTLED_SECONDS, Balancer
from mainstem.nameserver.cluster.begun_moves import begin_moves
from mainstem.nameserver.cluster.unbegun_moves import UNBEGUN_LOOKS_MAX
from mainstem.nameserver.lookups import MetadataLookups
from mainstem.nameserver.nameserver import Nameserver
from mainstem.nameserver.state.plans.balance_plan import BalanceMove
from mainstem.rpc.messages.loads import (
    BY_BALANCER,
    ToldBalancer,
    ToldLoad,
    ToldLoads,
    ToldMove,
    ToldQueuePart,
    ToldWriteGroupLoad,
)

LOOK_SECONDS = 2
REST_SECONDS = 20
MB = 1e6


class BalancedCluster(Nameservers):
    """Each write group takes in what `rates` has; node 4 holds nothing at first."""

    def __init__(self, seed: int, **config: Any) -> None:
        own = {"balance": "replicas", "balance_seconds": LOOK_SECONDS, "balance_rest_seconds": REST_SECONDS}
        super().__init__(seed, 3, **{"write_groups": 4, **own, **config})
        self.groups = WriteGroups(self)
        self.rates = dict.fromkeys(range(4), 10 * MB)
        self.busiest: dict[int, list[ToldQueuePart]] = {}
        self.balancers: dict[int, Balancer] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.as_planned: Callable[[], Coroutine[Any, Any, None]] | None = None
        """A change of the metadata that somebody makes once, while the next plan is made from what was before."""

    async def start(self, node_id: int, **config: Any) -> Nameserver:
        nameserver = await super().start(node_id, **config)
        draining = nameserver.draining(self.groups.standings)
        planner = nameserver.balance_planner(draining.takers, lambda group: self.leader_of(group), self.told)
        nameserver.measure_load(lambda: self.load(node_id))
        self.balancers[node_id] = balancer = nameserver.balancer(planner, draining.takers)
        self.tasks[node_id] = asyncio.create_task(balancer.run())
        return nameserver

    async def kill(self, node_id: int) -> None:
        self.tasks.pop(node_id).cancel()
        self.balancers.pop(node_id)
        await super().kill(node_id)

    def any_lookups(self) -> MetadataLookups:
        return self.running[self.leader() or min(self.running)].lookups

    def leader_of(self, group: int) -> int:
        return self.any_lookups().placements().get(group, (-1,))[0]

    def load(self, node_id: int) -> ToldLoad:
        led = [group for group in self.rates if self.leader_of(group) == node_id]
        told = [ToldWriteGroupLoad(it, self.rates[it], 0.0, 0.0, 3600.0, self.busiest.get(it, [])) for it in led]
        return ToldLoad(write_groups=told)

    async def told(self) -> ToldFacts:
        if self.as_planned is not None:
            self.changing, self.as_planned = asyncio.create_task(self.as_planned()), None
        loads = self.running[self.leader()].loads() if self.leader() else None
        slots = [move for it in self.running.values() for move in it.recent_moves.slots_told()]
        slots.sort(key=lambda it: it.age_seconds)
        return ToldFacts(await self.groups.standings(), loads or ToldLoads([], []), self.moves(), slots)

    def moves(self) -> list[ToldMove]:
        """All that nodes which run remember, the newest first."""
        return sorted(
            (move for it in self.running.values() for move in it.recent_moves.told()), key=lambda it: it.age_seconds
        )

    def balancer(self) -> ToldBalancer:
        told = self.balancers[self.leader()].told()
        assert told is not None
        return told

    def placements(self) -> dict[int, tuple[int, ...]]:
        return dict(self.any_lookups().placements())


@asynccontextmanager
async def balanced_cluster(
    seed: int, *, spare: bool = True, newest: int = OWN_LEVELS.newest, **config: Any
) -> AsyncIterator[BalancedCluster]:
    cluster = BalancedCluster(seed, **config)
    cluster.levels.update(dict.fromkeys(range(1, 5), OWN_LEVELS._replace(newest=newest)))
    await cluster.start_all()
    await cluster.until(lambda: all(it.lookups.placements() for it in cluster.running.values()))
    if spare:
        await cluster.start(4)
    following = asyncio.create_task(cluster.groups.follow())
    await cluster.until(lambda: bool(cluster.groups.voters))
    await cluster.elected()
    try:
        yield cluster
    finally:
        following.cancel()
        await cluster.close()


def held_by(cluster: BalancedCluster, node_id: int) -> int:
    return sum(node_id in replicas for replicas in cluster.placements().values())


def test_a_node_that_came_gets_its_share_one_move_at_a_time_for_a_reason_that_is_kept() -> None:
    async def scenario() -> None:
        async with balanced_cluster(91) as cluster:
            before = cluster.placements()
            await asyncio.sleep(2 * LOOK_SECONDS)
            assert cluster.placements() == before, "the load has not lasted yet"
            assert "should give something away" in cluster.balancer().waits_for
            await cluster.until(lambda: held_by(cluster, 4) > 0, 10 * LOOK_SECONDS)
            (first,) = cluster.moves()
            assert first.why.startswith(BY_BALANCER)
            assert "MB/s" in first.why or "replicas there" in first.why
            await cluster.until(lambda: held_by(cluster, 4) == 3, 60 * LOOK_SECONDS)
            await asyncio.sleep(20 * LOOK_SECONDS)
            even = cluster.placements()
            ages = [it.age_seconds for it in cluster.moves()]
            assert all(older - newer >= LOOK_SECONDS for newer, older in itertools.pairwise(ages))
            await asyncio.sleep(2 * REST_SECONDS)
            assert cluster.placements() == even, "it comes to an end"
            assert cluster.balancer().waits_for == ""
            assert cluster.balancer().moves_last_hour == len(cluster.moves())

    simulate(scenario())


async def pin(cluster: BalancedCluster, old: int, new: int) -> None:
    """Have a queue move from one write group to another, and have records in both."""
    leader = cluster.running[await cluster.elected()]
    await leader.administration.create_topic("moved", 64, 1, {})
    topic = leader.lookups.topic("moved")
    assert topic is not None
    partition = next(it for it in range(64) if leader.lookups.write_group(topic.queue_id(it)) == old)
    await leader.operations.move_slot_of("moved", partition, new)
    slot = slot_of(topic.queue_id(partition))
    await leader.operations.slot_moved(slot, new, leader.lookups.moving_slots.wishes[slot].number, [old])


def test_where_queues_keep_replicas_in_place_other_write_groups_move() -> None:
    async def scenario() -> None:
        async with balanced_cluster(99, newest=FeatureLevel.STORED) as cluster:
            assert cluster.any_lookups().feature_level is FeatureLevel.STORED
            await pin(cluster, 0, 1)
            before = cluster.placements()
            await cluster.until(lambda: held_by(cluster, 4) == 2, 100 * LOOK_SECONDS + QUEUES_SETTLED_SECONDS)
            after = cluster.placements()
            assert [after[group] == before[group] for group in range(4)] == [True, True, False, False]
            await asyncio.sleep(20 * LOOK_SECONDS)
            assert cluster.placements() == after
            assert cluster.balancer().waits_for == ""

    simulate(scenario())


def test_a_move_that_is_refused_by_now_does_not_stop_the_rest_of_a_rebalance() -> None:
    async def scenario() -> None:
        async with balanced_cluster(89, balance="off", newest=FeatureLevel.STORED) as cluster:
            placed = cluster.placements()
            planned = [BalanceMove(group, placed[group][0], 4, "") for group in range(4)]
            planned[1] = BalanceMove(1, placed[1][0], placed[1][1], "", preferred=True)
            await pin(cluster, 0, 1)
            begun, refused = await begin_moves(planned, cluster.running[cluster.leader()].operations)
            assert begun == planned[1:]
            (why,) = refused
            assert why.startswith("write group 0: its replica stays where it is while queues of slot ")
            assert [4 in replicas for replicas in cluster.placements().values()] == [False, False, True, True]

    simulate(scenario())


def test_with_leaders_alone_nothing_is_copied() -> None:
    async def scenario() -> None:
        async with balanced_cluster(92, balance="leaders") as cluster:
            led = {group: replicas[0] for group, replicas in cluster.placements().items()}
            ((most, _),) = Counter(led.values()).most_common(1)
            cluster.rates = {group: 30 * MB if node == most else MB for group, node in led.items()}
            sets = {group: set(replicas) for group, replicas in cluster.placements().items()}
            await asyncio.sleep(40 * LOOK_SECONDS)
            assert {group: set(replicas) for group, replicas in cluster.placements().items()} == sets
            assert cluster.moves(), "a node led most of what there is"
            assert all(move.preferred for move in cluster.moves())

    simulate(scenario())


def test_a_new_leader_looks_for_itself_first_and_goes_on() -> None:
    async def scenario() -> None:
        async with balanced_cluster(93) as cluster:
            await cluster.until(lambda: held_by(cluster, 4) == 1, 10 * LOOK_SECONDS)
            leader = cluster.leader()
            await asyncio.sleep(COPY_SECONDS)
            await cluster.kill(leader)
            await cluster.elected()
            before = cluster.placements()
            await asyncio.sleep(6 * LOOK_SECONDS)
            assert cluster.placements() == before, "a node is dead that has replicas"
            assert cluster.balancer().waits_for == f"node {leader} is dead"
            await cluster.start(leader)
            await cluster.until(lambda: held_by(cluster, 4) == 3, 100 * LOOK_SECONDS)

    simulate(scenario())


def test_nothing_begins_while_a_node_is_drained_a_replica_is_on_its_way_or_a_disk_is_full() -> None:
    async def scenario() -> None:
        async with balanced_cluster(94) as cluster:
            leader = cluster.leader()
            other, third = (it for it in (1, 2, 3) if it != leader)
            operations = cluster.running[leader].operations
            await operations.set_draining(other, draining=True)
            await asyncio.sleep(6 * LOOK_SECONDS)
            assert cluster.balancer().waits_for == f"node {other} is being drained"
            await operations.set_draining(other, draining=False)
            cluster.groups.stands_still = True
            await operations.move_replica(0, third, 4)
            await asyncio.sleep(6 * LOOK_SECONDS)
            assert cluster.balancer().waits_for == "write group 0: a replica is on its way"
            assert len(cluster.moves()) == 1
            cluster.groups.stands_still = False
            await cluster.until(lambda: held_by(cluster, 4) == 3, 100 * LOOK_SECONDS)

    simulate(scenario())


def test_an_hour_has_as_many_moves_as_it_may() -> None:
    async def scenario() -> None:
        async with balanced_cluster(95, balance_moves_per_hour=1) as cluster:
            await cluster.until(lambda: held_by(cluster, 4) == 1, 10 * LOOK_SECONDS)
            await asyncio.sleep(REST_SECONDS + 10 * LOOK_SECONDS)
            assert held_by(cluster, 4) == 1
            assert "as many as it may" in cluster.balancer().waits_for

    simulate(scenario())


def test_where_it_is_off_nothing_is_told_of_it() -> None:
    async def scenario() -> None:
        async with balanced_cluster(96, balance="off") as cluster:
            assert cluster.balancers[cluster.leader()].told() is None
            assert not cluster.balancers[cluster.leader()].is_on

    simulate(scenario())


async def has_busy_queue(cluster: BalancedCluster, **configs: str) -> tuple[int, int]:
    """Three nodes lead a write group each, of which the first one has most of the traffic; half of that is one queue's.
    That queue, and the write group."""
    led = {replicas[0]: group for group, replicas in cluster.placements().items()}
    (busy, *others) = led.values()
    cluster.rates = {group: 90 * MB if group == busy else 4 * MB for group in led.values()}
    administration = cluster.running[cluster.leader()].administration
    await administration.create_topic("orders", 64, 1, configs)
    topic = cluster.any_lookups().topic("orders")
    assert topic is not None
    assert others
    queue_id = next(it for it in map(topic.queue_id, range(64)) if cluster.any_lookups().write_group(it) == busy)
    cluster.busiest = {busy: [ToldQueuePart(queue_id, 0.5)]}
    return queue_id, busy


def test_a_queue_moves_where_nothing_else_helps_and_only_once() -> None:
    async def scenario() -> None:
        async with balanced_cluster(97, balance="queues", write_groups=3, spare=False) as cluster:
            queue_id, busy = await has_busy_queue(cluster)
            slot = slot_of(queue_id)
            await asyncio.sleep(2 * LOOK_SECONDS)
            assert not cluster.any_lookups().moving_slots.wishes
            await cluster.until(lambda: slot in cluster.any_lookups().moving_slots.wishes, 20 * LOOK_SECONDS)
            leader = cluster.running[cluster.leader()]
            wish = leader.lookups.moving_slots.wishes[slot]
            (told,) = leader.recent_moves.slots_told()
            assert (told.slot, told.topic, told.old, told.new) == (slot, "orders", busy, wish.group)
            assert told.why.startswith(f"{BY_BALANCER}sent on node ")
            await leader.operations.slot_move_begins(slot, wish.group, wish.number)
            await asyncio.sleep(2 * UNBEGUN_LOOKS_MAX * LOOK_SECONDS)
            assert cluster.balancer().waits_for == f"slot {slot} is on its way to another write group"
            await leader.operations.slot_moved(slot, wish.group, wish.number, [busy])
            cluster.busiest = {wish.group: [ToldQueuePart(queue_id, 45 / 49)]}
            cluster.rates[wish.group] += 45 * MB
            cluster.rates[busy] -= 45 * MB
            await asyncio.sleep(QUEUES_SETTLED_SECONDS - 10 * LOOK_SECONDS)
            assert cluster.balancer().waits_for.startswith("a queue has moved: its load is measured where it is in ")
            await asyncio.sleep(20 * LOOK_SECONDS)
            assert cluster.balancer().waits_for == ""
            assert len(leader.recent_moves.slots_told()) == 1
            assert cluster.moves() == [], "replicas and leaders are where they were"

    simulate(scenario())


def test_a_queue_that_keeps_records_where_it_was_moves_by_itself_no_second_time() -> None:
    async def scenario() -> None:
        async with balanced_cluster(97, balance="queues", write_groups=3, spare=False) as cluster:
            queue_id, busy = await has_busy_queue(cluster, **{"cleanup.policy": "compact"})
            slot, moving = slot_of(queue_id), cluster.any_lookups().moving_slots
            await cluster.until(lambda: slot in moving.wishes, 20 * LOOK_SECONDS)
            wish, leader = moving.wishes[slot], cluster.running[cluster.leader()]
            await leader.operations.slot_move_begins(slot, wish.group, wish.number)
            await leader.operations.slot_moved(slot, wish.group, wish.number, [busy])
            cluster.busiest = {wish.group: [ToldQueuePart(queue_id, 0.5)]}
            cluster.rates |= {busy: 4 * MB, wish.group: 90 * MB}
            await asyncio.sleep(QUEUES_SETTLED_SECONDS + REST_SECONDS + 20 * LOOK_SECONDS)
            assert not moving.wishes
            await leader.operations.slot_settled(slot, wish.number)
            await cluster.until(lambda: slot in moving.wishes, 20 * LOOK_SECONDS)

    simulate(scenario())


def test_a_reason_to_wait_is_logged_when_it_begins_and_not_at_each_look(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with balanced_cluster(79, balance="queues", write_groups=3, replication_factor=1, spare=False) as cluster:
            queue_id, _ = await has_busy_queue(cluster)
            await asyncio.sleep(20 * LOOK_SECONDS)
            assert f"orders:{partition_of(queue_id)} should go to write group " in cluster.balancer().waits_for
            logged = [it.getMessage() for it in caplog.records if it.getMessage().startswith("the balancer waits: ")]
            assert sum(" looks so far" in it for it in logged) == 1, logged
            assert sum(" should go to write group " in it for it in logged) == 1, logged

    simulate(scenario())


def test_a_queue_that_rests_is_passed_over_for_the_next() -> None:
    async def scenario() -> None:
        rest = 4 * QUEUES_SETTLED_SECONDS
        async with balanced_cluster(
            90, balance="queues", write_groups=3, spare=False, balance_rest_seconds=rest
        ) as cluster:
            queue_id, busy = await has_busy_queue(cluster)
            lookups, slot = cluster.any_lookups(), slot_of(queue_id)
            topic = lookups.topic("orders")
            assert topic is not None
            await cluster.until(lambda: slot in lookups.moving_slots.wishes, 20 * LOOK_SECONDS)
            wish, leader = lookups.moving_slots.wishes[slot], cluster.running[cluster.leader()]
            queues = map(topic.queue_id, range(64))
            other = next(it for it in queues if lookups.write_group(it) == wish.group and slot_of(it) != slot)
            await leader.operations.slot_moved(slot, wish.group, wish.number, [busy])
            cluster.rates = {group: 90 * MB if group == wish.group else 4 * MB for group in cluster.rates}
            cluster.busiest = {wish.group: [ToldQueuePart(queue_id, 0.5), ToldQueuePart(other, 0.3)]}
            await cluster.until(lambda: slot_of(other) in lookups.moving_slots.wishes, 2 * QUEUES_SETTLED_SECONDS)
            assert slot not in lookups.moving_slots.wishes

    simulate(scenario())


def test_its_own_move_of_a_queue_that_does_not_begin_is_taken_back_and_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        rest = 4 * QUEUES_SETTLED_SECONDS
        async with balanced_cluster(
            83, balance="queues", write_groups=3, spare=False, balance_rest_seconds=rest
        ) as cluster:
            queue_id, busy = await has_busy_queue(cluster)
            lookups, slot = cluster.any_lookups(), slot_of(queue_id)
            topic = lookups.topic("orders")
            assert topic is not None
            queues = map(topic.queue_id, range(64))
            other = next(it for it in queues if lookups.write_group(it) == busy and slot_of(it) != slot)
            cluster.busiest = {busy: [ToldQueuePart(queue_id, 0.5), ToldQueuePart(other, 0.4)]}
            await cluster.until(lambda: slot in lookups.moving_slots.wishes, 20 * LOOK_SECONDS)
            wanted = lookups.moving_slots.wishes[slot].group
            await asyncio.sleep(2 * LOOK_SECONDS)
            assert cluster.balancer().waits_for.startswith(f"slot {slot} is on its way to another write group: it had ")
            await cluster.until(lambda: slot not in lookups.moving_slots.wishes, 2 * UNBEGUN_LOOKS_MAX * LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)
            *_, told = cluster.running[cluster.leader()].recent_moves.slots_told()
            assert (told.slot, told.old, told.new, told.taken_back) == (slot, busy, wanted, True)
            await cluster.until(lambda: slot_of(other) in lookups.moving_slots.wishes, 2 * QUEUES_SETTLED_SECONDS)
            assert slot not in lookups.moving_slots.wishes, "it rests"
            partition = partition_of(queue_id)
            logged = [
                it.getMessage() for it in caplog.records if it.getMessage().startswith(f"orders:{partition} stays")
            ]
            assert len(logged) == 1

    simulate(scenario())


def test_a_move_of_a_queue_that_somebody_asked_for_waits_as_long_as_it_takes() -> None:
    async def scenario() -> None:
        async with balanced_cluster(82, balance="queues", write_groups=3, spare=False) as cluster:
            queue_id, busy = await has_busy_queue(cluster)
            leader, other = cluster.running[cluster.leader()], next(it for it in range(3) if it != busy)
            await leader.operations.move_slot_of("orders", partition_of(queue_id), other)
            await asyncio.sleep(3 * UNBEGUN_LOOKS_MAX * LOOK_SECONDS)
            assert slot_of(queue_id) in leader.lookups.moving_slots.wishes

    simulate(scenario())


def test_a_new_leader_knows_that_a_queue_has_just_moved() -> None:
    async def scenario() -> None:
        async with balanced_cluster(81) as cluster:
            await pin(cluster, 0, 1)
            moved_at, leader = asyncio.get_running_loop().time(), cluster.leader()
            await asyncio.sleep(2 * LOOK_SECONDS)  # the others have looked since
            await cluster.kill(leader)
            await cluster.elected()
            await cluster.start(leader)
            await cluster.until(lambda: held_by(cluster, 4) > 0, QUEUES_SETTLED_SECONDS + 20 * LOOK_SECONDS)
            assert asyncio.get_running_loop().time() - moved_at >= QUEUES_SETTLED_SECONDS

    simulate(scenario())


def test_a_move_that_is_refused_by_now_is_tried_again_and_is_not_remembered_as_begun() -> None:
    async def scenario() -> None:
        async with balanced_cluster(80) as cluster:
            await cluster.until(lambda: "at 2 of 3 looks" in cluster.balancer().waits_for, 10 * LOOK_SECONDS)
            cluster.as_planned = lambda: cluster.running[cluster.leader()].operations.set_draining(4, draining=True)
            await cluster.until(lambda: "node 4 is drained" in cluster.balancer().waits_for, 10 * LOOK_SECONDS)
            assert cluster.balancer().moves_last_hour == 0
            assert cluster.moves() == []
            await cluster.running[cluster.leader()].operations.set_draining(4, draining=False)
            await cluster.until(lambda: held_by(cluster, 4) > 0, 20 * LOOK_SECONDS)

    simulate(scenario())


@pytest.mark.parametrize(
    ("balance", "copies", "configs"), [("replicas", 3, {}), ("queues", 1, {"cleanup.policy": "compact"})]
)
def test_no_queue_moves_that_may_not_or_where_queues_shall_not(
    balance: str, copies: int, configs: dict[str, str]
) -> None:
    """Nodes would follow the write group that a queue was in for good, if it is compacted alone."""

    async def scenario() -> None:
        async with balanced_cluster(
            98, balance=balance, write_groups=3, replication_factor=copies, spare=False
        ) as cluster:
            await has_busy_queue(cluster, **configs)
            await asyncio.sleep(10 * LOOK_SECONDS)
            assert not cluster.any_lookups().moving_slots.wishes
            assert cluster.balancer().waits_for == ""

    simulate(scenario())
