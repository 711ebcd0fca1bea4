"""Produce, from a request's bytes to what the store got and the client is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import google_crc32c
import pytest
from tests.broker.harness import Fakes, batch, call, make_broker, serving
from tests.fakes.memory_store import MemoryStore

from mainstem.broker.broker import Broker
from mainstem.broker.errors import ERROR_OF_OUTCOME, UnanswerableRequest
from mainstem.broker.handlers import produce
from mainstem.broker.handlers.produce import StartedProduce
from mainstem.broker.request_context import RequestContext
from mainstem.broker.started import EncodedFrame
from mainstem.broker.topics.known_topics import ProduceTopics
from mainstem.kernel import MalformedProduce, ProduceScan, Verdict
from mainstem.kernel.pure.producer_states import PATIENCE
from mainstem.model import AppendTransaction, BatchAppend, Node, Outcome, QueueRange, Topic
from mainstem.ports import joined
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import parse_response_header
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.records import Compression, NewRecord, StoredBatch, build_batch, read_records

CORRELATION_ID = 2_000_000_007


def request_for(
    topic: Topic | str | UUID, *records: bytes, acks: int = -1, transactional_id: str | None = None
) -> ProduceRequest:
    name = topic.name if isinstance(topic, Topic) else topic
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=(
            TopicProduceData(
                name=name if isinstance(name, str) else "",
                topic_id=name if isinstance(name, UUID) else UUID(int=0),
                partition_data=tuple(
                    PartitionProduceData(index=index, records=data) for index, data in enumerate(records)
                ),
            ),
        ),
    )


def asking(version: int) -> RequestContext:
    return call(version)._replace(correlation_id=CORRELATION_ID)


def started_at_once(broker: Broker, body: memoryview, call: RequestContext) -> StartedProduce:
    """A request that needs no look into its records."""
    started = produce.start(broker, body, 0, call)
    assert isinstance(started, StartedProduce)
    return started


async def send(fakes: Fakes, request: ProduceRequest, version: int = 9) -> ProduceResponse | None:
    buffer = bytearray(codec.write(request, version))
    with memoryview(buffer) as asked:  # as the server does: nobody may keep it
        started = started_at_once(fakes.broker, asked, asking(version))
    buffer[:] = bytes(len(buffer))  # the frame's buffer is reused as soon as dispatch returns
    if started.future is not None:
        await started.future
    frame = started.finish()
    if frame is None:
        return None
    return response_in(frame, version)


def response_in(frame: EncodedFrame, version: int) -> ProduceResponse:
    (buffer,) = (joined([part]) for part in frame.buffers)
    assert int.from_bytes(buffer[:4], "big") == len(buffer) - 4
    correlation_id, position = parse_response_header(buffer[4:], 0, version)
    assert correlation_id == CORRELATION_ID
    response = codec.read(ProduceResponse, version, buffer[4:], position)
    failures = [part.error_code for topic in response.responses for part in topic.partition_responses]
    assert frame.errors == Counter(code for code in failures if code)
    return response


async def answers(fakes: Fakes, request: ProduceRequest, version: int = 9) -> list[PartitionProduceResponse]:
    response = await send(fakes, request, version)
    assert response is not None
    (topic,) = response.responses
    return list(topic.partition_responses)


async def error(fakes: Fakes, request: ProduceRequest, version: int = 9) -> ErrorCode:
    (answer,) = await answers(fakes, request, version)
    if answer.error_code:
        assert answer.base_offset == -1
    return ErrorCode._value2member_map_[answer.error_code]  # type: ignore[return-value]


def test_batches_are_appended_as_sent_and_answered_with_their_offsets() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        for turn in range(2):
            found = await answers(fakes, request_for(topic, batch(b"a", b"b"), batch(b"c")))
            assert [(part.index, part.error_code, part.base_offset) for part in found] == [
                (0, 0, 2 * turn),
                (1, 0, turn),
            ]
        stored = fakes.store.queues[topic.queue_id(0)].batches
        assert [entry.data[16:] for entry in stored] == [batch(b"a", b"b")[16:]] * 2
        assert fakes.store.appended_acks == [-1, -1]

    asyncio.run(scenario())


def test_topics_are_found_by_id_from_version_13() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        assert await error(fakes, request_for(topic.topic_id, batch(b"a")), 13) == ErrorCode.NONE
        assert await error(fakes, request_for(UUID(int=9), batch(b"a")), 13) == ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(scenario())


def test_the_append_happens_during_dispatch_and_the_answer_waits_for_the_commit() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        fakes.store.hold()
        body = memoryview(codec.write(request_for(topic, batch(b"a")), 9))
        started = started_at_once(fakes.broker, body, call(9))
        assert fakes.store.queues[topic.queue_id(0)].end == 1
        assert started.future is not None
        assert not started.future.done()
        fakes.store.release()
        await started.future
        response = started.finish()
        assert response is not None

    asyncio.run(scenario())


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_acks_that_do_not_exist_are_refused(acks: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        assert await error(fakes, request_for(topic, batch(b"a"), acks=acks)) == ErrorCode.INVALID_REQUIRED_ACKS
        assert fakes.store.appended_acks == []

    asyncio.run(scenario())


def test_acks_0_is_not_answered_and_a_failure_closes_the_connection() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        assert await send(fakes, request_for(topic, batch(b"a"), acks=0)) is None
        assert fakes.store.queues[topic.queue_id(0)].end == 1
        with pytest.raises(UnanswerableRequest, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await send(fakes, request_for("other", batch(b"a"), acks=0))
        fakes.store.refuse = Outcome.STORAGE_BUSY
        with pytest.raises(UnanswerableRequest, match="NOT_ENOUGH_REPLICAS"):
            await send(fakes, request_for(topic, batch(b"a"), acks=0))

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_has_a_kafka_error(outcome: Outcome) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        fakes.store.refuse = None if outcome is Outcome.OK else outcome
        assert await error(fakes, request_for(topic, batch(b"a"))) == ERROR_OF_OUTCOME[outcome]

    asyncio.run(scenario())


def test_what_is_wrong_with_one_partition_leaves_the_others_alone() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=3)
        fakes.store.led_elsewhere.add(topic.queue_id(2))
        broken = batch(b"a")[:-1] + b"?"
        found = await answers(fakes, request_for(topic, batch(b"a"), broken, batch(b"a"), batch(b"a")))
        assert [part.error_code for part in found] == [
            ErrorCode.NONE,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert all(part.error_message for part in found[1:])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("records", "version", "expected"),
    [
        (b"", 9, ErrorCode.INVALID_RECORD),
        (bytes(16) + b"\x01" + bytes(40), 9, ErrorCode.INVALID_RECORD),
        (batch(b"a") * 2, 9, ErrorCode.INVALID_RECORD),
        (batch(b"v" * 2000), 9, ErrorCode.MESSAGE_TOO_LARGE),
        (
            bytes(build_batch([NewRecord(1, None, b"v")], compression=Compression.ZSTD).data),
            6,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ),
        (bytes(build_batch([NewRecord(1, None, b"v")], compression=Compression.ZSTD).data), 7, ErrorCode.NONE),
        (
            bytes(build_batch([NewRecord(1, None, b"v")], transactional=True).data),
            9,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_records_that_break_a_rule_get_kafkas_error(records: bytes, version: int, expected: ErrorCode) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(max_message_bytes="1000")
        assert await error(fakes, request_for(topic, records), version) == expected

    asyncio.run(scenario())


def test_internal_topics_and_transactions_without_an_id_are_refused() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        internal = await fakes.metadata.create_topic("__inside", 1, 1, {}, internal=True)
        assert await error(fakes, request_for(internal, batch(b"a"))) == ErrorCode.INVALID_TOPIC_EXCEPTION
        new = build_batch(
            [NewRecord(1, None, b"v")], transactional=True, producer_id=1, producer_epoch=0, base_sequence=0
        )
        records = bytes(new.data)
        request = request_for(topic, records, transactional_id="")
        assert await error(fakes, request) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert fakes.store.appended_acks == []

    asyncio.run(scenario())


def test_compacted_topics_need_keys() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(cleanup_policy="compact")
        assert await error(fakes, request_for(topic, batch(b"a", key=b"k"))) == ErrorCode.NONE
        assert await error(fakes, request_for(topic, batch(b"a"))) == ErrorCode.INVALID_RECORD
        packed = build_batch([NewRecord(1, None, b"v" * 500)], compression=Compression.GZIP)
        assert await error(fakes, request_for(topic, bytes(packed.data))) == ErrorCode.INVALID_RECORD

    asyncio.run(scenario())


def test_log_append_time_is_the_stores_to_set_and_not_the_producers() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("stamped", message_timestamp_type="LogAppendTime")
        (answer,) = await answers(fakes, request_for(topic, batch(b"a")))
        assert answer.log_append_time_ms == fakes.broker.clock.now_ms()
        (stored,) = fakes.store.queues[topic.queue_id(0)].batches
        (record,) = read_records(StoredBatch.parse(stored.data))
        assert record.timestamp == fakes.broker.clock.now_ms()
        plain = await fakes.topic("plain")
        assert await error(fakes, request_for(plain, stored_as_new(stored.data))) == ErrorCode.INVALID_TIMESTAMP

    asyncio.run(scenario())


def stored_as_new(data: bytes) -> bytes:
    return bytes(8) + data[8:]


def test_idempotent_producers_get_the_first_offset_for_a_duplicate() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()

        def numbered(sequence: int) -> bytes:
            record = NewRecord(1, None, b"v")
            return bytes(build_batch([record], producer_id=3, producer_epoch=0, base_sequence=sequence).data)

        for sequence, offset in ((0, 0), (1, 1), (0, 0)):
            (answer,) = await answers(fakes, request_for(topic, numbered(sequence)))
            assert (answer.error_code, answer.base_offset) == (0, offset)
        for _ in range(PATIENCE):
            (answer,) = await answers(fakes, request_for(topic, numbered(5)))
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert "have not arrived; send again" in (answer.error_message or "")
        assert await error(fakes, request_for(topic, numbered(5))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    asyncio.run(scenario())


def test_behind_a_batch_that_is_refused_for_want_of_disk_nothing_of_its_pipeline_is_appended() -> None:
    """The disk has room again at once: the producer, which numbers nothing, would be overtaken by its own batches."""

    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic()
            client = await node.connect()
            await client.call(request_for(topic, batch(b"first")), 9)
            node.store.refuse = Outcome.STORAGE_BUSY
            await client.request(request_for(topic, batch(b"refused")), 9)
            while node.server.counters.requests < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            node.store.refuse = None
            with contextlib.suppress(ConnectionError):
                await client.request(request_for(topic, batch(b"behind")), 9)
            refused = await client.response(0, 9)
            assert refused.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.response(0, 9)
            assert node.store.queues[topic.queue_id(0)].end == 1
            again = await node.connect()
            await again.call(request_for(topic, batch(b"refused")), 9)
            assert node.store.queues[topic.queue_id(0)].end == 2

    asyncio.run(scenario())


def test_a_producer_that_numbers_its_batches_keeps_its_connection_when_one_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic()
            client = await node.connect()
            record = NewRecord(1, None, b"v")
            numbered = bytes(build_batch([record], producer_id=3, producer_epoch=0, base_sequence=0).data)
            node.store.refuse = Outcome.STORAGE_BUSY
            refused = await client.call(request_for(topic, numbered), 9)
            assert refused.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            node.store.refuse = None
            taken = await client.call(request_for(topic, numbered), 9)
            assert taken.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    asyncio.run(scenario())


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_is_answered(version: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        request = request_for(topic.topic_id if version >= 13 else topic, batch(b"a"))
        assert await error(fakes, request, version) == ErrorCode.NONE
        unknown = request_for(UUID(int=1) if version >= 13 else "unknown", batch(b"a"))
        assert await error(fakes, unknown, version) != ErrorCode.NONE

    asyncio.run(scenario())


def test_records_of_a_compacted_topic_that_cannot_be_read_are_refused() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=3, cleanup_policy="compact,delete")
        torn = bytearray(batch(b"a", key=b"k"))
        torn[61] = 0x7F  # the length of the first record
        torn[17:21] = google_crc32c.value(bytes(torn[21:])).to_bytes(4, "big")
        good = batch(b"a", key=b"k")
        found = await answers(fakes, request_for(topic, good, bytes(torn), good))
        assert [(part.error_code, part.base_offset) for part in found] == [
            (ErrorCode.NONE, 0),
            (ErrorCode.INVALID_RECORD, -1),
            (ErrorCode.NONE, 0),
        ]
        assert found[1].error_message
        await fakes.metadata.alter_configs(topic.name, {"cleanup.policy": "delete"})
        assert await error(fakes, request_for(topic, bytes(torn))) == ErrorCode.NONE

    asyncio.run(scenario())


def test_a_store_may_write_its_results_into_the_scan() -> None:
    class KernelStore(MemoryStore):
        def append(
            self,
            batches: Sequence[BatchAppend],
            acks: int,
            *,
            copies_min: int | Mapping[int, int] = 0,
            owner_epoch: int | None = None,
            transaction: AppendTransaction | None = None,
        ) -> Any:
            assert isinstance(batches, ProduceScan)
            batches.settle(super().append(batches, acks, copies_min=copies_min).result())
            appended: PromptFuture[ProduceScan] = PromptFuture()
            appended.set_result(batches)
            return appended

    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=2)
        await fakes.topic("other")
        fakes.store.led_elsewhere.add(topic.queue_id(1))
        store = KernelStore(fakes.broker.clock)
        store.queues, store.led_elsewhere = fakes.store.queues, fakes.store.led_elsewhere
        fakes.broker.store = store
        found = await answers(fakes, request_for(topic, batch(b"a"), batch(b"a")))
        assert [(part.error_code, part.base_offset) for part in found] == [
            (ErrorCode.NONE, 0),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
        ]

    asyncio.run(scenario())


def test_what_a_topic_is_now_counts() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic(partitions=1)
        two = request_for(topic, batch(b"a"), batch(b"a"))
        by_id = request_for(topic.topic_id, batch(b"a"), batch(b"a"))

        async def errors() -> list[list[int]]:
            return [
                [part.error_code for part in await answers(fakes, request, version)]
                for request, version in ((two, 9), (by_id, 13))
            ]

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await errors() == [[0, unknown]] * 2
        await fakes.metadata.create_partitions(topic.name, 2)
        await fakes.store.create([QueueRange(topic.number, 1, 1)])
        assert await errors() == [[0, 0]] * 2
        await fakes.metadata.alter_configs(topic.name, {"max.message.bytes": "10"})
        assert await errors() == [[ErrorCode.MESSAGE_TOO_LARGE] * 2] * 2
        await fakes.metadata.delete_topics([topic.name])
        assert await errors() == [[unknown] * 2, [ErrorCode.UNKNOWN_TOPIC_ID] * 2]
        again = await fakes.topic(topic.name, partitions=2)
        assert again.number != topic.number
        assert await errors() == [[0, 0], [ErrorCode.UNKNOWN_TOPIC_ID] * 2]
        assert fakes.store.queues[again.queue_id(1)].end == 1

    asyncio.run(scenario())


def test_topics_are_described_once_and_not_kept_without_bound() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topics = ProduceTopics(fakes.metadata, topics_max=3)
        names = [f"topic-{number}".encode() for number in range(5)]
        for name in names:
            await fakes.topic(name.decode())
        first = topics.by_name(names[0])
        assert topics.by_name(names[0]) is first
        assert [topics.by_name(name).number for name in names] == [1, 2, 3, 4, 5]
        assert topics.by_name(names[4]) is topics.by_name(names[4])
        assert topics.by_name(names[0]) is not first
        assert topics.by_name(b"unknown").refusal == Verdict.UNKNOWN_TOPIC
        assert len(topics) == 3

    asyncio.run(scenario())


def test_a_name_that_is_no_text_is_malformed() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        body = codec.write(request_for("name", batch(b"a")), 9).replace(b"name", b"n\xffme")
        with pytest.raises(MalformedProduce, match="UTF-8"):
            produce.start(fakes.broker, memoryview(body), 0, asking(9))

    asyncio.run(scenario())


def cluster_of_three(fakes: Fakes) -> None:
    fakes.metadata.nodes_known[:] = [Node(node_id=n, host=f"h{n}", port=9000 + n, rack="r") for n in (1, 2, 3)]


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_who_asks_the_wrong_node_is_told_the_right_one(version: int) -> None:
    async def scenario() -> None:
        fakes = make_broker()
        cluster_of_three(fakes)
        fakes.store.leader_epoch = 5
        topic = await fakes.topic(partitions=4)
        for partition, leader in ((1, 2), (2, 3), (3, -1)):
            fakes.metadata.leaders[topic.queue_id(partition)] = leader
            fakes.store.led_elsewhere.add(topic.queue_id(partition))
        fakes.metadata.dead = {3}
        request = request_for(topic.topic_id if version >= 13 else topic, *[batch(b"a")] * 4)
        response = await send(fakes, request, version)
        assert response is not None
        (answered,) = response.responses
        assert (answered.topic_id, answered.name) == ((topic.topic_id, "") if version >= 13 else (UUID(int=0), "t"))
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        found = answered.partition_responses
        assert [part.error_code for part in found] == [ErrorCode.NONE, moved, moved, moved]
        assert (found[0].base_offset, found[1].base_offset) == (0, -1)
        assert found[1].error_message
        leaders = [(part.current_leader.leader_id, part.current_leader.leader_epoch) for part in found]
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        if version >= 10:
            assert leaders == [(-1, -1), (2, 5), (-1, -1), (-1, -1)], "the dead lead nothing"
            assert endpoints == [(2, "h2", 9002, "r")]
        else:
            assert leaders == [(-1, -1)] * 4
            assert endpoints == []

    asyncio.run(scenario())


def test_a_node_that_is_to_lead_but_does_not_serve_yet_sends_nobody_to_itself() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic()
        fakes.store.led_elsewhere.add(topic.queue_id(0))
        (answer,) = await answers(fakes, request_for(topic, batch(b"a")), 10)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == -1

    asyncio.run(scenario())


def test_a_topic_gets_as_many_copies_as_it_demands_or_no_batch() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        cluster_of_three(fakes)
        lax = await fakes.topic("lax")
        topic = await fakes.topic("t", partitions=3, min_insync_replicas="2")
        for partition in range(3):
            fakes.leadership.replica_nodes[topic.queue_id(partition)] = (1, 2, 3)
        fakes.leadership.replica_nodes[lax.queue_id(0)] = (1, 2, 3)
        three = request_for(topic, *[batch(b"a")] * 3)
        assert [part.error_code for part in await answers(fakes, three)] == [ErrorCode.NONE] * 3
        assert fakes.store.appended_copies_min == [2]
        fakes.leadership.out_of_sync[topic.queue_id(1)] = {2, 3}
        fakes.leadership.out_of_sync[topic.queue_id(2)] = {3}
        few = ErrorCode.NOT_ENOUGH_REPLICAS
        assert [part.error_code for part in await answers(fakes, three)] == [ErrorCode.NONE, few, ErrorCode.NONE]
        assert [fakes.store.queues[topic.queue_id(n)].end for n in range(3)] == [2, 1, 2]
        assert few.retriable
        assert await error(fakes, request_for(lax, batch(b"a"))) == ErrorCode.NONE
        for acks in (0, 1):
            await send(fakes, request_for(topic, batch(b"a"), batch(b"a"), acks=acks))
        assert fakes.store.queues[topic.queue_id(1)].end == 3, "who does not ask for all gets what there is"
        assert fakes.store.appended_copies_min == [2, 2, 0, 0, 0]

    asyncio.run(scenario())


def test_a_topic_gets_the_copies_it_demands_whatever_others_in_the_request_can_get() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        cluster_of_three(fakes)
        lax = await fakes.topic("lax")
        strict = await fakes.topic("strict", min_insync_replicas="3")
        for topic in (lax, strict):
            fakes.leadership.replica_nodes[topic.queue_id(0)] = (1, 2, 3)
        topics = tuple(part for topic in (lax, strict) for part in request_for(topic, batch(b"a")).topic_data)
        both = replace(request_for(lax), topic_data=topics)
        assert await send(fakes, both)
        fakes.leadership.out_of_sync[lax.queue_id(0)] = {3}
        response = await send(fakes, both)
        assert response is not None
        assert [answer.partition_responses[0].error_code for answer in response.responses] == [ErrorCode.NONE] * 2
        assert fakes.store.appended_copies_min == [3, {lax.queue_id(0): 1, strict.queue_id(0): 3}]

    asyncio.run(scenario())


def test_a_leader_elsewhere_is_told_before_replicas_are_counted() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t", partitions=2, min_insync_replicas="2")
        fakes.metadata.leaders[topic.queue_id(1)] = 2
        fakes.store.led_elsewhere.add(topic.queue_id(1))
        found = await answers(fakes, request_for(topic, batch(b"a"), batch(b"a")))
        assert [part.error_code for part in found] == [
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ]

    asyncio.run(scenario())
