"""ShareFetch looks again where the start of the log passes what it is about to read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from tests.broker.harness import Fakes, batch, call, make_broker
from tests.fakes.memory_store import MemoryStore
from tests.fakes.simulated_loop import SimulatedLoop

from mainstem.broker.handlers import share_fetch
from mainstem.broker.handlers.share_fetch import LOADING_LOOK_SECONDS
from mainstem.model import QueueRead, QueueSlice, Topic
from mainstem.ports import ReadPlan
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.share_fetch import (
    ShareFetchableTopicResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    SharePartitionData,
)
from mainstem.protocol.records import NewBatch

VERSION = 1
WAIT_MS = 5_000


class Answer(NamedTuple):
    rows: list[SharePartitionData]
    seconds: float


class Shared(NamedTuple):
    """A topic with one partition, of which a member of a share group reads."""

    fakes: Fakes
    topic: Topic

    @property
    def queue_id(self) -> int:
        return self.topic.queue_id(0)

    async def append(self, value: bytes) -> None:
        await self.fakes.store.append([NewBatch.parse(batch(value)).to_append(self.queue_id)], -1)

    async def fetch(self, epoch: int, wait_ms: int) -> Answer:
        partitions = (ShareFetchPartition(partition_index=0, acknowledgement_batches=()),)
        request = ShareFetchRequest(
            group_id="g",
            member_id="m",
            share_session_epoch=epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=500,
            batch_size=500,
            topics=(ShareFetchTopic(topic_id=self.topic.topic_id, partitions=partitions),) if epoch == 0 else (),
            forgotten_topics_data=(),
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await share_fetch.handle(self.fakes.broker, request, call(VERSION))
        assert answer.error_code == ErrorCode.NONE
        topics: Sequence[ShareFetchableTopicResponse] = answer.responses
        return Answer([row for topic in topics for row in topic.partitions], loop.time() - began)


async def shared() -> Shared:
    """The group has begun at the start of the topic, and three records have come since, a batch each."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    fakes = make_broker(loop)
    fakes.broker.shares.served.start()
    one = Shared(fakes, await fakes.topic())
    assert not (await one.fetch(0, WAIT_MS)).rows
    for value in (b"0", b"1", b"2"):
        await one.append(value)
    return one


def moving_start(store: MemoryStore, before: dict[int, int]) -> list[QueueRead]:
    """Has the log start just as the partition is about to be read; returns the reads that were too late."""
    missed: list[QueueRead] = []
    read_really = store.read

    async def read(
        reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        if isinstance(reads, Sequence) and not missed and reads[0].queue_id in before:
            missed.extend(reads)
            await store.truncate(before)
        return await read_really(reads, bytes_max, whole_first=whole_first)

    store.read = read  # type: ignore[method-assign]
    return missed


@pytest.mark.parametrize("wait_ms", [0, WAIT_MS])
def test_a_log_start_that_moves_during_the_read_is_no_error(wait_ms: int) -> None:
    """The request looks again soon, not at its deadline; one that does not wait leaves that to the next."""

    async def story() -> None:
        one = await shared()
        missed = moving_start(one.fakes.store, {one.queue_id: 2})
        answer = await one.fetch(1, wait_ms)
        assert [read.offset for read in missed] == [0]
        if wait_ms:
            assert answer.seconds == pytest.approx(LOADING_LOOK_SECONDS)
        else:
            assert answer == ([], 0)
            answer = await one.fetch(2, 0)
        [row] = answer.rows
        assert row.error_code == ErrorCode.NONE
        assert [(run.first_offset, run.last_offset, run.delivery_count) for run in row.acquired_records] == [(2, 2, 1)]
        await one.fakes.broker.shares.served.close()

    loop = SimulatedLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
