"""Offsets of a topic that was deleted, made again under the same name or not: nobody is ever told them."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_many import (
    CALL,
    CONFIG,
    NODES,
    ClusterOfMany,
    commit,
    fetch,
    simulated,
)
from tests.broker.consumer_groups.transcript import Transcript

from mainstem.broker.consumer_groups.offsets_topic import OFFSETS_TOPIC
from mainstem.broker.machines.coordinator_topic import coordinator_partition_of
from mainstem.errors import MainstemError
from mainstem.model import FeatureLevel, Topic
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.consumer_offsets import (
    OFFSET_WITH_TOPIC_ID_VERSION,
    OffsetCommitKey,
    read_key,
)
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.records import read_records, stored_batches

GROUP = "g"
P0 = ("flights", 0)
FIRST_ID, SECOND_ID = UUID(int=1), UUID(int=2)
OK = ErrorCode.NONE


def deleted(cluster: ClusterOfMany, *told: int) -> Topic:
    """As the listeners of these nodes hear it; the others are away."""
    topic = cluster.metadata.drop_topic("flights")
    for node_id in told:
        cluster.coordinators[node_id].topic_deleted(topic)
    return topic


# the machine


def test_an_offset_is_answered_only_while_the_topic_is_the_one_it_was_committed_for() -> None:
    table = Transcript()
    table.topics["flights"] = FIRST_ID
    assert table.commit({P0: 5}) == [OK]
    assert table.fetch(P0) == {P0: 5}
    table.topics["flights"] = None
    assert table.fetch(P0) == {P0: -1}
    table.topics["flights"] = SECOND_ID
    assert table.fetch(P0) == {P0: -1}
    assert table.fetch() == {}
    table.restart()
    assert table.fetch(P0) == {P0: -1}
    assert table.commit({P0: 1}) == [OK]
    assert table.fetch() == {P0: 1}


def test_forgetting_a_topic_leaves_what_was_committed_for_the_next_of_its_name() -> None:
    table = Transcript()
    table.topics["flights"] = FIRST_ID
    table.commit({P0: 5}, group="old")
    table.topics["flights"] = SECOND_ID
    table.commit({P0: 1}, group="new")
    assert table.forget_topic("flights", FIRST_ID) == 1
    assert table.fetch(P0, group="new") == {P0: 1}
    assert table.describe("old").group_state == "Dead"


def test_a_commit_for_a_topic_that_is_gone_is_refused() -> None:
    table = Transcript()
    table.topics["flights"] = None
    assert table.commit({P0: 5}) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert table.log == []


# coordinators


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("told", [(), (1,), (1, 2, 3)])
def test_a_topic_is_deleted_and_perhaps_made_again_in_whatever_order_with_a_move(
    again: bool, told: tuple[int, ...]
) -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        group = cluster.write_group_of(GROUP)
        cluster.store.move(group, -1)  # nobody serves the group while it happens
        deleted(cluster, *told)
        if again:
            cluster.metadata.add_topic("flights")
        cluster.store.move(group, 2)
        second = await cluster.settled(GROUP)
        assert await fetch(second, GROUP) == -1
        if not again:
            cluster.metadata.add_topic("flights")
            assert await fetch(second, GROUP) == -1
        cluster.store.move(group, 3)
        third = await cluster.settled(GROUP)
        assert await fetch(third, GROUP) == -1
        assert await commit(third, GROUP, 1) is OK
        assert await fetch(third, GROUP) == 1

    simulated(story)


def test_a_topic_that_is_deleted_while_the_log_is_loaded_is_sorted_out_then() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        cluster.levels[2] = FeatureLevel.FIRST  # the log does not tell whose the offsets are
        cluster.levels[1] = FeatureLevel.FIRST
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        reading = asyncio.Event()
        go_on = asyncio.Event()

        async def held() -> None:
            reading.set()
            await go_on.wait()

        cluster.metadata_current = held
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        await reading.wait()
        deleted(cluster, 1, 2, 3)
        cluster.metadata.add_topic("flights")
        go_on.set()
        assert await fetch(await cluster.settled(GROUP), GROUP) == -1

    simulated(story)


def test_a_log_is_served_only_once_it_is_known_which_topics_there_are() -> None:
    class NobodyKnows(MainstemError):
        pass

    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        known = asyncio.Event()

        async def current() -> None:
            if not known.is_set():
                raise NobodyKnows("no leader of the metadata")

        cluster.metadata_current = current
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        await asyncio.sleep(5)
        refusal = await fetch(cluster.coordinators[2], GROUP)
        assert refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        deleted(cluster)  # node 2 has heard nothing of it
        cluster.metadata.add_topic("flights")
        known.set()
        assert await fetch(await cluster.settled(GROUP), GROUP) == -1

    simulated(story)


def test_offsets_without_a_topic_are_told_whose_they_are_when_the_level_is_raised() -> None:
    """Offsets committed before the raise are safe from a later topic of the same name, too."""

    async def story(cluster: ClusterOfMany) -> None:
        cluster.levels.update(dict.fromkeys(NODES, FeatureLevel.FIRST))
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        second = await cluster.settled(GROUP)
        assert await fetch(second, GROUP) == 7
        cluster.levels.clear()
        for coordinator in cluster.coordinators.values():
            coordinator.level_raised()
        await asyncio.sleep(1)
        cluster.store.move(cluster.write_group_of(GROUP), -1)
        deleted(cluster)
        cluster.metadata.add_topic("flights")
        cluster.store.move(cluster.write_group_of(GROUP), 3)
        assert await fetch(await cluster.settled(GROUP), GROUP) == -1

    simulated(story)


def test_offsets_without_a_topic_are_written_anew_by_the_first_who_loads_them_at_the_new_level() -> None:
    """Nobody tells it of the raise, and the next one would take them for those of a later topic of the same name."""

    async def story(cluster: ClusterOfMany) -> None:
        cluster.levels[1] = FeatureLevel.FIRST
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        assert await fetch(await cluster.settled(GROUP), GROUP) == 7
        await asyncio.sleep(1)
        cluster.store.move(cluster.write_group_of(GROUP), -1)
        deleted(cluster)
        cluster.metadata.add_topic("flights")
        cluster.store.move(cluster.write_group_of(GROUP), 3)
        assert await fetch(await cluster.settled(GROUP), GROUP) == -1

    simulated(story)


@pytest.mark.parametrize("level", FeatureLevel)
def test_a_topic_is_told_only_where_all_programs_read_it(level: FeatureLevel) -> None:
    """Kafka's form of an offset that has room for a topic is one that programs of the first level stop at."""

    async def story(cluster: ClusterOfMany) -> None:
        cluster.levels.update(dict.fromkeys(NODES, level))
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        topic = cluster.metadata.topic(OFFSETS_TOPIC)
        assert topic is not None
        queue = cluster.store.queues[topic.queue_id(coordinator_partition_of(GROUP, topic.partitions))]
        records = [
            record
            for stored in queue.batches
            for batch in stored_batches(memoryview(stored.data))
            for record in read_records(batch)
        ]
        (value,) = [it.value for it in records if it.key and isinstance(read_key(it.key), OffsetCommitKey)]
        assert value is not None
        version = int.from_bytes(value[:2], "big")
        assert (version == OFFSET_WITH_TOPIC_ID_VERSION) == (level >= FeatureLevel.HARDENED)

    simulated(story)


def test_a_group_of_which_only_offsets_of_gone_topics_are_left_is_gone_after_a_load() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        assert await commit(first, GROUP, 7) is OK
        cluster.store.move(cluster.write_group_of(GROUP), -1)
        deleted(cluster)
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        second = await cluster.settled(GROUP)
        await asyncio.sleep(1)
        machines = [it.machine for it in second.partitions.values() if it.machine is not None]
        assert machines
        assert not any(GROUP in machine.state.classic or machine.state.offsets.has(GROUP) for machine in machines)

    simulated(story)


def test_a_time_to_live_of_its_own_is_kept_beside_the_topic() -> None:
    async def story(cluster: ClusterOfMany) -> None:
        first = await cluster.settled(GROUP)
        item = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata=None)
        topics = (OffsetCommitRequestTopic(name="flights", partitions=(item,)),)
        request = OffsetCommitRequest(group_id=GROUP, retention_time_ms=3_600_000, topics=topics)
        assert (await first.offsets.commit_offsets(request, CALL)).topics[0].partitions[0].error_code == OK
        cluster.store.move(cluster.write_group_of(GROUP), 2)
        second = await cluster.settled(GROUP)
        assert await fetch(second, GROUP) == 7
        await asyncio.sleep(3_000)
        assert await fetch(second, GROUP) == 7
        await asyncio.sleep(1_400)  # it is looked at every ten minutes
        assert await fetch(second, GROUP) == -1

    simulated(story)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_an_offset_is_of_the_topic_that_has_the_name(seed: int) -> None:
    """Commits, deletions, new topics and moves at random. Each offset names the topic it was committed for."""

    async def story(cluster: ClusterOfMany) -> None:
        chance = random.Random(seed)
        await cluster.settled(GROUP)
        born, kept = 1, -1
        for _ in range(60):
            deed = chance.randrange(6)
            group = cluster.write_group_of(GROUP)
            if deed == 0:
                served = [node_id for node_id in NODES if chance.random() < 0.7]
                if cluster.metadata.topic("flights") is not None:
                    deleted(cluster, *served)
                if chance.random() < 0.7:
                    cluster.metadata.add_topic("flights")
                born, kept = born + 1, -1
                if set(served) != set(NODES):  # a node that did not hear of it begins anew, or does not serve
                    cluster.store.move(group, chance.choice(served or [-1]))
            elif deed == 1:
                cluster.store.move(group, chance.choice((*NODES, -1)))
            elif cluster.store.leaders[group] >= 0 and cluster.metadata.topic("flights") is not None:
                coordinator = await cluster.settled(GROUP)
                if deed in (2, 3):
                    code = await commit(coordinator, GROUP, born * 1000 + chance.randrange(1000))
                    assert code is OK
                    kept = born
                found = await fetch(coordinator, GROUP)
                assert isinstance(found, int)
                assert (found // 1000 if found >= 0 else -1) == kept
            await asyncio.sleep(chance.choice((0, 0, 1, 700)))
        assert cluster.metadata.topic(OFFSETS_TOPIC) is not None

    simulated(story, seed, CONFIG)
