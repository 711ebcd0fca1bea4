"""A coordinator that stops to serve very many groups frees them some at a time: others get turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_coordinator import commit, queue_of
from tests.broker.consumer_groups.coordinators.test_lost_offsets import damage, ready

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.machine import ConsumerGroupMachine
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.partition import CoordinatorPartition
from mainstem.broker.consumer_groups.step import OffsetRecord
from mainstem.broker.machines.letting_go import LET_GO_AT_ONCE
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey, OffsetCommitValue

GROUPS = 3 * LET_GO_AT_ONCE + 10
VALUE = OffsetCommitValue(offset=7, metadata="", commit_timestamp=1)
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=1)
CONFIG_OF_PIECES = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=1, load_bytes=20_000)
"""The log of so many groups is read in several pieces."""
TURNS_MAX = 10_000
"""Of the event loop, whose clock stands still meanwhile."""


def fill(state: LoggedState) -> None:
    for number in range(GROUPS):
        key = OffsetCommitKey(group=f"group-{number}", topic="flights", partition=0)
        state.replay(OffsetRecord(key, VALUE))


def left_of(state: LoggedState) -> int:
    return state.group_count + len(state.offsets.group_ids())


def test_groups_and_offsets_go_in_pieces() -> None:
    state = LoggedState(Holdings())
    fill(state)
    state.offsets.keep("a group that has only offsets", "flights", 0, VALUE)
    left = left_of(state)
    pieces = 0
    for _ in state.let_go():
        assert left - left_of(state) <= LET_GO_AT_ONCE
        left, pieces = left_of(state), pieces + 1
    assert left == 0
    assert pieces > 2 * GROUPS // LET_GO_AT_ONCE


def test_a_coordinator_serves_no_group_at_once_and_frees_them_in_turns() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        [partition] = cluster.groups.served.partitions.values()
        assert partition.machine is not None
        state = partition.machine.state
        fill(state)
        partition.runtime.resign()
        assert partition.machine is None
        left = left_of(state)
        assert left == 2 * GROUPS, "nothing goes in the turn in which others wait for a word"
        turns = 0
        while left_of(state):
            await asyncio.sleep(0)
            assert left - left_of(state) <= LET_GO_AT_ONCE
            left, turns = left_of(state), turns + 1
        assert turns >= 2 * GROUPS // LET_GO_AT_ONCE

    simulated(story, CONFIG)


def is_given_up(cluster: ClusterOfOne) -> None:
    """Another node leads from now on."""
    [queue_id] = [queue_id for queue_id, queue in cluster.store.queues.items() if queue is queue_of(cluster)]
    cluster.groups.served.serving_changed(cluster.leadership.group_of(queue_id), serving=False)


def fails(cluster: ClusterOfOne) -> None:
    """The rest of the log cannot be read."""
    damage(cluster, -1)


@pytest.mark.parametrize("happens", [is_given_up, fails])
def test_a_coordinator_that_is_still_reading_its_log_is_freed_in_turns(
    happens: Callable[[ClusterOfOne], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ConsumerGroupMachine] = []
    make = CoordinatorPartition.make

    def remembered(partition: CoordinatorPartition) -> ConsumerGroupMachine:
        made.append(make(partition))
        return made[-1]

    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        for number in range(GROUPS):
            await commit(cluster, 7, group=f"group-{number}")
        await commit(cluster, 7, group="behind the others")
        monkeypatch.setattr(CoordinatorPartition, "make", remembered)
        await cluster.restart()
        for _ in range(TURNS_MAX):
            await asyncio.sleep(0)
            if made and left_of(made[0].state) >= GROUPS:  # half of all: each has an offset, too
                break
        state = made[0].state
        happens(cluster)
        left, freed = left_of(state), 0
        for _ in range(TURNS_MAX):
            if left == 0:
                break
            await asyncio.sleep(0)
            before, left = left, left_of(state)
            assert before - left <= LET_GO_AT_ONCE
            freed += left < before
        assert left == 0, "nobody frees what was loaded"
        assert freed > GROUPS // LET_GO_AT_ONCE

    simulated(story, CONFIG_OF_PIECES)


def test_the_offsets_of_one_group_go_in_pieces() -> None:
    state = LoggedState(Holdings())
    for topic in ("flights", "gates"):
        for partition in range(GROUPS):
            state.offsets.keep("a group that reads everything", topic, partition, VALUE)
    pieces = sum(1 for _ in state.let_go())
    assert not state.offsets.group_ids()
    assert pieces >= 2 * GROUPS // LET_GO_AT_ONCE
