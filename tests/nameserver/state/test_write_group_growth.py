"""More write groups: queues stay where they are, new write groups get their share of what is free, and every node
learns the same of them, from the log or from a snapshot."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.nameserver.state.test_state import CLUSTER, new_topic, replayed

from mainstem.model import SLOTS, FeatureLevel, slot_of
from mainstem.nameserver.errors import FeatureLevelTooLow, InconsistentCommand, InvalidPlacement
from mainstem.nameserver.state.changes import Ids, make_commands
from mainstem.nameserver.state.commands import (
    AddWriteGroups,
    Command,
    CreateTopic,
    DeleteTopic,
    MoveReplica,
    PlaceWriteGroups,
    RaiseFeatureLevel,
    RegisterNode,
    SetDraining,
    WriteGroupsAdded,
)
from mainstem.nameserver.state.plans.write_group_growth import WRITE_GROUPS_MAX, used_slots
from mainstem.nameserver.state.replica import differences
from mainstem.nameserver.state.state import MetadataState
from mainstem.rpc.messages.metadata import WantWriteGroups

NODES = (1, 2, 3, 4)


def cluster(*more: Command, level: FeatureLevel = FeatureLevel.REGROUPED) -> MetadataState:
    nodes = [RegisterNode(node_id, "127.0.0.1", 9090 + node_id, None) for node_id in NODES]
    placed = PlaceWriteGroups([[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]])
    return replayed([CLUSTER, RaiseFeatureLevel(level), *nodes, placed, *more])


def wanted(state: MetadataState, total: int, nodes: tuple[int, ...] = NODES) -> AddWriteGroups:
    """Raises why it cannot be."""
    made = asyncio.run(make_commands(WantWriteGroups(total, list(nodes)), state, Ids(random.Random(1)), 3))
    if made.refusals:
        raise InvalidPlacement(made.refusals[0].message)
    (command,) = made.commands
    assert isinstance(command, AddWriteGroups)
    return command


def with_topics(state: MetadataState, *partitions: int) -> None:
    for number, count in enumerate(partitions):
        state.apply(new_topic(state, f"topic-{number}", partitions=count))


def free_to_give(state: MetadataState, total: int) -> int:
    """The slots without queues that write groups have beyond their share, once there are so many."""
    assert state.cluster is not None
    used = used_slots(state.topics.values())
    unused = Counter(group for slot, group in enumerate(state.cluster.slots) if slot not in used)
    return sum(min(unused[group], max(0, of - SLOTS // total)) for group, of in Counter(state.cluster.slots).items())


def seen(state: MetadataState) -> tuple[object, ...]:
    return state.cluster, dict(state.placements), dict(state.node_table.founders)


@given(st.lists(st.integers(1, 400), max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=4))
@example([214, 210, 319, 284, 400, 196, 109, 127], [9, 1])  # the last one finds no slot
@settings(max_examples=60, deadline=None)
def test_queues_stay_and_new_write_groups_get_what_is_free(partitions: list[int], more: list[int]) -> None:
    state = cluster()
    with_topics(state, *partitions)
    where = {
        queue_id: state.write_group(queue_id)
        for topic in state.topics.values()
        for queue_id in range(topic.queue_id(0), topic.queue_id(0) + topic.partitions)
    }
    for step in more:
        assert state.cluster is not None
        before, total = state.cluster, state.cluster.write_groups + step
        if free_to_give(state, total) < step:
            with pytest.raises(InvalidPlacement, match="has queues, which cannot move"):
                wanted(state, total)
            break
        command = wanted(state, total)
        state.check(command)
        state.apply(command)
        after = state.cluster
        share = Counter(after.slots)
        assert set(share) == set(range(total)), "each has slots"
        assert all(share[group] <= SLOTS // total for group in range(before.write_groups, total))
        assert all({*replicas} <= {*NODES} and len(set(replicas)) == 3 for replicas in state.placements.values())
        moved = {slot for slot in range(SLOTS) if before.slots[slot] != after.slots[slot]}
        assert not moved & used_slots(state.topics.values())
        assert all(after.slots[slot] >= before.write_groups for slot in moved), "no slot moves between old write groups"
        assert {queue_id: state.write_group(queue_id) for queue_id in where} == where
    held = Counter(node_id for replicas in state.placements.values() for node_id in replicas)
    if len(state.placements) >= 4 + 12:
        assert max(held.values()) - min(held.values()) <= 2, "node 4 held nothing in the beginning"
    assert seen(replayed(state.commands())) == seen(state)


def test_without_queues_the_slots_are_spread_evenly() -> None:
    state = cluster()
    state.apply(wanted(state, 8))
    assert state.cluster is not None
    assert Counter(state.cluster.slots) == dict.fromkeys(range(8), SLOTS // 8)


def test_a_late_node_learns_who_began_a_write_group_however_its_replicas_moved_since() -> None:
    state = cluster()
    old = replayed(state.commands())
    command = wanted(state, 6)
    state.apply(command)
    began = dict(state.node_table.founders)
    assert began == {4: tuple(command.founders[0]), 5: tuple(command.founders[1])}
    replicas = state.placements[4]
    state.apply(MoveReplica(4, replicas[0], next(node_id for node_id in NODES if node_id not in replicas)))
    state.apply(wanted(state, 7))
    late = replayed(state.commands())
    assert seen(late) == seen(state)
    assert late.node_table.founders[4] == began[4] != late.placements[4]
    (event,) = differences(old, late)
    assert late.cluster is not None
    assert event == WriteGroupsAdded(late.placements, late.cluster.slots)


def test_a_slot_that_got_a_queue_meanwhile_does_not_move() -> None:
    state = cluster()
    stale = wanted(state, 8)
    moved = {slot for slot in range(SLOTS) if stale.slots[slot] >= 4}
    with_topics(state, 64)
    assert moved & used_slots(state.topics.values())
    with pytest.raises(InvalidPlacement, match="has queues by now, and stays"):
        state.check(stale)
    state.apply(DeleteTopic(state.next_topic_number - 1))
    state.check(stale)


def test_what_cannot_be_is_refused_with_the_reason() -> None:
    state = cluster(SetDraining(4, draining=True))
    with pytest.raises(InvalidPlacement, match="has 4 write groups: it can have more, not 4"):
        wanted(state, 4)
    with pytest.raises(InvalidPlacement, match=f"grows to {WRITE_GROUPS_MAX}"):
        wanted(state, WRITE_GROUPS_MAX + 1)
    with pytest.raises(InvalidPlacement, match=r"takes 3 nodes .* there are 2"):
        wanted(state, 8, (1, 2, 4))
    good = wanted(state, 5)
    with pytest.raises(InvalidPlacement, match="node 4 is drained"):
        state.check(AddWriteGroups(4, [[1, 2, 4]], good.slots))
    with pytest.raises(InvalidPlacement, match="2 replicas, the others have 3"):
        state.check(AddWriteGroups(4, [[1, 2]], good.slots))
    with pytest.raises(InvalidPlacement, match="none of the new ones"):
        state.check(AddWriteGroups(4, good.founders, [3, *good.slots[1:]]))
    with pytest.raises(InvalidPlacement, match="4 write groups"):
        state.check(AddWriteGroups(3, good.founders * 2, good.slots))
    with_topics(state, 60_000)
    with pytest.raises(InvalidPlacement, match="every slot that could be given to write group 4 has queues"):
        wanted(state, 5)
    with pytest.raises(InconsistentCommand):
        state.apply(AddWriteGroups(6, [[1, 2, 3]], good.slots))
    with pytest.raises(FeatureLevelTooLow):
        cluster(level=FeatureLevel.ELASTIC).check(good)


def test_many_topics_are_looked_through_until_all_slots_are_used() -> None:
    state = cluster()
    with_topics(state, *[1] * 300)
    assert used_slots(state.topics.values()) == {slot_of(topic.queue_id(0)) for topic in state.topics.values()}
    assert isinstance(new_topic(state, "more"), CreateTopic)
