"""No two members ever hold one partition, whatever they do and lose, and all partitions are assigned once it is quiet.
The assignors are checked for themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.consumer_groups.heartbeats import GROUP, Consumer, Table
from tests.broker.consumer_groups.small_steps import small_steps

from mainstem.broker.consumer_groups.epochs.assigned_partitions import NO_RACKS, Partitions, Racks, Sizes
from mainstem.broker.consumer_groups.epochs.epoch_member import ReconciliationState
from mainstem.broker.consumer_groups.long_work import finished
from mainstem.broker.consumer_groups.modern.assignors import ASSIGNORS, Subscriber
from mainstem.protocol.error_codes import ErrorCode

TOPICS = ("flights", "delays", "gates")
SUBSCRIPTIONS = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(tuple)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "beat",
                "beat",
                "beat",
                "beat",
                "lost",
                "leave",
                "crash",
                "resubscribe",
                "restart",
                "compact",
                "wait",
                "grow",
                "step",
            ]
        ),
        st.integers(0, 4),
        SUBSCRIPTIONS,
    ),
    max_size=60,
)


def check_owners(table: Table, consumers: list[Consumer]) -> None:
    """No partition is held by two clients, nor owned by two members in the group's own books."""
    held = Counter(partition for consumer in consumers for partition in consumer.owned)
    assert not [partition for partition, count in held.items() if count > 1]
    group = table.machine.state.modern.get(GROUP)
    if group is None:
        return
    targets = Counter(
        (topic_id, index)
        for target in group.targets.values()
        for topic_id, indexes in target.items()
        for index in indexes
    )
    assert not [partition for partition, count in targets.items() if count > 1], "half of a target assignment is seen"
    assert group.targets == table.replayed().state.modern[GROUP].targets
    owned: Counter[tuple[UUID, int]] = Counter()
    for member in group.members.values():
        for part in (member.current.assigned, member.current.revoking):
            for topic_id, indexes in part.items():
                for index in indexes:
                    owned[topic_id, index] += 1
                    assert group.owner(topic_id, index) == member.member_id
    assert not [partition for partition, count in owned.items() if count > 1]


@settings(max_examples=80, deadline=None)
@given(actions=ACTIONS, assignor=st.sampled_from(sorted(ASSIGNORS)))
def test_no_partition_is_held_by_two_and_all_are_assigned_in_the_end(
    actions: list[tuple[str, int, tuple[str, ...]]], assignor: str
) -> None:
    live(actions, assignor)


@settings(max_examples=80, deadline=None)
@given(actions=ACTIONS, assignor=st.sampled_from(sorted(ASSIGNORS)))
def test_nor_while_targets_are_made_in_the_smallest_steps(
    actions: list[tuple[str, int, tuple[str, ...]]], assignor: str
) -> None:
    with small_steps():
        live(actions, assignor)


def live(actions: list[tuple[str, int, tuple[str, ...]]], assignor: str) -> None:
    table = Table(flights=4, delays=3, gates=1)
    consumers = [Consumer(table, f"member-{number}", TOPICS, server_assignor=assignor) for number in range(5)]
    alive = {0}
    for action, number, topics in actions:
        consumer = consumers[number]
        if action == "beat":
            alive.add(number)
            consumer.beat()
        elif action == "lost" and consumer.epoch > 0:
            consumer.beat(loses_answer=True)
        elif action == "leave" and consumer.epoch > 0:
            consumer.leave()
            alive.discard(number)
        elif action == "crash" and consumer.epoch > 0:  # a new process, under another id; the old one stays behind
            consumers[number] = Consumer(table, f"{consumer.member_id}'", topics, server_assignor=assignor)
        elif action == "resubscribe":
            consumer.resubscribe(*topics)
        elif action == "restart":
            table.restart()
        elif action == "compact":
            table.compact()
        elif action == "wait":
            table.wait(1_000)
        elif action == "grow":
            table.make_topic("gates", table.topics["gates"].partitions + 1)
        elif action == "step":
            table.take(table.machine.advance(table.now))
        check_owners(table, consumers)
    for _ in range(12):  # those who crashed are gone after their sessions
        for number in sorted(alive):
            consumers[number].beat()
            check_owners(table, consumers)
        table.wait(5_000)
    for _ in range(12):
        for number in sorted(alive):
            assert consumers[number].beat() in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID)
            check_owners(table, consumers)
    wanted = {name for number in alive for name in consumers[number].topics}
    everything = {
        (table.topics[name].topic_id, index) for name in wanted for index in range(table.topics[name].partitions)
    }
    assert {partition for number in alive for partition in consumers[number].owned} == everything
    group = table.machine.state.modern.get(GROUP)
    if alive:
        assert group is not None
        assert group.state.value == "Stable"
        assert all(member.current.state == ReconciliationState.STABLE for member in group.members.values())


@st.composite
def subscribers(draw: st.DrawFn, *, alike: bool) -> tuple[dict[str, Subscriber], dict[UUID, int]]:
    sizes = {UUID(int=number): draw(st.integers(1, 12)) for number in range(1, draw(st.integers(2, 5)))}
    every = frozenset(sizes)
    some = st.just(every) if alike else st.sets(st.sampled_from(sorted(sizes)), max_size=4).map(frozenset)
    targets = st.dictionaries(st.sampled_from(sorted(sizes)), st.frozensets(st.integers(0, 14), min_size=1), max_size=3)
    members = draw(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(some, targets), max_size=8))
    return {name: Subscriber(topics, target) for name, (topics, target) in members.items()}, sizes


def assigned_by(assignor: str, members: Mapping[str, Subscriber], sizes: Sizes, racks: Racks) -> dict[str, Partitions]:
    return finished(ASSIGNORS[assignor](members, sizes, racks))


def loads(assigned: dict[str, Partitions]) -> list[int]:
    return [sum(map(len, partitions.values())) for partitions in assigned.values()]


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@settings(max_examples=150, deadline=None)
@given(data=st.data(), alike=st.booleans())
def test_assignors_give_each_partition_of_a_subscribed_topic_to_one_subscriber(
    assignor: str, data: st.DataObject, alike: bool
) -> None:
    members, sizes = data.draw(subscribers(alike=alike))
    assigned = assigned_by(assignor, members, sizes, NO_RACKS)
    assert assigned.keys() == members.keys()
    given_out = [
        (topic_id, index)
        for member_id, partitions in assigned.items()
        for topic_id, indexes in partitions.items()
        for index in indexes
        if topic_id in members[member_id].topics
    ]
    assert len(given_out) == sum(loads(assigned))
    subscribed = frozenset[UUID]().union(*(member.topics for member in members.values()))
    assert sorted(given_out) == sorted((topic_id, index) for topic_id in subscribed for index in range(sizes[topic_id]))


@settings(max_examples=150, deadline=None)
@given(case=subscribers(alike=True))
def test_uniform_is_balanced_within_one_and_moves_nothing_twice(
    case: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, sizes = case
    assigned = assigned_by("uniform", members, sizes, NO_RACKS)
    if members:
        assert max(loads(assigned)) - min(loads(assigned)) <= 1
    settled = {name: Subscriber(member.topics, assigned[name]) for name, member in members.items()}
    assert assigned_by("uniform", settled, sizes, NO_RACKS) == assigned


@settings(max_examples=100, deadline=None)
@given(case=subscribers(alike=False))
def test_uniform_leaves_no_pair_that_one_partition_would_bring_closer(
    case: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, sizes = case
    assigned = assigned_by("uniform", members, sizes, NO_RACKS)
    load = dict(zip(assigned, loads(assigned), strict=True))
    for member_id, partitions in assigned.items():
        for topic_id in partitions:
            others = [other for other in members if topic_id in members[other].topics]
            assert all(load[member_id] <= load[other] + 1 for other in others)


RACKS = ("a", "b", "c")


@st.composite
def in_racks(draw: st.DrawFn, *, alike: bool) -> tuple[dict[str, Subscriber], dict[UUID, int], Racks]:
    members, sizes = draw(subscribers(alike=alike))
    some = st.sampled_from(("", *RACKS, "where no node is"))
    taken: set[tuple[UUID, int]] = set()
    for name, member in members.items():
        has = pairs({name: member.target})
        target = {
            topic_id: frozenset(index for index in indexes if (topic_id, index) not in taken)
            for topic_id, indexes in member.target.items()
        }
        taken.update((topic_id, index) for _, topic_id, index in has)
        members[name] = member._replace(rack=draw(some), target={one: left for one, left in target.items() if left})
    kinds = st.frozensets(st.sampled_from(RACKS), max_size=2)
    racks = {topic_id: draw(st.lists(kinds, min_size=size, max_size=size)) for topic_id, size in sizes.items()}
    return members, sizes, racks


def pairs(assigned: Mapping[str, Partitions]) -> set[tuple[str, UUID, int]]:
    return {
        (member_id, topic_id, index)
        for member_id, partitions in assigned.items()
        for topic_id, indexes in partitions.items()
        for index in indexes
    }


def near(assigned: dict[str, Partitions], members: Mapping[str, Subscriber], racks: Racks) -> int:
    """The number of partitions with a replica in the rack of their member."""
    return sum(members[one].rack in racks[topic_id][index] for one, topic_id, index in pairs(assigned))


def most_near(assigned: dict[str, Partitions], members: Mapping[str, Subscriber], racks: Racks) -> int:
    """The most that could be, if each member had as many partitions: a matching of partitions and seats, found one by
    one (Kuhn, 1955)."""
    seats = [
        members[member_id].rack for member_id, load in zip(assigned, loads(assigned), strict=True) for _ in range(load)
    ]
    partitions = [racks[topic_id][index] for _, topic_id, index in pairs(assigned)]
    sitting: dict[int, int] = {}

    def sits(partition: int, tried: set[int]) -> bool:
        for seat, rack in enumerate(seats):
            if rack in partitions[partition] and seat not in tried:
                tried.add(seat)
                if seat not in sitting or sits(sitting[seat], tried):
                    sitting[seat] = partition
                    return True
        return False

    return sum(sits(partition, set()) for partition in range(len(partitions)))


@settings(max_examples=150, deadline=None)
@given(case=in_racks(alike=True))
def test_uniform_brings_as_many_partitions_as_can_be_to_members_in_the_rack_of_a_replica(
    case: tuple[dict[str, Subscriber], dict[UUID, int], Racks],
) -> None:
    members, sizes, racks = case
    members = {name: member._replace(target={}) for name, member in members.items()}
    assigned = assigned_by("uniform", members, sizes, racks)
    if members:
        assert max(loads(assigned)) - min(loads(assigned)) <= 1
    assert near(assigned, members, racks) == most_near(assigned, members, racks)


@settings(max_examples=150, deadline=None)
@given(case=in_racks(alike=True))
def test_racks_cost_uniform_no_balance_and_no_partition_that_a_member_keeps(
    case: tuple[dict[str, Subscriber], dict[UUID, int], Racks],
) -> None:
    members, sizes, racks = case
    assigned, without = (assigned_by("uniform", members, sizes, some) for some in (racks, NO_RACKS))
    had = pairs({name: member.target for name, member in members.items()})
    assert len(pairs(assigned) & had) == len(pairs(without) & had)
    assert sorted(loads(assigned)) == sorted(loads(without))
    assert near(assigned, members, racks) >= near(without, members, racks)
    settled = {name: member._replace(target=assigned[name]) for name, member in members.items()}
    assert assigned_by("uniform", settled, sizes, racks) == assigned


@settings(max_examples=100, deadline=None)
@given(case=in_racks(alike=False))
def test_racks_cost_no_balance_among_members_that_subscribe_to_different_topics(
    case: tuple[dict[str, Subscriber], dict[UUID, int], Racks],
) -> None:
    members, sizes, racks = case
    assigned, without = (assigned_by("uniform", members, sizes, some) for some in (racks, NO_RACKS))
    assert {(topic_id, index) for _, topic_id, index in pairs(assigned)} == {
        (topic_id, index) for _, topic_id, index in pairs(without)
    }
    load = dict(zip(assigned, loads(assigned), strict=True))
    for member_id, partitions in assigned.items():
        for topic_id in partitions:
            others = [other for other in members if topic_id in members[other].topics]
            assert all(load[member_id] <= load[other] + 1 for other in others)


def test_uniform_moves_as_few_as_a_new_member_needs() -> None:
    sizes = {UUID(int=1): 12}
    before = assigned_by("uniform", {name: Subscriber(frozenset(sizes), {}) for name in "abc"}, sizes, NO_RACKS)
    members = {name: Subscriber(frozenset(sizes), before.get(name, {})) for name in "abcd"}
    after = assigned_by("uniform", members, sizes, NO_RACKS)
    assert sorted(loads(after)) == [3, 3, 3, 3]
    for name in "abc":
        assert after[name][UUID(int=1)] < before[name][UUID(int=1)]


def test_range_pairs_partitions_of_one_number() -> None:
    sizes = {UUID(int=1): 5, UUID(int=2): 5}
    members = {name: Subscriber(frozenset(sizes), {}) for name in "ab"}
    assigned = assigned_by("range", members, sizes, NO_RACKS)
    assert assigned["a"] == dict.fromkeys(sizes, frozenset({0, 1, 2}))
    assert assigned["b"] == dict.fromkeys(sizes, frozenset({3, 4}))
