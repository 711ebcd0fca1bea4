"""Long requests: decoded, answered and encoded in many turns of the event loop, and answered as short ones are."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import pytest
from tests.broker.consumer_groups.transcript import Transcript
from tests.broker.harness import Serving, batch, call, make_broker, serving

from mainstem.broker.fetch_requests.pending_fetch import PART_ENTRIES, ROWS_AT_ONCE
from mainstem.broker.fetch_requests.reader_histories import EPOCHS_PER_TURN
from mainstem.broker.fetching.fetch_sessions import PARTITIONS_PER_SESSION_MAX, FetchSessions
from mainstem.broker.handlers import offset_commit, offset_fetch
from mainstem.broker.handlers.fetch import held_bytes
from mainstem.broker.partitions import PARTITIONS_PER_STEP, in_steps
from mainstem.kernel import KERNEL, TOPICS_AT_ONCE_MAX, FetchPlan
from mainstem.kernel.pure.fetch import ENTRIES_AT_ONCE
from mainstem.protocol import codec
from mainstem.protocol.decoded_memory import decoded_bytes_max, let_go_in_slices
from mainstem.protocol.headers import RequestHeader, request_frame
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.turns import Turns

R = TypeVar("R")

PARTITIONS = 3_000


def request_for(name: str, records: bytes, index: int = 0) -> ProduceRequest:
    data = (PartitionProduceData(index=index, records=records),)
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=(TopicProduceData(name=name, partition_data=data),))


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


def test_each_offset_that_is_committed_has_its_own_answer_in_the_order_of_the_request() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        too_long = "m" * 10_000

        def item(index: int, metadata: str | None = None) -> OffsetCommitRequestPartition:
            return OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)

        partitions = (item(0, too_long), item(PARTITIONS), *(item(index) for index in range(PARTITIONS)), item(-1))
        topics = tuple(OffsetCommitRequestTopic(name="t", partitions=partitions) for _ in range(2))
        loaded = OffsetFetchRequest(group_id="g", topics=None)
        while (await offset_fetch.handle(node.broker, loaded, call(7))).error_code:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        response = await offset_commit.handle(node.broker, OffsetCommitRequest(group_id="g", topics=topics), call(7))
        for topic in response.topics:
            assert [partition.error_code for partition in topic.partitions] == [12, 3, *[0] * PARTITIONS, 3]
            assert [partition.partition_index for partition in topic.partitions] == [
                partition.partition_index for partition in partitions
            ]

    served(story)


OTHERS = 200
"""Objects of the collector's that come about anyway, with the code that is made for a message and the like."""


@contextmanager
def seen_by_the_collector(count_max: int) -> Iterator[None]:
    """Fails if more objects come about meanwhile, and live, that the garbage collector visits."""
    gc.collect()
    gc.disable()
    before = len(gc.get_objects())
    try:
        yield
        assert len(gc.get_objects()) - before <= count_max
    finally:
        gc.enable()


@pytest.mark.skipif(KERNEL == "python", reason="only the compiled kernel can tell the collector what to leave out")
def test_the_collector_visits_neither_long_messages_nor_committed_offsets() -> None:
    partitions = tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="")
        for index in range(PARTITIONS)
    )
    topics = (OffsetCommitRequestTopic(name="t", partitions=partitions),)
    data = codec.write(OffsetCommitRequest(group_id="g", topics=topics), 7)
    with seen_by_the_collector(OTHERS):
        at_once = codec.read(OffsetCommitRequest, 7, data)
    with seen_by_the_collector(OTHERS):
        in_slices = whole(codec.read_in_slices(OffsetCommitRequest, 7, data))[0]
    assert at_once == in_slices
    with seen_by_the_collector(OTHERS):
        again = tuple(replace(partition, committed_offset=1) for partition in partitions)
        answer = OffsetCommitRequestTopic(name="t", partitions=again)
    assert not gc.is_tracked(answer.partitions)
    table = Transcript()
    with seen_by_the_collector(OTHERS):
        table.commit({("t", index): 1 for index in range(PARTITIONS)})
    committed = table.machine.state.offsets
    assert committed.count == PARTITIONS
    assert not [thing for thing in gc.get_objects() if type(thing) is dict and thing.keys() == set(range(PARTITIONS))]


def whole(slices: Generator[None, None, R]) -> R:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: R = end.value
            return found


MANY = ROWS_AT_ONCE + 500


def many_partitions(session: tuple[int, int] = (0, -1), epoch: int = -1, max_wait_ms: int = 0) -> FetchRequest:
    wanted = tuple(
        FetchPartition(
            partition=index, fetch_offset=0, partition_max_bytes=1000,
            current_leader_epoch=-1, last_fetched_epoch=epoch,
        )
        for index in range(MANY)
    )  # fmt: skip
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, session_id=session[0], session_epoch=session[1],
        topics=(FetchTopic(topic="t", partitions=wanted),),
    )  # fmt: skip


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_fetch_of_many_partitions_takes_turns_and_finds_what_a_short_one_does(epoch: int) -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", MANY - 1)
        client, other = await node.connect(), await node.connect()
        await other.call(request_for("t", batch(b"v"), index=7), 9)
        before = node.broker.turns.taken
        await client.request(many_partitions(epoch=epoch), 12)
        answer = asyncio.ensure_future(client.response(1, 12))
        meanwhile = 0
        while not answer.done():
            await other.call(MetadataRequest(topics=(), allow_auto_topic_creation=False), 9)
            meanwhile += 1
        assert meanwhile >= 2
        assert node.broker.turns.taken - before >= (4 if epoch < 0 else MANY // EPOCHS_PER_TURN)
        (topic,) = answer.result().responses
        assert [part.partition_index for part in topic.partitions] == list(range(MANY))
        assert [part.partition_index for part in topic.partitions if part.records] == [7]
        assert [part.error_code for part in topic.partitions] == [0] * (MANY - 1) + [3]

    served(story)


def test_a_long_session_waits_for_news_and_tells_them() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", MANY)
        client, other = await node.connect(), await node.connect()
        opened = await client.call(many_partitions((0, 0)), 7)
        assert opened.session_id
        again = replace(
            many_partitions((opened.session_id, 1), max_wait_ms=60_000), topics=(), forgotten_topics_data=()
        )
        await client.request(again, 7)
        while not node.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await other.call(request_for("t", batch(b"v"), index=MANY - 1), 9)
        (topic,) = (await client.response(1, 7)).responses
        assert [part.partition_index for part in topic.partitions] == [MANY - 1]

    served(story)


def test_a_later_request_of_a_long_session_takes_it_over_between_two_looks() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", MANY)
        client, other = await node.connect(), await node.connect()
        session_id = (await client.call(many_partitions((0, 0)), 7)).session_id
        for number, connection in enumerate((client, other), 1):
            asked = many_partitions((session_id, number))
            await connection.request(replace(asked, topics=(), forgotten_topics_data=()), 7)
        codes = {(await connection.response(1, 7)).error_code for connection in (client, other)}
        assert codes <= {0, 71}
        assert 0 in codes
        await other.request(replace(many_partitions((session_id, 3)), topics=()), 7)
        assert (await other.response(1, 7)).error_code == 0

    served(story)


def test_who_follows_too_many_partitions_goes_on_without_a_session() -> None:
    sessions = FetchSessions(sessions_max=9, idle_ms_min=0, partitions_max=10**9, random=Random(1))
    plan = FetchPlan()
    plan.add_topic("t")
    for index in range(PARTITIONS_PER_SESSION_MAX):
        plan.add_partition(index, 0, 1, -1, -1)
    session = sessions.open(plan, 0, by_id=False)
    assert session is not None
    more = FetchPlan()
    more.add_topic("t")
    more.add_partition(PARTITIONS_PER_SESSION_MAX, 0, 1, -1, -1)
    assert not sessions.update(session, more, [])
    more.add_topic("u")
    for index in range(PARTITIONS_PER_SESSION_MAX):
        more.add_partition(index, 0, 1, -1, -1)
    assert sessions.open(more, 0, by_id=False) is None


VERY_MANY = ENTRIES_AT_ONCE + 500
PARTS = -(-(VERY_MANY + 1) // PART_ENTRIES)


def very_many(offsets: Sequence[tuple[int, int]], **how: Any) -> FetchRequest:
    """A request of more partitions than one plan holds: one of these from its offset on, then the last partition again
    and again, then the others of these: other plans have them."""
    named = [*offsets[:1], *((PARTITIONS - 1, 0) for _ in range(VERY_MANY - len(offsets))), *offsets[1:]]
    wanted = tuple(FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 20) for index, at in named)
    fields: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "session_id": 0, "session_epoch": -1, **how}
    return FetchRequest(topics=(FetchTopic(topic="t", partitions=wanted),), **fields)


class Room:
    """Memory for responses without an end, and what is charged for it."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def bytes_free(self) -> int:
        return 2**31

    def change(self, more: int) -> None:
        self.held += more
        self.most = max(self.most, self.held)


def served_in(response: FetchResponse) -> list[tuple[int, int]]:
    """(partition, how many bytes of batches) where there are any, in order; all that was asked for is answered."""
    found = [part for topic in response.responses for part in topic.partitions]
    assert len(found) == VERY_MANY
    assert not any(part.error_code for part in found)
    return [(part.partition_index, len(part.records or b"")) for part in found if part.records]


def test_a_fetch_of_more_partitions_than_one_plan_holds_is_answered_in_parts() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        node.broker.response_room = room = Room()
        client, other = await node.connect(), await node.connect()
        sizes = {index: len(batch(b"v" * index)) for index in (7, 2_000)}
        for index in sizes:
            await other.call(request_for("t", batch(b"v" * index), index=index), 9)
        before = node.broker.turns.taken
        await client.request(very_many([(2_000, 0), (5, 0), (7, 0)], session_epoch=0), 12)
        answer = asyncio.ensure_future(client.response(1, 12))
        meanwhile = 0
        while not answer.done():
            await other.call(MetadataRequest(topics=(), allow_auto_topic_creation=False), 9)
            meanwhile += 1
        assert meanwhile >= 2 * PARTS
        assert node.broker.turns.taken - before >= 4 * PARTS
        assert served_in(answer.result()) == [(2_000, sizes[2_000]), (7, sizes[7])]
        assert answer.result().session_id == 0
        node.server.relieve()
        assert node.server.budget.idle
        assert room.held == 0
        assert room.most > 37 * VERY_MANY, "the response while it is made"

    served(story)


def test_very_many_partitions_share_the_bytes_of_a_response_in_the_order_of_the_request() -> None:
    """So that a client which asks last for what it had last, as all do, gets everything."""

    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        client = await node.connect()
        one = batch(b"v" * 100)
        waiting = [0, 1, 2]
        for index in (0, 0, 0, 0, 1, 1, 2, 2):
            await client.call(request_for("t", one, index=index), 9)
        offsets = dict.fromkeys(waiting, 0)
        for expected in ([(0, 3)], [(1, 2), (2, 1)], [(0, 1), (2, 1)]):
            request = very_many([(index, offsets[index]) for index in waiting], max_bytes=3 * len(one))
            found = [(index, size // len(one)) for index, size in served_in(await client.call(request, 4))]
            assert found == expected
            for index, count in found:
                offsets[index] += count
                waiting.remove(index)
                waiting.append(index)
        assert offsets == {0: 4, 1: 2, 2: 2}

    served(story)


def test_a_fetch_of_very_many_partitions_looks_again_when_its_time_is_over() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        client, other = await node.connect(), await node.connect()
        await client.request(very_many([], max_wait_ms=60_000), 12)
        while not node.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await other.call(request_for("t", batch(b"v"), index=PARTITIONS - 1), 9)
        node.store.wake_all()
        found = served_in(await client.response(1, 12))
        assert {index for index, _ in found} == {PARTITIONS - 1}
        assert node.store.waiting == 0

    served(story)


def test_no_session_follows_very_many_partitions() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        client = await node.connect()
        session_id = (await client.call(many_partitions((0, 0)), 7)).session_id
        assert session_id
        for _ in range(2):
            answer = await client.call(very_many([], session_id=session_id, session_epoch=1), 12)
            assert (answer.error_code, answer.responses) == (70, ())
        assert len(node.broker.fetch_sessions) == 0

    served(story)


def test_a_fetch_of_very_many_partitions_that_ends_early_ends_its_connection() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t", PARTITIONS)
        node.broker.response_room = room = Room()
        client, other = await node.connect(), await node.connect()
        content = request_frame(RequestHeader(1, 12, 1, "c"), codec.write(very_many([]), 12))[4:-20]
        await client.send_frame(content)
        assert await client.closed_by_server()
        await other.call(MetadataRequest(topics=(), allow_auto_topic_creation=False), 9)
        assert room.held == 0
        assert room.most

    served(story)


def test_what_a_fetch_of_very_many_partitions_takes_is_one_plan_and_its_bytes() -> None:
    assert held_bytes(1_000) == 11_000
    assert held_bytes(33_000_000) < 3 * 33_000_000


@pytest.mark.parametrize("version", [7, 9, 13])
def test_a_produce_request_of_very_many_topics_is_taken_in_parts_and_answered_as_one(version: int) -> None:
    async def story(node: Serving) -> None:
        topics = {number: await node.topic(f"t{number}") for number in (0, 5_000, TOPICS_AT_ONCE_MAX)}
        ids = {number: topic.topic_id for number, topic in topics.items()}
        data = (PartitionProduceData(index=0, records=batch(b"v")),)
        asked = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=tuple(
            TopicProduceData(name=f"t{number}", topic_id=ids.get(number, UUID(int=number + 1)), partition_data=data)
            for number in range(TOPICS_AT_ONCE_MAX + 1)
        ))  # fmt: skip
        client = await node.connect()
        before = node.broker.turns.taken
        answer = await client.call(asked, version)
        assert node.broker.turns.taken - before > TOPICS_AT_ONCE_MAX // 1000
        if version < 13:
            assert [topic.name for topic in answer.responses] == [topic.name for topic in asked.topic_data]
        codes = [topic.partition_responses[0].error_code for topic in answer.responses]
        assert [number for number, code in enumerate(codes) if code == 0] == list(topics)
        assert len(codes) == TOPICS_AT_ONCE_MAX + 1
        assert sum(len(queue.batches) for queue in node.store.queues.values()) == len(topics)
        assert (await client.call(request_for("t0", batch(b"v")), 9)).responses[0].partition_responses[0].base_offset

    served(story)


def test_a_produce_request_of_very_many_topics_that_ends_early_appends_nothing() -> None:
    async def story(node: Serving) -> None:
        await node.topic("t")
        data = (PartitionProduceData(index=0, records=batch(b"v")),)
        asked = ProduceRequest(
            acks=-1, timeout_ms=1000,
            topic_data=(TopicProduceData(name="t", partition_data=data),) * (TOPICS_AT_ONCE_MAX + 1),
        )  # fmt: skip
        client = await node.connect()
        content = request_frame(RequestHeader(0, 9, 1, "c"), codec.write(asked, 9))[4:-20]
        await client.send_frame(content)
        assert await client.closed_by_server()
        assert not any(queue.batches for queue in node.store.queues.values())

    served(story)


def test_requests_that_grow_beyond_memory_when_they_are_decoded_wait_for_each_other() -> None:
    async def story(node: Serving) -> None:
        size = 2 + 100_000 * len(b"\0\x06topic")
        grown = decoded_bytes_max(MetadataRequest, 4, size)
        assert grown > 10 * size
        budget = node.server.budget
        budget.bytes_max = 3 * grown  # of which an address has half: one, and the one that has waited for longest
        clients = [await node.connect() for _ in range(5)]
        asked = MetadataRequest(
            topics=tuple(MetadataRequestTopic(name="topic") for _ in range(100_000)),
            allow_auto_topic_creation=False,
        )
        for client in clients:
            await client.request(asked, 4)
        most = 0
        answers = [asyncio.ensure_future(client.response(3, 4)) for client in clients]
        while not all(answer.done() for answer in answers):
            most = max(most, sum(connection.account.kept > 0 for connection in node.server.connections))
            await asyncio.sleep(0)
        assert 1 <= most <= 2, "too many were decoded at once"
        assert all([topic.name for topic in answer.result().topics] == ["topic"] for answer in answers)
        node.server.relieve()
        assert budget.bytes_taken == 0

    served(story)


def test_long_messages_are_freed_in_slices() -> None:
    asked = [OffsetCommitRequest(group_id="g", topics=(OffsetCommitRequestTopic(name="t", partitions=tuple(
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata=None)
        for index in range(10_000)
    )),))]  # fmt: skip
    alive = sys.getrefcount(OffsetCommitRequestPartition)
    slices = let_go_in_slices(asked)
    left = []
    for _ in slices:
        left.append(sys.getrefcount(OffsetCommitRequestPartition) - alive)
    assert asked == []
    assert len(left) >= 4
    assert all(later <= earlier - 1_000 for earlier, later in pairwise(left))


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
