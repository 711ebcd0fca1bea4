"""Appends of very many records, which one event of a large group has."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import pairwise

from tests.broker.consumer_groups.coordinators.cluster_of_one import ClusterOfOne, simulated
from tests.broker.consumer_groups.coordinators.test_lost_offsets import ONE_PARTITION, ready

from mainstem.broker.consumer_groups.offsets_topic import OffsetsTopicCodec, limits_of
from mainstem.broker.consumer_groups.step import ReadRecord
from mainstem.broker.machines.machine_log import ENCODED_AT_ONCE, MachineLog
from mainstem.broker.machines.result import UnknownRecord
from mainstem.model import FeatureLevel
from mainstem.protocol.records import NewRecord


class CountingCodec(OffsetsTopicCodec):
    """Counts the records that it has encoded."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(
        self, record: ReadRecord, timestamp_ms: int, level: FeatureLevel
    ) -> NewRecord | Generator[None, None, NewRecord]:
        self.encoded += 1
        return super().encode(record, timestamp_ms, level)


def test_other_work_gets_its_turns_while_many_records_are_encoded() -> None:
    async def story(cluster: ClusterOfOne) -> None:
        await ready(cluster)
        topic = cluster.metadata.topic("__consumer_offsets")
        assert topic is not None
        store, limits, codec = cluster.store, limits_of(cluster.config), CountingCodec()
        log: MachineLog[ReadRecord] = MachineLog(topic.queue_id(0), codec, limits, store, store, cluster.clock)
        assert [record async for record in log.read()] == [], "the log is this test's from now on"
        records: list[ReadRecord] = [UnknownRecord(b"\x7d\x00%d" % at, b"x", 0, ()) for at in range(5_000)]
        seen = [0]
        async with asyncio.TaskGroup() as tasks:
            appending = tasks.create_task(log.append(records))
            while not appending.done():
                seen.append(codec.encoded)
                await asyncio.sleep(0)
        seen.append(codec.encoded)
        assert seen[-1] == len(records)
        assert max(after - before for before, after in pairwise(seen)) <= ENCODED_AT_ONCE
        assert [record async for record in log.read()] == records

    simulated(story, ONE_PARTITION)
