"""Committed offsets are bounded, for each group and for a node; those that are there go on being committed."""

from __future__ import annotations

import logging

import msgspec
import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_many import CALL, CONFIG, ClusterOfMany, simulated
from tests.broker.consumer_groups.transcript import AT_ONCE, Transcript

from mainstem.broker.consumer_groups.logged_state import LoggedState
from mainstem.broker.consumer_groups.members.holdings import Holdings
from mainstem.broker.consumer_groups.offsets import COUNTED_FROM
from mainstem.broker.consumer_groups.step import OffsetRecord
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import OffsetCommitKey, OffsetCommitValue
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup

OK, FULL = ErrorCode.NONE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE
P0, P1, P2, P3 = (("flights", index) for index in range(4))


def test_a_group_has_so_many_offsets_at_most() -> None:
    table = Transcript(msgspec.structs.replace(AT_ONCE, group_offsets_max=2))
    assert table.commit({P0: 5}) == [OK]
    assert table.commit({P0: 6, P1: 1, P2: 1}) == [OK, FULL, FULL], "two more would be one too many"
    assert table.commit({P0: 7, P1: 1}) == [OK, OK]
    assert table.commit({P0: 8, P1: 2, P3: 1}) == [OK, OK, FULL]
    assert table.fetch() == {P0: 8, P1: 2}
    table.restart()
    assert table.commit({P2: 1}) == [FULL]
    assert table.commit({P1: 3}) == [OK]


async def commit(cluster: ClusterOfMany, group: str, *partitions: int) -> list[int]:
    rows = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=None)
        for index in partitions
    )
    topics = (OffsetCommitRequestTopic(name="flights", partitions=rows),)
    coordinator = await cluster.settled(group)
    answer = await coordinator.offsets.commit_offsets(OffsetCommitRequest(group_id=group, topics=topics), CALL)
    return [row.error_code for row in answer.topics[0].partitions]


def test_all_groups_of_a_node_have_so_many_offsets_at_most(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: ClusterOfMany) -> None:
        for number in range(3):  # groups of several partitions of the internal topic
            assert await commit(cluster, f"g{number}", 0) == [OK]
        assert await commit(cluster, "one-too-many", 0) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        assert await commit(cluster, "g0", 0) == [OK]
        assert await commit(cluster, "g0", 1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        fetched = await (await cluster.settled("one-too-many")).offsets.fetch_offsets(
            OffsetFetchRequestGroup(group_id="one-too-many", topics=None)
        )
        assert fetched.topics == ()

    with caplog.at_level(logging.WARNING):
        simulated(story, config=msgspec.structs.replace(CONFIG, offsets_max=3))
    assert "group 'one-too-many' would have 1 committed offsets more, and the node has 3" in caplog.text


def test_a_group_with_very_many_offsets_is_not_counted_for_each_commit() -> None:
    state = LoggedState(Holdings())
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=1)

    def replay(partition: int, what: OffsetCommitValue | None) -> None:
        key = OffsetCommitKey(group="g", topic="t", partition=partition)
        state.replay(OffsetRecord(key, what))

    for partition in range(COUNTED_FROM):
        replay(partition, value)
    assert state.offsets.count_of("g") == COUNTED_FROM
    replay(COUNTED_FROM, value)
    replay(0, value)
    assert state.offsets.count_of("g") == COUNTED_FROM + 1
    for partition in range(10):
        replay(partition, None)
    assert state.offsets.count_of("g") == COUNTED_FROM - 9
    for partition in range(10, COUNTED_FROM + 1):
        replay(partition, None)
    assert state.offsets.count_of("g") == 0
    replay(7, value)
    assert state.offsets.count_of("g") == 1
