"""A coordinator that stops to serve very many groups frees them some at a time: others get turns in between."""

from __future__ import annotations

import asyncio

from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_lost_offsets import ready

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.step import OffsetRecord
from mainstem.broker.machines.letting_go import LET_GO_AT_ONCE
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey, OffsetCommitValue

GROUPS = 3 * LET_GO_AT_ONCE + 10
VALUE = OffsetCommitValue(offset=7, metadata="", commit_timestamp=1)
CONFIG = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=1)


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
