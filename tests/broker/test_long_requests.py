"""Long requests: decoded, answered and encoded in many turns of the event loop, and answered as short ones are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.broker.harness import Serving, call, make_broker, serving

from mainstem.broker.handlers import offset_commit, offset_fetch
from mainstem.broker.steps import PARTITIONS_PER_STEP, in_steps
from mainstem.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from mainstem.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from mainstem.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from mainstem.turns import Turns

PARTITIONS = 3_000


def served(story: Callable[[Serving], Awaitable[None]]) -> None:
    async def run() -> None:
        async with serving() as node:
            await story(node)

    asyncio.run(run())


def test_one_slice_runs_in_a_turn_of_the_loop_whoever_has_it() -> None:
    async def story() -> None:
        turns = Turns()
        ran: list[tuple[int, int]] = []
        loop_turns = 0

        def count() -> None:
            nonlocal loop_turns
            loop_turns += 1
            asyncio.get_running_loop().call_soon(count)

        async def long_work(number: int) -> None:
            for _ in range(5):
                await turns.take()
                ran.append((loop_turns, number))

        asyncio.get_running_loop().call_soon(count)
        await asyncio.gather(*(long_work(number) for number in range(10)))
        assert len({turn for turn, _ in ran}) == 50, "two slices ran in one turn"
        assert [number for _, number in ran] == [*range(10)] * 5, "in the order they came"

    asyncio.run(story())


def test_who_gives_up_takes_no_turn() -> None:
    async def story() -> None:
        turns = Turns()
        given_up = asyncio.ensure_future(turns.take())
        other = asyncio.ensure_future(turns.take())
        await asyncio.sleep(0)
        given_up.cancel()
        await other
        assert turns.taken <= 2
        await turns.take()

    asyncio.run(story())


def test_a_long_request_takes_many_turns_and_others_are_served_between_them() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        asked = tuple(ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(PARTITIONS))
        request = ListOffsetsRequest(replica_id=-1, topics=(ListOffsetsTopic(name="t", partitions=asked),))
        client, other = await node.connect(), await node.connect()
        await client.request(request, 6)
        answered_meanwhile = 0
        answer = asyncio.ensure_future(client.response(2, 6))
        while not answer.done():
            await other.call(MetadataRequest(topics=(), allow_auto_topic_creation=False), 9)
            answered_meanwhile += 1
        assert len(answer.result().topics[0].partitions) == PARTITIONS
        assert node.broker.turns.taken >= 3 * (PARTITIONS // 512), "decoded, answered and encoded in slices"
        assert answered_meanwhile >= 2

    served(story)


def test_a_name_asked_for_again_and_again_is_answered_once() -> None:
    async def story(node: Serving) -> None:
        topics = (MetadataRequestTopic(name="none"),) * 20_000
        client = await node.connect()
        answer = await client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
        assert [topic.name for topic in answer.topics] == ["none"]

    served(story)


def test_a_request_of_too_many_elements_ends_its_connection_and_no_other() -> None:
    async def story(node: Serving) -> None:
        client, other = await node.connect(), await node.connect()
        topics = (MetadataRequestTopic(name=""),) * 250_001
        await client.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 4)
        assert await client.closed_by_server()
        await other.call(MetadataRequest(topics=(), allow_auto_topic_creation=False), 9)

    served(story)


def test_offsets_of_many_partitions_are_committed_and_fetched_in_steps() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        await node.topic("u", 2)
        partitions = tuple(
            OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata=None)
            for index in range(PARTITIONS + 1)
        )
        topics = tuple(OffsetCommitRequestTopic(name=name, partitions=partitions) for name in ("u", "t", "v"))
        commit = OffsetCommitRequest(group_id="g", topics=topics)
        loaded = OffsetFetchRequest(group_id="g", topics=None)
        while (await offset_fetch.handle(node.broker, loaded, call(7))).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        taken = node.broker.turns.taken
        response = await offset_commit.handle(node.broker, commit, call(7))
        codes = {topic.name: [partition.error_code for partition in topic.partitions] for topic in response.topics}
        assert codes["t"] == [0] * PARTITIONS + [3]
        assert codes["u"] == [0, 0] + [3] * (PARTITIONS - 1)
        assert set(codes["v"]) == {3}
        assert node.broker.turns.taken - taken >= PARTITIONS // PARTITIONS_PER_STEP
        every = tuple(range(PARTITIONS + 1))
        named = OffsetFetchRequest(group_id="g", topics=(OffsetFetchRequestTopic(name="t", partition_indexes=every),))
        fetched = await offset_fetch.handle(node.broker, named, call(7))
        assert [item.committed_offset for item in fetched.topics[0].partitions] == [*range(PARTITIONS), -1]
        fetched = await offset_fetch.handle(node.broker, OffsetFetchRequest(group_id="g", topics=None), call(7))
        assert {topic.name: len(topic.partitions) for topic in fetched.topics} == {"u": 2, "t": PARTITIONS}

    served(story)


def test_steps_hold_every_partition_once() -> None:
    topics = [
        OffsetFetchRequestTopic(name=str(number), partition_indexes=tuple(range(size)))
        for number, size in enumerate((0, 3, 25, 9, 10, 0, 41, 1))
    ]
    steps = list(in_steps(topics, "partition_indexes", 10))
    assert all(sum(len(topic.partition_indexes) for topic in step.topics) <= 10 for step in steps)
    merged: list[tuple[str, tuple[int, ...]]] = []
    for step in steps:
        for number, topic in enumerate(step.topics):
            if number == 0 and step.continued:
                merged[-1] = (topic.name, merged[-1][1] + topic.partition_indexes)
            else:
                merged.append((topic.name, topic.partition_indexes))
    assert merged == [(topic.name, topic.partition_indexes) for topic in topics]


def test_a_broker_has_turns() -> None:
    assert make_broker().broker.turns.taken == 0
