"""Producing to compacted topics: what takes long to be looked into is looked into beside the event loop, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from tests.broker.admin.admin_broker import versions_of
from tests.broker.harness import Fakes, Serving, make_broker, serving
from tests.broker.test_produce import request_for
from tests.harness.crafted_batches import KEYED_RECORD, KEYLESS_RECORD, crafted_batch

from mainstem.broker.record_errors import NAMED_FROM
from mainstem.broker.topics.key_checks import AT_ONCE_BYTES, KeyChecks, KeyRefusal
from mainstem.kernel import Verdict
from mainstem.model import Outcome
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.messages.produce import ProduceRequest, ProduceResponse
from mainstem.protocol.records import Compression, NewRecord, build_batch
from mainstem.protocol.records.lookup import KEYLESS_NAMED_MAX, keyless_records

T = TypeVar("T")

SOUND_AND_LARGE = crafted_batch(KEYED_RECORD, 200_000)
SOUND_AND_SMALL = crafted_batch(KEYED_RECORD, 10)
KEYLESS_AND_LARGE = crafted_batch(KEYLESS_RECORD, 200_000)
TOO_LARGE = crafted_batch(KEYED_RECORD, 2_000_000)


class HeldWork:
    """`SideWork` that a test lets go on."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self, work: Callable[[], T]) -> T:
        self.asked.set()
        await self.go_on.wait()
        return work()


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [(SOUND_AND_LARGE, None), (KEYLESS_AND_LARGE, Verdict.KEYLESS), (TOO_LARGE, Verdict.UNREADABLE)],
)
def test_a_bomb_is_not_inflated_within_the_loop(batch: bytes, verdict: Verdict | None) -> None:
    async def story() -> None:
        checks = KeyChecks()
        asked = [(7, memoryview(batch))]
        assert checks.at_once(asked, inflate=True) is None
        assert await checks.beside_the_loop(asked) == ([] if verdict is None else [KeyRefusal(7, verdict)])
        assert checks.beside == 1

    asyncio.run(story())


def test_a_request_has_so_much_to_be_looked_into_at_once() -> None:
    small = [(number, memoryview(SOUND_AND_SMALL)) for number in range(3)]
    assert KeyChecks().at_once(small, inflate=True) == []
    assert KeyChecks().at_once(small, inflate=False) is None, "in a burst nothing is inflated"
    record = NewRecord(1, b"k", bytes(AT_ONCE_BYTES // 4))
    plain = [(number, memoryview(build_batch([record]).data)) for number in range(4)]
    assert KeyChecks().at_once(plain[:3], inflate=False) == []
    assert KeyChecks().at_once(plain, inflate=False) is None
    half = build_batch([NewRecord(1, b"k", bytes(AT_ONCE_BYTES // 2))], compression=Compression.ZSTD)
    inflated = [(number, memoryview(half.data)) for number in range(2)]
    assert KeyChecks().at_once(inflated[:1], inflate=True) == []
    assert KeyChecks().at_once(inflated, inflate=True) is None


async def _compacted(serving: Fakes) -> None:
    await serving.topic(cleanup_policy="compact")


def test_what_follows_on_the_connection_waits_so_that_batches_keep_their_order() -> None:
    async def story(node: Serving) -> None:
        await _compacted(node)
        work = HeldWork()
        node.broker.key_checks = KeyChecks(work)
        first, other = await node.connect(), await node.connect()
        for batch in (SOUND_AND_LARGE, SOUND_AND_SMALL):
            await first.request(request_for("t", batch), 9)
        await work.asked.wait()
        answered = await other.call(request_for("t", SOUND_AND_SMALL), 9)
        assert _base_offset(answered) == 0, "who comes by another connection does not wait"
        assert sum(len(queue.batches) for queue in node.store.queues.values()) == 1
        work.go_on.set()
        assert [_base_offset(await first.response(0, 9)) for _ in range(2)] == [10, 10 + 200_000]

    async def run() -> None:
        async with serving() as node:
            await story(node)

    asyncio.run(run())


def test_a_keyless_record_in_a_bomb_is_refused() -> None:
    async def run() -> None:
        async with serving() as node:
            await _compacted(node)
            client = await node.connect()
            for batch in (KEYLESS_AND_LARGE, TOO_LARGE):
                answer = await client.call(request_for("t", batch), 9)
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
            assert node.broker.key_checks.beside == 2
            assert all(not queue.batches for queue in node.store.queues.values())

    asyncio.run(run())


@pytest.mark.parametrize("late", [False, True])
def test_behind_a_batch_that_waited_and_finds_no_room_nothing_of_its_pipeline_is_appended(late: bool) -> None:
    """As where nothing is looked into: a producer that numbers nothing would be overtaken by its own batches, however
    late the store says that it has no room."""

    async def story(node: Serving) -> None:
        await _compacted(node)
        work = HeldWork()
        node.broker.key_checks = KeyChecks(work)
        client = await node.connect()
        for batch in (SOUND_AND_LARGE, SOUND_AND_SMALL):
            await client.request(request_for("t", batch), 9)
        await work.asked.wait()
        node.store.refuse = Outcome.STORAGE_BUSY
        held = len(node.store.appended_acks)
        if late:
            node.store.hold()
        work.go_on.set()
        while len(node.store.appended_acks) == held:  # noqa: ASYNC110
            await asyncio.sleep(0)
        node.store.refuse = None  # at once: what comes behind it would be taken
        if late:
            node.store.release()
        refused = (await client.response(0, 9)).responses[0].partition_responses[0]
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.response(0, 9)
        assert all(not queue.batches for queue in node.store.queues.values())

    async def run() -> None:
        async with serving() as node:
            await story(node)

    asyncio.run(run())


def test_a_topic_that_comes_to_be_compacted_while_another_is_looked_into_is_looked_into_as_well() -> None:
    async def story(node: Serving) -> None:
        await _compacted(node)
        await node.topic("u")
        work = HeldWork()
        node.broker.key_checks = KeyChecks(work)
        client = await node.connect()
        asked = request_for("t", SOUND_AND_LARGE)
        asked = replace(asked, topic_data=asked.topic_data + request_for("u", KEYLESS_AND_LARGE).topic_data)
        await client.request(asked, 9)
        await work.asked.wait()
        await node.metadata.alter_configs("u", {"cleanup.policy": "compact"})
        work.go_on.set()
        answered = await client.response(0, 9)
        codes = {topic.name: topic.partition_responses[0].error_code for topic in answered.responses}
        assert codes == {"t": ErrorCode.NONE, "u": ErrorCode.INVALID_RECORD}

    async def run() -> None:
        async with serving() as node:
            await story(node)

    asyncio.run(run())


MIXED = [NewRecord(1, b"k", b"0"), NewRecord(1, None, b"1"), NewRecord(1, b"", b"2"), NewRecord(1, None, b"3")]


@pytest.mark.parametrize("version", versions_of(ProduceRequest))
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_the_answer_names_the_records_without_a_key(version: int, compression: Compression) -> None:
    """Of requests that come alone, and of some that come together; the other batches are taken."""

    async def run() -> None:
        async with serving() as node:
            await node.topic(partitions=3, cleanup_policy="compact")
            topic = node.metadata.topic("t")
            assert topic is not None
            mixed, sound = (bytes(build_batch(records, compression=compression).data) for records in (MIXED, MIXED[:1]))
            asked = request_for(topic.topic_id if version >= 13 else "t", sound, mixed, sound)
            client = await node.connect()
            for _ in range(3):
                await client.request(asked, version)
            for answered in [await client.response(0, version) for _ in range(3)]:
                (first, refused, last) = answered.responses[0].partition_responses
                assert (first.error_code, last.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
                assert first.record_errors == last.record_errors == ()
                assert refused.error_code == ErrorCode.INVALID_RECORD
                named = [(it.batch_index, it.batch_index_error_message) for it in refused.record_errors]
                message = "a compacted topic takes no record without a key"
                assert named == ([(1, message), (3, message)] if version >= NAMED_FROM else [])
            assert [len(queue.batches) for queue in node.store.queues.values()] == [3, 0, 3]

    asyncio.run(run())


def test_so_many_records_are_named_and_no_more() -> None:
    keyless = [NewRecord(1, None if number % 2 else b"k", b"") for number in range(3 * KEYLESS_NAMED_MAX)]
    named = keyless_records(build_batch(keyless).data)
    assert named == tuple(range(1, 2 * KEYLESS_NAMED_MAX, 2))
    assert keyless_records(KEYLESS_AND_LARGE) == (), "it has too many to be looked into one by one"
    assert keyless_records(crafted_batch(KEYLESS_RECORD, 2)) == (), "two records of one offset"
    assert keyless_records(build_batch(keyless).data[:-1]) == ()


def _base_offset(response: ProduceResponse | Any) -> int:
    partition = response.responses[0].partition_responses[0]
    assert partition.error_code == ErrorCode.NONE
    return int(partition.base_offset)


def test_a_broker_without_a_thread_checks_all_the_same() -> None:
    assert make_broker().broker.key_checks.at_once([], inflate=True) == []
