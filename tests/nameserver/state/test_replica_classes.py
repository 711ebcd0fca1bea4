"""Classes of write groups by replication factor: a topic's queues are in write groups with as many replicas as it
asked for, and stay there, however the cluster grows and replicas move; every part that tells a queue's write group by
its id tells the same."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nameserver.state.test_state import new_topic, replayed
from tests.nameserver.state.test_write_group_growth import NODES, cluster, seen

from mainstem.model import (
    CLASSED,
    CLASSES_MAX,
    SLOTS,
    FeatureLevel,
    Location,
    Topic,
    all_slots,
    class_of,
    queue_id_of,
    slot_of,
)
from mainstem.nameserver.errors import FeatureLevelTooLow, InvalidPlacement, InvalidReplicationFactor
from mainstem.nameserver.state.changes import Ids, Made, make_commands
from mainstem.nameserver.state.commands import (
    AddWriteGroups,
    AdvanceCounters,
    CreateTopic,
    MoveReplica,
    MoveSlot,
    SetDraining,
    SlotMoved,
)
from mainstem.nameserver.state.plans.drain_plan import GroupStanding, plan_drains
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import Wanted, WantedTopic, WantTopics, WantWriteGroups
from mainstem.storage.placement import Placement


def classed() -> MetadataState:
    return cluster(level=FeatureLevel.CLASSED)


def made(wanted: Wanted, state: MetadataState) -> Made:
    return asyncio.run(make_commands(wanted, state, Ids(random.Random(state.next_topic_number)), 3))


def grow(state: MetadataState, total: int, factor: int = 0) -> AddWriteGroups:
    """Raises why it cannot be."""
    commands, refusals, _ = made(WantWriteGroups(total, list(NODES), factor), state)
    if refusals:
        raise InvalidPlacement(refusals[0].message)
    (command,) = commands
    assert isinstance(command, AddWriteGroups)
    state.apply(command)
    return command


def create(state: MetadataState, *wanted: WantedTopic) -> list[Topic]:
    """The topics, of one request. Raises why one cannot be."""
    commands, refusals, _ = made(WantTopics(list(wanted)), state)
    if refusals:
        raise InvalidReplicationFactor(refusals[0].message)
    for command in commands:
        state.apply(command)
    return [state.topics[it.name] for it in wanted]


def topic(name: str, factor: int, *, partitions: int = 3, internal: bool = False) -> WantedTopic:
    return WantedTopic(name, partitions, factor, {}, internal)


def replicas_of(state: MetadataState, made: Topic) -> set[int]:
    """The numbers of replicas of the write groups that a topic's queues are in."""
    queue_ids = range(made.queue_id(0), made.queue_id(0) + made.partitions)
    return {len(state.placements[state.write_group(queue_id)]) for queue_id in queue_ids}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 4])),
        st.tuples(st.just("topics"), st.integers(1, 6), st.sampled_from([-1, 1, 2, 3, 4])),
        st.tuples(st.just("drain"), st.sampled_from(NODES), st.just(0)),
    ),
    min_size=2,
    max_size=14,
)


@given(STEPS)
@settings(max_examples=80, deadline=None)
def test_queues_stay_in_write_groups_with_the_replicas_they_asked_for(steps: list[tuple[str, int, int]]) -> None:
    state = classed()
    where: dict[int, int] = {}
    wanted_of: dict[int, int] = {}
    numbers: list[int] = []
    for step, (kind, count, factor) in enumerate(steps):
        assert state.cluster is not None
        factors = state.factors
        if kind == "grow":
            grow(state, state.cluster.write_groups + count, factor)
        elif kind == "drain":
            drained(state, count)
        elif factor in (-1, *factors) or factor < 3:
            for one in create(state, *(topic(f"t{step}-{it}", factor, partitions=9) for it in range(count))):
                numbers.append(one.number)
                wanted_of[one.number] = factor if factor in factors else 3
                for queue_id in range(one.queue_id(0), one.queue_id(0) + one.partitions):
                    where[queue_id] = state.write_group(queue_id)
        else:
            with pytest.raises(InvalidReplicationFactor, match=f"replication factor {factor}, "):
                create(state, topic("refused", factor))
        held = state.cluster.slots
        assert numbers == sorted(set(numbers)), "numbers only go up"
        assert {queue_id: state.write_group(queue_id) for queue_id in where} == where
        for number, replicas in wanted_of.items():
            assert replicas_of(state, state.topic_table.by_number[number]) == {replicas}
        for first, replicas in zip(range(0, len(held), SLOTS), state.factors, strict=True):
            share = Counter(held[first : first + SLOTS])
            assert {len(set(state.placements[group])) for group in share} == {replicas}, "a class keeps its factor"
        assert len(set(state.factors)) == len(state.factors)
        assert set(held) == set(state.placements)
    assert seen(replayed(state.commands())) == seen(state)
    assert state.cluster is not None
    placement = Placement(state.cluster.slots)
    ids = numpy.array([*where], numpy.uint64)
    assert placement.groups_of(ids).tolist() == [placement.group_of(int(it)) for it in ids] == [*where.values()]
    assert all(
        set(placement.classes_in(group)) == {state.factors.index(len(nodes))}
        for group, nodes in state.placements.items()
    )


def drained(state: MetadataState, node_id: int) -> None:
    """Empty a node as far as it can be, and take it back. Each step moves one replica of what has three at most, and
    the only one of what has one."""
    state.apply(SetDraining(node_id, draining=True))
    locations = {it: Location() for it in NODES}
    while True:
        standings = {
            group: GroupStanding(frozenset(nodes), frozenset(nodes), frozenset(nodes))
            for group, nodes in state.placements.items()
        }
        takers = [it for it in NODES if it != node_id]
        plan = plan_drains(dict(state.placements), standings, locations, takers, state.node_table.draining)
        if not plan.moves:
            break
        for move in plan.moves:
            state.check(MoveReplica(*move))
            state.apply(MoveReplica(*move))
    left = {group for group, nodes in state.placements.items() if node_id in nodes}
    assert all(len(state.placements[group]) == len(NODES) for group in left), "all nodes have a replica already"
    assert set(plan.obstacles) == left
    state.apply(SetDraining(node_id, draining=False))


def test_a_class_of_one_is_spread_over_the_nodes_that_hold_and_lead_least() -> None:
    state = classed()
    grow(state, 8, 1)
    single = [state.placements[group] for group in range(4, 8)]
    assert all(len(nodes) == 1 for nodes in single)
    assert {4} <= {node for nodes in single for node in nodes}, "node 4 held nothing"
    assert state.factors == (3, 1)
    grow(state, 10)
    assert [len(state.placements[group]) for group in (8, 9)] == [3, 3]
    assert state.cluster is not None
    assert set(state.cluster.slots[:SLOTS]) == {0, 1, 2, 3, 8, 9}
    assert set(state.cluster.slots[SLOTS:]) == {4, 5, 6, 7}


def test_what_a_cluster_with_one_class_grants_it_grants_as_ever() -> None:
    state = classed()
    found = create(state, topic("a", 1), topic("b", 3), topic("c", -1), topic("d", 2))
    assert [it.number for it in found] == [1, 2, 3, 4]
    assert [replicas_of(state, it) for it in found] == [{3}] * 4
    assert [it.replication_factor for it in found] == [1, 3, 3, 2]
    with pytest.raises(InvalidReplicationFactor, match=r"keep 3 copies .* --replication-factor 4 adds"):
        create(state, topic("wide", 4))
    with pytest.raises(InvalidReplicationFactor, match=r"allowed is 1 to 4, the number of nodes that store"):
        create(state, topic("wider", 5))


def test_with_several_classes_a_factor_is_one_of_theirs_or_granted_by_the_first() -> None:
    state = classed()
    grow(state, 5, 1)
    first, second, third = create(state, topic("a", 1), topic("b", 3), topic("c", -1))
    assert [class_of(it.number) for it in (first, second, third)] == [1, 0, 0]
    assert [it.replication_factor for it in (first, second, third)] == [1, 3, 3]
    assert first.number == CLASSED + 1
    (granted,) = create(state, topic("d", 2))
    assert (class_of(granted.number), granted.replication_factor, replicas_of(state, granted)) == (0, 2, {3})
    with pytest.raises(InvalidReplicationFactor, match=r"with 1 or 3 replicas only: .*-1 for 3; .*-factor 4"):
        create(state, topic("f", 4))
    for impossible in (0, -2, 7):
        with pytest.raises(InvalidReplicationFactor, match=r"1 or 3 replicas only: .*-1 for 3$"):
            create(state, topic("impossible", impossible))
    grow(state, 6, 4)
    assert class_of(create(state, topic("e", 4))[0].number) == 2


def test_internal_topics_get_no_fewer_copies_than_the_first_write_groups_keep() -> None:
    state = classed()
    grow(state, 5, 1)
    grow(state, 6, 4)
    asked = {1: 3, 2: 3, 3: 3, 4: 4, 5: 3}
    for factor, copies in asked.items():
        (found,) = create(state, topic(f"__of-{factor}", factor, internal=True))
        assert (replicas_of(state, found), found.replication_factor) == ({copies}, copies)


def test_what_cannot_be_added_is_refused_with_the_reason() -> None:
    state = classed()
    with pytest.raises(InvalidPlacement, match=r"with 5 replicas takes 5 nodes .* there are 4"):
        grow(state, 5, 5)
    stale = made(WantWriteGroups(5, list(NODES), 1), state).commands[0]
    assert isinstance(stale, AddWriteGroups)
    with pytest.raises(InvalidPlacement, match="would have 1 replicas, the others have 2"):
        state.check(AddWriteGroups(4, [[1, 2], [1]], [*stale.slots[:SLOTS], *[4, 5] * (SLOTS // 2)]))
    with pytest.raises(InvalidPlacement, match="there are write groups with 3 replicas by now"):
        state.check(AddWriteGroups(4, [[1, 2, 3]], stale.slots))
    with pytest.raises(InvalidPlacement, match="all slots are given"):
        state.check(AddWriteGroups(4, [[1]], stale.slots[:-1]))
    with pytest.raises(InvalidPlacement, match="several classes"):
        state.check(AddWriteGroups(4, [[1], [2, 3, 4]], [5, *stale.slots[1:]]))
    old = cluster(level=FeatureLevel.REGROUPED)
    with pytest.raises(FeatureLevelTooLow):
        old.check(stale)
    full = classed()
    full.apply(AdvanceCounters(CLASSED + 2, 0))
    with pytest.raises(InvalidPlacement, match="keeps to one class"):
        grow(full, 5, 1)
    grow(full, 5)


def test_no_number_of_an_old_cluster_names_a_class() -> None:
    assert {class_of(number) for number in (0, 1, 7, 12_345, CLASSED - 1)} == {0}
    assert [class_of(CLASSED + number) for number in range(2 * CLASSES_MAX)] == [*range(CLASSES_MAX)] * 2
    for number in (1, 7, CLASSED - 1):
        assert slot_of(queue_id_of(number, 5)) == (queue_id_of(number, 5) * 0x9E3779B97F4A7C15 % (1 << 64)) >> 52


def test_queues_of_a_class_that_a_node_has_not_heard_of_have_some_write_group() -> None:
    state = classed()
    slots = all_slots(state.cluster.slots if state.cluster is not None else ())
    assert len(slots) == SLOTS * CLASSES_MAX
    placement = Placement(slots[:SLOTS])
    for which in range(CLASSES_MAX):
        queue_id = queue_id_of(CLASSED + 8 * 77 + which, 3)
        assert slots[slot_of(queue_id)] == state.write_group(queue_id) == placement.group_of(queue_id)


def test_topics_spread_over_the_write_groups_of_their_class() -> None:
    state = classed()
    grow(state, 12, 1)
    found = create(state, *(topic(f"t{number}", 1, partitions=1) for number in range(400)))
    used = Counter(state.write_group(it.queue_id(0)) for it in found)
    assert set(used) == set(range(4, 12))
    assert max(used.values()) <= 2 * min(used.values())


def test_a_topic_whose_number_names_another_class_than_its_factor_is_refused() -> None:
    state = classed()
    grow(state, 5, 1)
    with pytest.raises(InvalidReplicationFactor):
        state.check(new_topic(state, "a", number=CLASSED + 1, replication_factor=3))
    command = new_topic(state, "a", number=CLASSED + 1, replication_factor=1)
    assert isinstance(command, CreateTopic)
    state.check(command)


def test_the_factor_of_a_class_is_that_of_slots_that_have_not_moved() -> None:
    state = cluster(level=FeatureLevel.newest())
    grow(state, state.cluster.write_groups + 1 if state.cluster is not None else 0, 1)
    assert state.cluster is not None
    single = state.cluster.write_groups - 1
    before = state.factors
    state.apply(MoveSlot(SLOTS, 0, 1))  # the first slot of the second class comes to a write group of the first one
    state.apply(SlotMoved(SLOTS, 0, 1, [single]))
    assert state.factors == before, "the class has the factor of the slots that have not moved"
    placement = Placement(state.cluster.slots)
    assert [set(placement.classes_in(it)) for it in (0, 1, single)] == [{0, 1}, {0}, {1}]
    grow(state, state.cluster.write_groups + 1, 1)
    assert state.cluster.slots[SLOTS] == 0
    assert replayed(state.commands()).factors == before
