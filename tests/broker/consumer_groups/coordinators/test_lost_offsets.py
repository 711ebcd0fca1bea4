"""A part of a coordinator's log that no replica can read: what is known goes on, what may be lost is told, and nothing
is dropped before somebody has said so."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_coordinator import commit, fetch, loaded, queue_of
from tests.broker.consumer_groups.transcript import GROUP
from tests.fakes.memory_store import StoredBatch

from mainstem.broker.consumer_groups.config import ConsumerGroupsConfig
from mainstem.broker.consumer_groups.offsets import LOST
from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, limits_of
from mainstem.broker.consumer_groups.step import LogRecord
from mainstem.broker.machines.machine_log import Gap, MachineLog
from mainstem.broker.machines.result import UnknownRecord
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics

ONE_PARTITION = ConsumerGroupsConfig(rebalance_delay_ms=0, offsets_topic_partitions=1)
PATIENCE_SECONDS = 60
"""Longer than a log is tried as a whole."""
BETWEEN_SECONDS = 300


async def asked(cluster: ClusterOfOne, group: str = GROUP, partition: int = 0) -> int | ErrorCode:
    """The committed offset of one partition, asked for by name as consumers do."""
    topics = (OffsetFetchRequestTopics(name="flights", partition_indexes=(partition,)),)
    response = await cluster.groups.offsets.fetch_offsets(OffsetFetchRequestGroup(group_id=group, topics=topics))
    if response.error_code:
        return ErrorCode(response.error_code)
    [[answer]] = [topic.partitions for topic in response.topics]
    return ErrorCode(answer.error_code) if answer.error_code else answer.committed_offset


async def ready(cluster: ClusterOfOne) -> None:
    await cluster.groups.leader_of(GROUP)
    await loaded(cluster)


def damage(cluster: ClusterOfOne, number: int) -> StoredBatch:
    batch: StoredBatch = queue_of(cluster).batches[number]
    batch.data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
    return batch


def measured(cluster: ClusterOfOne, name: str) -> Any:
    return next(sample.value for sample in cluster.groups.served.samples() if sample.name == name)  # type: ignore[union-attr]


def test_what_may_be_lost_is_told_and_what_was_committed_since_is_known() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        await commit(cluster, 1, group="before")
        await commit(cluster, 5, group="lost")
        await commit(cluster, 7, group="since")
        damage(cluster, 1)
        await cluster.restart()
        await asyncio.sleep(5)
        assert await asked(cluster, "since") is ErrorCode.COORDINATOR_NOT_AVAILABLE  # it may be mended yet
        await asyncio.sleep(PATIENCE_SECONDS)
        assert await asked(cluster, "since") == 7
        assert await asked(cluster, "lost") is LOST
        assert await asked(cluster, "before") is LOST, "a later commit may be what is lost"
        assert await asked(cluster, "never heard of") is LOST, "so may its only one"
        assert await fetch(cluster, "lost") is LOST
        assert await fetch(cluster, "since") == {0: 7}
        assert measured(cluster, "mainstem_consumer_group_partitions_incomplete") == 1
        assert measured(cluster, "mainstem_consumer_group_offsets_doubtful") == 1
        assert await commit(cluster, 4, group="lost") is ErrorCode.NONE
        assert await asked(cluster, "lost") == 4
        assert await asked(cluster, "lost", partition=1) is LOST

    simulated(story, ONE_PARTITION)


def test_what_is_there_again_is_loaded_and_nothing_was_dropped_meanwhile() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        await commit(cluster, 1, group="early")
        await commit(cluster, 5, group="early")
        await commit(cluster, 5, group="lost")
        whole = queue_of(cluster).batches[1].data
        damage(cluster, 1)
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        for offset in range(40):  # enough for several snapshots, and for what was committed before to expire
            await asyncio.sleep(BETWEEN_SECONDS)
            assert await commit(cluster, offset, group="busy") is ErrorCode.NONE
        assert queue_of(cluster).log_start == 0
        assert await asked(cluster, "early") is LOST
        queue_of(cluster).batches[1].data = whole
        while await asked(cluster, "early") in (LOST, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):  # noqa: ASYNC110
            await asyncio.sleep(1)
        assert await asked(cluster, "early") == 5
        assert await asked(cluster, "busy") == 39
        assert measured(cluster, "mainstem_consumer_group_partitions_incomplete") == 0
        await commit(cluster, 40, group="busy")
        await asyncio.sleep(1)
        assert queue_of(cluster).log_start > 0, "with everything known again, the log is kept short again"

    short = ConsumerGroupsConfig(
        rebalance_delay_ms=0, offsets_topic_partitions=1, snapshot_after_bytes=1_000, offsets_retention_minutes=60
    )
    simulated(story, short)


def test_offsets_that_are_skipped_are_as_lost_as_those_that_cannot_be_read() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        for number, group in enumerate(("a", "b", "c")):
            await commit(cluster, number, group=group)
        del queue_of(cluster).batches[1]
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert [await asked(cluster, group) for group in ("a", "b", "c")] == [LOST, LOST, 2]

    simulated(story, ONE_PARTITION)


def test_somebody_may_give_up_what_is_lost_for_good() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        await commit(cluster, 1, group="early")
        await commit(cluster, 5, group="early")
        await commit(cluster, 7, group="since")
        damage(cluster, 1)
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert await asked(cluster, "early") is LOST
        cluster.config = ConsumerGroupsConfig(
            rebalance_delay_ms=0, offsets_topic_partitions=1, accept_lost_offsets=True
        )
        await cluster.restart()
        await asyncio.sleep(PATIENCE_SECONDS)
        assert [await asked(cluster, group) for group in ("early", "since", "new")] == [1, 7, -1]
        assert measured(cluster, "mainstem_consumer_group_records_given_up_total") == 1
        assert queue_of(cluster).log_start == 3, "the lost part is gone"
        cluster.config = ONE_PARTITION
        await cluster.restart()
        await loaded(cluster)
        assert [await asked(cluster, group) for group in ("early", "since", "new")] == [1, 7, -1]

    simulated(story, ONE_PARTITION)


def test_a_failure_that_passes_costs_nothing() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        await commit(cluster, 1)
        whole = queue_of(cluster).batches[0].data
        damage(cluster, 0)
        await cluster.restart()
        await asyncio.sleep(8)
        queue_of(cluster).batches[0].data = whole
        await asyncio.sleep(10)
        assert await asked(cluster) == 1
        assert await asked(cluster, "new") == -1

    simulated(story, ONE_PARTITION)


@pytest.mark.parametrize("seed", range(20))
def test_gaps_cover_what_is_damaged_and_records_are_those_of_whole_batches(seed: int) -> None:
    """Every offset is either read or in a gap, whatever is damaged; one damage alone is exactly its gap."""
    rng = random.Random(seed)

    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        topic = cluster.metadata.topic("__consumer_offsets")
        assert topic is not None
        queue = cluster.store.queues[topic.queue_id(0)]
        store, limits = cluster.store, limits_of(cluster.config)
        log: MachineLog[LogRecord] = MachineLog(
            topic.queue_id(0), OffsetsTopicCodec(), limits, store, store, cluster.clock
        )
        assert [record async for record in log.read()] == [], "the log is this test's from now on"
        written = 0
        for _ in range(30):
            records = [UnknownRecord(b"\x7d\x00%d" % (written + at), b"", 0, ()) for at in range(rng.randint(1, 9))]
            log.end = written
            await log.append(records)
            written += len(records)
        broken: set[int] = set()
        for batch in rng.sample(queue.batches, rng.choice([1, 1, 2, 5, 30])):
            broken |= set(range(batch.base_offset, batch.next_offset))
            if rng.random() < 0.5:
                batch.data = batch.data[:-1] + bytes([batch.data[-1] ^ 1])
            else:
                queue.batches.remove(batch)
        read: list[int] = []
        missing: set[int] = set()
        async for found in log.read(over_gaps=True):
            if isinstance(found, Gap):
                assert not missing & set(range(found.start, found.end))
                missing |= set(range(found.start, found.end))
            else:
                assert isinstance(found, UnknownRecord)
                read.append(int(found.key[2:]))
        assert broken <= missing
        assert read == sorted(set(range(written)) - missing)
        if len({offset for offset in broken if offset - 1 not in broken}) == 1:
            assert missing == broken
        assert log.end == written

    simulated(story, ONE_PARTITION)
