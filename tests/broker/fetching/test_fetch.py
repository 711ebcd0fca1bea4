"""Fetch: what is read, when it waits, and what a session leaves out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pytest
from tests.broker.harness import SESSION, Fakes, batch, call, make_broker
from tests.fakes.clock import LoopClock
from tests.fakes.memory_store import MemoryStore
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.broker.config import BrokerConfig
from mainstem.broker.fetching.read_turns import READS_TOGETHER_MAX
from mainstem.broker.handlers import fetch
from mainstem.broker.started import EncodedFrame, Waiting
from mainstem.broker.throttling import Throttling
from mainstem.model import Node, QueueRead, QueueSlice, Topic
from mainstem.ports import ReadPlan, Session, joined
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import parse_response_header
from mainstem.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from mainstem.protocol.records import NewBatch, read_batch_header
from mainstem.security.quotas.quota_table import QuotaTable
from mainstem.security.tenants.tenant import Tenant
from mainstem.security.tenants.tenant_table import TenantTable

VERSION = 12
MIB = 1024 * 1024


class Ask(NamedTuple):
    partition: int
    offset: int = 0
    max_bytes: int = MIB
    leader_epoch: int = -1
    last_fetched_epoch: int = -1


def request_for(
    topic: Topic | str | UUID | None,
    *asks: Ask,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[int] = (),
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    max_bytes: int = 50 * MIB,
    isolation_level: int = 0,
) -> FetchRequest:
    key = topic.name if isinstance(topic, Topic) else topic
    name = key if isinstance(key, str) else ""
    topic_id = key if isinstance(key, UUID) else UUID(int=0)
    partitions = tuple(
        FetchPartition(
            partition=ask.partition,
            fetch_offset=ask.offset,
            partition_max_bytes=ask.max_bytes,
            current_leader_epoch=ask.leader_epoch,
            last_fetched_epoch=ask.last_fetched_epoch,
        )
        for ask in asks
    )
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=(FetchTopic(topic=name, topic_id=topic_id, partitions=partitions),) if partitions else (),
        forgotten_topics_data=(
            (ForgottenTopic(topic=name, topic_id=topic_id, partitions=tuple(forget)),) if forget else ()
        ),
    )


async def answer(
    fakes: Fakes, request: FetchRequest, version: int = VERSION, session: Session = SESSION
) -> EncodedFrame:
    body = codec.write(request, version)
    context = call(version)._replace(session=session)
    step = fetch.begin(fakes.broker, memoryview(b"head" + body), 4, context)
    while not isinstance(step, EncodedFrame):
        if isinstance(step, Waiting):
            await step.future
            step = step.again()
        else:
            step = await step()
    return step


async def ask(fakes: Fakes, request: FetchRequest, version: int = VERSION, session: Session = SESSION) -> FetchResponse:
    """Ask as a client does, and read the response as it does."""
    answered = await answer(fakes, request, version, session)
    frame = memoryview(joined(answered.buffers))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, position = parse_response_header(frame[4:], 1, version)
    assert correlation_id == call(version).correlation_id
    response = codec.read(FetchResponse, version, frame[4:], position)
    codes = [part.error_code for topic in response.responses for part in topic.partitions]
    assert answered.errors == Counter(code for code in (response.error_code, *codes) if code)
    return response


def parts(response: FetchResponse) -> dict[int, PartitionData]:
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def records(part: PartitionData) -> bytes:
    assert part.records is not None
    return b"".join(part.records) if isinstance(part.records, tuple) else bytes(part.records)


async def append(fakes: Fakes, topic: Topic, partition: int, data: bytes) -> None:
    batch = NewBatch(data, read_batch_header(data))
    await fakes.store.append([batch.to_append(topic.queue_id(partition))], -1)


def test_batches_come_back_as_sent() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        for value in (b"a", b"b", b"c"):
            await append(fakes, topic, 0, batch(value, value))
        part = parts(await ask(fakes, request_for(topic, Ask(0, 2))))[0]
        size = len(batch(b"b", b"b"))
        assert records(part)[16:size] == batch(b"b", b"b")[16:]
        assert records(part)[size + 16 :] == batch(b"c", b"c")[16:]
        assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (6, 6, 0)

    asyncio.run(scenario())


def test_large_batches_are_not_copied() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        for partition, size in ((0, 20_000), (0, 10), (1, 30_000)):
            await append(fakes, topic, partition, batch(b"v" * size))
        answered = await answer(fakes, request_for(topic, Ask(0), Ask(1)))
        owners = [buffer.obj for buffer in answered.buffers if isinstance(buffer, memoryview)]
        large, _ = fakes.store.queues[topic.queue_id(0)].batches
        (other,) = fakes.store.queues[topic.queue_id(1)].batches
        assert [owner for owner in owners if owner is large.data or owner is other.data] == [large.data, other.data]

    asyncio.run(scenario())


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_is_answered(version: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        await append(fakes, topic, 0, batch(b"a"))
        key: UUID | Topic = topic.topic_id if version >= 13 else topic
        response = await ask(fakes, request_for(key, Ask(0)), version)
        assert records(parts(response)[0])[16:] == batch(b"a")[16:]
        assert response.responses[0].topic_id == (topic.topic_id if version >= 13 else UUID(int=0))

    asyncio.run(scenario())


def test_aborted_transactions_are_a_list_only_for_committed_readers() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        for level, expected in ((0, None), (1, ())):
            response = await ask(fakes, request_for(topic, Ask(0), isolation_level=level))
            assert parts(response)[0].aborted_transactions == expected

    asyncio.run(scenario())


def test_errors_belong_to_their_partition() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=6)
        fakes.store.leader_epoch = 3
        fakes.store.led_elsewhere.add(topic.queue_id(1))
        del fakes.store.queues[topic.queue_id(2)]
        asks = [Ask(0), Ask(1), Ask(2), Ask(3, 1), Ask(4, leader_epoch=2), Ask(5, leader_epoch=4), Ask(6)]
        found = parts(await ask(fakes, request_for(topic, *asks, min_bytes=1, max_wait_ms=60_000)))
        assert [found[n].error_code for n in range(7)] == [
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.FENCED_LEADER_EPOCH,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        response = await ask(fakes, request_for(UUID(int=99), Ask(0)), 13)
        assert parts(response)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        response = await ask(fakes, request_for("unknown", Ask(0)))
        assert parts(response)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


def test_a_reader_whose_history_left_the_queues_is_told_where() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        await append(fakes, topic, 0, batch(b"a"))
        fakes.store.leader_epoch = 2
        await append(fakes, topic, 0, batch(b"b"))
        part = parts(await ask(fakes, request_for(topic, Ask(0, 2, last_fetched_epoch=1), max_wait_ms=60_000)))[0]
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 1)
        assert part.error_code == ErrorCode.NONE
        part = parts(await ask(fakes, request_for(topic, Ask(0, 2, last_fetched_epoch=2))))[0]
        assert part.diverging_epoch.epoch == -1

    asyncio.run(scenario())


def test_a_history_that_cannot_be_compared_is_an_error_of_its_partition() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        for partition in range(2):
            await append(fakes, topic, partition, batch(b"a"))
        fakes.store.leader_epoch = 2
        fakes.store.unreadable.add(topic.queue_id(0))
        asks = [Ask(place, 1, last_fetched_epoch=0) for place in range(2)]
        response = await ask(fakes, request_for(topic, *asks))
        codes = [parts(response)[place].error_code for place in range(2)]
        assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]

    asyncio.run(scenario())


def test_size_limits_of_request_partition_and_node_hold() -> None:
    async def scenario() -> None:
        fakes = make_broker(config=BrokerConfig(fetch_bytes_max=2500))
        topic = await fakes.topic(partitions=3)
        one = batch(b"v" * 900)
        for partition in range(3):
            for _ in range(3):
                await append(fakes, topic, partition, one)
        asks = [Ask(0), Ask(1), Ask(2)]

        async def sizes(*asks: Ask, max_bytes: int = 50 * MIB) -> list[int]:
            found = parts(await ask(fakes, request_for(topic, *asks, max_bytes=max_bytes)))
            return [len(records(found[n])) // len(one) for n in range(3)]

        assert await sizes(*asks) == [2, 0, 0]  # the node's limit
        assert await sizes(*asks, max_bytes=1100) == [1, 0, 0]
        assert await sizes(*(Ask(n, max_bytes=1000) for n in range(3))) == [1, 1, 0]
        assert await sizes(*asks, max_bytes=1) == [1, 0, 0]  # the first batch always comes whole
        assert await sizes(*asks, max_bytes=-5) == [1, 0, 0]

    asyncio.run(scenario())


def test_it_waits_for_enough_bytes_and_not_for_less() -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic(partitions=2)
        size = len(batch(b"a"))
        request = request_for(topic, Ask(0), Ask(1), min_bytes=2 * size, max_wait_ms=30_000)
        waiting = asyncio.ensure_future(ask(fakes, request))
        while not fakes.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await append(fakes, topic, 0, batch(b"a"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        await append(fakes, topic, 1, batch(b"b"))
        found = parts(await waiting)
        assert [len(records(found[n])) for n in range(2)] == [size, size]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_it_answers_with_what_there_is_when_its_time_is_over() -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic()
        await append(fakes, topic, 0, batch(b"a"))
        response = await ask(fakes, request_for(topic, Ask(0), min_bytes=MIB, max_wait_ms=20))
        assert len(records(parts(response)[0])) == len(batch(b"a"))
        assert fakes.store.waiting == 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_it_does_not_wait_for_more_than_its_limits_let_it_have() -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic()
        await append(fakes, topic, 0, batch(b"v" * 200))
        request = request_for(topic, Ask(0, max_bytes=100), min_bytes=MIB, max_wait_ms=60_000)
        assert len(records(parts(await ask(fakes, request))[0])) > 200

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize("bounded", ["partition", "response"])
def test_it_does_not_wait_for_data_that_would_not_fit_anyway(bounded: str) -> None:
    """A reader that is behind, whose limits end within a batch: what else comes is not for this answer."""

    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic(partitions=2)
        one = batch(b"v" * 600)
        for partition in (0, 0, 1):
            await append(fakes, topic, partition, one)
        if bounded == "partition":
            request = request_for(topic, Ask(0, max_bytes=1000), min_bytes=1000, max_wait_ms=60_000)
        else:
            asks = Ask(0, 1), Ask(1)
            request = request_for(topic, *asks, max_bytes=1000, min_bytes=1000, max_wait_ms=60_000)
        found = parts(await ask(fakes, request))
        assert len(records(found[0])) == len(one)

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_a_session_answers_only_news() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=4)
        await append(fakes, topic, 1, batch(b"a"))
        full = await ask(fakes, request_for(topic, *(Ask(n) for n in range(3)), session=(0, 0)))
        assert sorted(parts(full)) == [0, 1, 2]
        id = full.session_id
        assert id > 0
        news = await ask(fakes, request_for(topic, Ask(1, 1), session=(id, 1)))
        assert (news.session_id, news.responses) == (id, ())
        await append(fakes, topic, 2, batch(b"b"))
        await append(fakes, topic, 3, batch(b"c"))
        news = await ask(fakes, request_for(None, session=(id, 2)))
        assert sorted(parts(news)) == [2]
        news = await ask(fakes, request_for(topic, Ask(2, 1), Ask(3), forget=[0], session=(id, 3)))
        assert sorted(parts(news)) == [3]  # one that joins is always told about
        await append(fakes, topic, 0, batch(b"d"))
        await fakes.store.truncate({topic.queue_id(1): 1})
        news = await ask(fakes, request_for(topic, Ask(3, 1), session=(id, 4)))
        assert sorted(parts(news)) == [1]  # its log start moved; 0 is forgotten
        assert parts(news)[1].log_start_offset == 1

    asyncio.run(scenario())


def test_a_sessions_errors_are_repeated_and_their_end_is_told() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        fakes.store.led_elsewhere.add(topic.queue_id(0))
        id = (await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))).session_id
        for epoch in (1, 2):
            found = parts(await ask(fakes, request_for(None, session=(id, epoch))))
            assert found[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        fakes.store.led_elsewhere.clear()
        assert parts(await ask(fakes, request_for(None, session=(id, 3))))[0].error_code == ErrorCode.NONE
        assert parts(await ask(fakes, request_for(None, session=(id, 4)))) == {}

    asyncio.run(scenario())


def test_sessions_are_refused_by_id_epoch_and_kind() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        unknown = await ask(fakes, request_for(None, session=(77, 1)))
        assert (unknown.error_code, unknown.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
        id = (await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))).session_id
        wrong = await ask(fakes, request_for(None, session=(id, 5)))
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        mixed = await ask(fakes, request_for(None, session=(id, 1)), 13)
        assert mixed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert (await ask(fakes, request_for(None, session=(id, 1)))).error_code == ErrorCode.NONE

    asyncio.run(scenario())


def test_sessions_end_by_final_epoch_by_a_new_start_and_when_nothing_is_left() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        sessions = fakes.broker.fetch_sessions
        first = (await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))).session_id
        second = (await ask(fakes, request_for(topic, Ask(0), session=(first, 0)))).session_id
        assert first != second
        assert len(sessions) == 1
        final = await ask(fakes, request_for(topic, Ask(0), session=(second, -1)))
        assert (final.session_id, sorted(parts(final))) == (0, [0])
        assert len(sessions) == 0
        third = (await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))).session_id
        emptied = await ask(fakes, request_for(topic, forget=[0], session=(third, 1)))
        assert (emptied.session_id, len(sessions)) == (0, 0)

    asyncio.run(scenario())


def test_without_room_for_a_session_a_fetch_is_answered_in_full() -> None:
    async def scenario() -> None:
        fakes = make_broker(config=BrokerConfig(fetch_sessions_max=0))
        topic = await fakes.topic()
        response = await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))
        assert (response.session_id, sorted(parts(response))) == (0, [0])

    asyncio.run(scenario())


def test_partitions_of_a_session_take_turns_when_a_response_is_full() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=3)
        one = batch(b"v" * 900)
        for partition in range(3):
            for _ in range(4):
                await append(fakes, topic, partition, one)
        small = len(one)
        first = await ask(fakes, request_for(topic, *(Ask(n) for n in range(3)), session=(0, 0), max_bytes=small))
        offsets = {0: 0, 1: 0, 2: 0}
        served = []
        moved: list[Ask] = []
        response = first
        for epoch in range(1, 10):
            for partition, part in parts(response).items():
                if records(part):
                    served.append(partition)
                    offsets[partition] += 1
                    moved = [Ask(partition, offsets[partition])]
            request = request_for(topic, *moved, session=(first.session_id, epoch), max_bytes=small)
            response = await ask(fakes, request)
        assert sorted(served) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert all(sorted(served[n : n + 3]) == [0, 1, 2] for n in (0, 3, 6))

    asyncio.run(scenario())


async def nine_batches(cold: tuple[int, ...]) -> tuple[Fakes, Topic, bytes]:
    """A broker whose store has three of the same batch in each of three partitions, of which memory lacks those that
    are `cold`; the topic, and the batch."""
    fakes = make_broker()
    topic = await fakes.topic(partitions=3)
    one = batch(b"v" * 900)
    for partition in range(3):
        for _ in range(3):
            await append(fakes, topic, partition, one)
    fakes.store.cold.update(topic.queue_id(partition) for partition in cold)
    return fakes, topic, one


@pytest.mark.parametrize("cold", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_limits_hold_over_partitions_that_memory_does_not_have(cold: tuple[int, ...]) -> None:
    """The disks are asked for as much as the partitions before left of the limits, wherever those came from."""

    async def scenario() -> None:
        fakes, topic, one = await nine_batches(cold)

        async def counts(*asks: Ask, max_bytes: int) -> list[int]:
            found = parts(await ask(fakes, request_for(topic, *asks, max_bytes=max_bytes)))
            return [len(records(found[n])) // len(one) for n in range(3)]

        asks = [Ask(0), Ask(1, 2), Ask(2)]
        assert await counts(*asks, max_bytes=50 * MIB) == [3, 1, 3]
        assert await counts(*asks, max_bytes=5 * len(one)) == [3, 1, 1]
        assert await counts(*asks, max_bytes=len(one) // 2) == [1, 0, 0]
        assert await counts(Ask(0, 3), Ask(1, 2), Ask(2), max_bytes=len(one) // 2) == [0, 1, 0]
        assert {read.queue_id for reads, _ in fakes.store.reads for read in reads} <= fakes.store.cold

    asyncio.run(scenario())


@pytest.mark.parametrize("cold", [(), (0,), (1,), (0, 1, 2)])
def test_what_a_client_has_taken_bounds_what_memory_answers_and_not_what_disks_do(
    cold: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of the past that are given little by little would go through the disk once for each of them, and out of
    step with one another."""

    async def scenario() -> None:
        fakes, topic, one = await nine_batches(cold)
        credit = 4 * len(one)
        monkeypatch.setattr(SESSION, "response_bytes_max", lambda: credit)
        least = 0 if cold else MIB  # which it does not wait for: there is more than it has room for
        asked = request_for(topic, Ask(0), Ask(1), Ask(2), min_bytes=least, max_wait_ms=30_000)
        found = parts(await ask(fakes, asked))
        whole = [len(records(found[n])) // len(one) for n in range(3)]
        assert whole == ([3, 3, 3] if cold else [3, 1, 0])
        if not cold:
            credit = 1  # nothing is left of it, and still the reader gets on
            found = parts(await ask(fakes, request_for(topic, Ask(0), Ask(1), Ask(2))))
            assert [len(records(found[n])) // len(one) for n in range(3)] == [1, 0, 0]

    asyncio.run(scenario())


class HeldStore:
    """A store on whose disks the tasks named `flood` read once `held` is set."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.held = asyncio.Event()
        self.begun = Counter[str]()
        """Reads, by the name of the task."""
        self.read_at_once, self.wait, self.append = store.read_at_once, store.wait, store.append
        self.offsets, self.offset_for_timestamp = store.offsets, store.offset_for_timestamp

    async def read(
        self, reads: Sequence[QueueRead] | ReadPlan, bytes_max: int, *, whole_first: bool = True
    ) -> list[QueueSlice]:
        task = asyncio.current_task()
        assert task is not None
        self.begun[task.get_name()] += 1
        if task.get_name() == "flood":
            await self.held.wait()
        return await self._store.read(reads, bytes_max, whole_first=whole_first)


def test_a_tenant_reads_disks_beside_another_that_has_many_reads_waiting() -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic(partitions=1)
        await append(fakes, topic, 0, batch(b"a"))
        fakes.store.cold.add(topic.queue_id(0))
        store = HeldStore(fakes.store)
        fakes.broker.store = store
        tenants = TenantTable()
        for name in ("flood", "quiet"):
            tenants.set(Tenant(name, f"{name}.", users=(name,)))
        fakes.broker.throttling = Throttling(QuotaTable, LoopClock(), lambda: tenants)

        def fetching(tenant: str) -> asyncio.Task[object]:
            session = Session("127.0.0.1", 1, 1, principal=f"User:{tenant}")
            return asyncio.create_task(ask(fakes, request_for(topic, Ask(0)), session=session), name=tenant)

        flood = [fetching("flood") for _ in range(2 * READS_TOGETHER_MAX + 1)]
        found = await fetching("quiet")
        assert store.begun == {"flood": READS_TOGETHER_MAX, "quiet": 1}
        given_up = flood.pop()
        given_up.cancel()
        store.held.set()
        assert await asyncio.gather(*flood) == [found] * len(flood)
        assert store.begun["flood"] == 2 * READS_TOGETHER_MAX
        assert not fakes.broker.read_turns

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_a_cold_reader_waits_like_any_other() -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic(partitions=2)
        fakes.store.cold.add(topic.queue_id(1))
        size = len(batch(b"a"))
        asking = asyncio.ensure_future(
            ask(fakes, request_for(topic, Ask(0), Ask(1), min_bytes=2 * size, max_wait_ms=30_000))
        )
        for partition in range(2):
            while not fakes.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert not asking.done()
            await append(fakes, topic, partition, batch(b"a"))
        found = parts(await asking)
        assert [len(records(found[n])) for n in range(2)] == [size, size]
        assert fakes.store.waiting == 0

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize("cold", [False, True])
def test_a_request_of_a_session_that_moved_on_is_refused_and_the_later_one_answered(cold: bool) -> None:
    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic()
        id = (await ask(fakes, request_for(topic, Ask(0), session=(0, 0)))).session_id
        if cold:
            fakes.store.cold.add(topic.queue_id(0))
        poll = request_for(None, session=(id, 1), min_bytes=1, max_wait_ms=30_000)
        overtaken = asyncio.ensure_future(ask(fakes, poll))
        while not fakes.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        later = asyncio.ensure_future(ask(fakes, request_for(None, session=(id, 2), min_bytes=1, max_wait_ms=30_000)))
        while fakes.store.waiting < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await append(fakes, topic, 0, batch(b"a"))
        refused = await overtaken
        assert (refused.error_code, refused.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, ())
        assert len(records(parts(await later)[0])) == len(batch(b"a"))

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


def test_every_round_finds_the_topic_that_has_the_name_then() -> None:

    async def scenario() -> None:
        fakes = make_broker(LoopClock())
        topic = await fakes.topic("t")
        asking = asyncio.ensure_future(ask(fakes, request_for("t", Ask(0), min_bytes=1, max_wait_ms=200)))
        while not fakes.store.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await fakes.metadata.delete_topics(["t"])
        await fakes.store.delete([topic.number])
        again = await fakes.topic("t")
        await append(fakes, again, 0, batch(b"new"))
        assert records(parts(await asking)[0])[16:] == batch(b"new")[16:]

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_SECONDS))


@pytest.mark.parametrize("version", [11, 12, 13, 16, 18])
def test_who_asks_the_wrong_node_is_told_the_right_one(version: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        fakes.metadata.nodes_known[:] = [Node(node_id=n, host=f"h{n}", port=9000 + n) for n in (1, 2)]
        fakes.store.leader_epoch = 5
        topic = await fakes.topic(partitions=3)
        await append(fakes, topic, 0, batch(b"a"))
        fakes.metadata.leaders[topic.queue_id(1)] = 2
        fakes.store.led_elsewhere.add(topic.queue_id(1))
        asks = [Ask(0), Ask(1), Ask(2, leader_epoch=4)]
        key = topic.topic_id if version >= 13 else topic
        response = await ask(fakes, request_for(key, *asks), version)
        found = parts(response)
        assert [found[n].error_code for n in range(3)] == [
            ErrorCode.NONE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ]
        assert len(records(found[0])) == len(batch(b"a"))
        leaders = [found[n].current_leader for n in range(3)]
        known = [(leader.leader_id, leader.leader_epoch) for leader in leaders]
        assert known == ([(-1, -1), (2, 5), (1, 5)] if version >= 12 else [(-1, -1)] * 3)
        endpoints = [(node.node_id, node.host, node.port) for node in response.node_endpoints]
        assert endpoints == ([(2, "h2", 9002), (1, "h1", 9001)] if version >= 16 else [])

    asyncio.run(scenario())


def test_a_long_poll_ends_when_the_leadership_is_lost() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        request = request_for(topic, Ask(0), Ask(1), min_bytes=1, max_wait_ms=60_000)
        polling = asyncio.ensure_future(ask(fakes, request))
        await asyncio.sleep(0)
        assert fakes.store.waiting == 1
        fakes.store.lose(topic.queue_id(1))
        found = parts(await polling)
        assert [found[n].error_code for n in range(2)] == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]

    asyncio.run(scenario())


def test_readers_of_the_present_epoch_are_answered_within_their_dispatch() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        for partition in range(2):
            await append(fakes, topic, partition, batch(b"a"))
        fakes.store.leader_epoch = 2
        await append(fakes, topic, 0, batch(b"b"))

        def begun(*asks: Ask) -> object:
            body = codec.write(request_for(topic, *asks), VERSION)
            return fetch.begin(fakes.broker, memoryview(b"head" + body), 4, call(VERSION))

        present, earlier = Ask(0, 1, last_fetched_epoch=2), Ask(1, 1, last_fetched_epoch=0)
        assert isinstance(begun(present), EncodedFrame)
        assert not isinstance(begun(earlier), EncodedFrame), "the end of its epoch is looked for"
        assert not isinstance(begun(present, earlier), EncodedFrame)
        assert not isinstance(begun(Ask(0, 3, last_fetched_epoch=2)), EncodedFrame), "it is beyond the end"
        fakes.store.led_elsewhere.add(topic.queue_id(1))
        assert isinstance(begun(earlier), EncodedFrame), "it is sent to the leader"

    asyncio.run(scenario())


def test_histories_are_compared_by_leaders_alone() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        fakes.store.leader_epoch = 5
        topic = await fakes.topic()
        fakes.store.led_elsewhere.add(topic.queue_id(0))
        response = await ask(fakes, request_for(topic, Ask(0, 7, last_fetched_epoch=3)), 12)
        found = parts(response)[0]
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert found.diverging_epoch.epoch == -1

    asyncio.run(scenario())
