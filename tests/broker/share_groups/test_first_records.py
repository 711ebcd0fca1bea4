"""A share group that comes to several partitions gets the records of one of them first, as from Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.broker.harness import Fakes, batch, call, make_broker
from tests.broker.serving_node_of import serving_node_of
from tests.broker.share_groups_of import share_groups_of
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.handlers import share_fetch
from mainstem.broker.share_groups.config import ShareGroupsConfig
from mainstem.model import Topic
from mainstem.protocol.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from mainstem.protocol.records import NewBatch

VERSION = 1
PARTITIONS = (0, 1, 2)
WAIT_MS = 5_000


async def acquired(fakes: Fakes, topic: Topic, epoch: int, partitions: Sequence[int]) -> dict[int, list[int]]:
    """By partition, the offsets that a fetch brings."""
    followed = tuple(ShareFetchPartition(partition_index=index, acknowledgement_batches=()) for index in partitions)
    request = ShareFetchRequest(
        group_id="g",
        member_id="m",
        share_session_epoch=epoch,
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=500,
        batch_size=500,
        topics=(ShareFetchTopic(topic_id=topic.topic_id, partitions=followed),) if partitions else (),
        forgotten_topics_data=(),
    )
    answer = await share_fetch.handle(fakes.broker, request, call(VERSION))
    return {
        row.partition_index: [run.first_offset for run in row.acquired_records]
        for told in answer.responses
        for row in told.partitions
        if row.acquired_records
    }


async def append(fakes: Fakes, topic: Topic) -> None:
    for index in PARTITIONS:
        await fakes.store.append([NewBatch.parse(batch(b"value")).to_append(topic.queue_id(index))], -1)


def test_a_group_that_comes_to_partitions_gets_records_of_one_first() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        fakes = make_broker(loop)
        node = serving_node_of(fakes.metadata, fakes.leadership, fakes.store, loop)
        fakes.broker.shares = share_groups_of(node, ShareGroupsConfig(auto_offset_reset="earliest"))
        fakes.broker.shares.served.start()
        topic = await fakes.topic(partitions=len(PARTITIONS))
        await append(fakes, topic)
        first = await acquired(fakes, topic, 0, PARTITIONS)
        assert len(first) == 1, "the others' records come with the next fetch"
        second = await acquired(fakes, topic, 1, ())
        assert first | second == {index: [0] for index in PARTITIONS}, "the group has come to the others meanwhile"
        await append(fakes, topic)
        assert await acquired(fakes, topic, 2, ()) == {index: [1] for index in PARTITIONS}
        await fakes.broker.shares.served.close()

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
