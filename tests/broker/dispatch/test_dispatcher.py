"""The dispatcher behind a real server: what is served, what is refused, and what a fault leads to."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from tests.broker.harness import SESSION, batch, make_broker, serving
from tests.harness.patience import PATIENCE_SECONDS

from mainstem.bounded_log import LINES_AT_ONCE
from mainstem.broker.broker import Broker
from mainstem.broker.dispatch.dispatcher import BrokerDispatcher
from mainstem.broker.dispatch.failures import failure_response
from mainstem.broker.dispatch.routes import ROUTES, Route
from mainstem.broker.request_context import RequestContext
from mainstem.model import HistogramSample, Sample
from mainstem.prompt_future import PromptFuture
from mainstem.protocol import codec
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.error_codes import ErrorCode
from mainstem.protocol.headers import (
    RequestHeader,
    parse_response_header,
    request_frame,
    write_request_header,
)
from mainstem.protocol.messages import API_MESSAGES
from mainstem.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from mainstem.protocol.messages.describe_cluster import DescribeClusterRequest
from mainstem.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from mainstem.protocol.messages.group_administration import DescribeGroupsRequest, DescribeGroupsResponse
from mainstem.protocol.messages.group_membership import KEY_TYPE_GROUP, FindCoordinatorRequest
from mainstem.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from mainstem.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from mainstem.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from mainstem.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from mainstem.protocol.schema import ArrayKind, FixedKind, StructKind, declaration_of, string, uuid


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))


def produce(*records: bytes, acks: int = -1, name: str = "t") -> ProduceRequest:
    partitions = tuple(PartitionProduceData(index=n, records=data) for n, data in enumerate(records))
    topic = TopicProduceData(name=name, partition_data=partitions)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=(topic,))


def fetch(offset: int, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=(FetchTopic(topic="t", partitions=(partition,)),)
    )


def test_every_route_answers_within_what_is_declared_and_is_advertised_once() -> None:
    keys = [route.api.api_key for route in ROUTES]
    assert len(set(keys)) == len(keys)
    for route in ROUTES:
        assert sum(way is not None for way in (route.handle, route.start, route.begin)) == 1
        assert API_MESSAGES[route.api.api_key] is route.api


PRODUCE = 0
"""Listed from version 0 on, as by Kafka: without it librdkafka 2.4 compresses nothing but by zstd."""


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_the_routes(version: int) -> None:
    async def scenario() -> None:
        async with serving() as node:
            client = await node.connect()
            request = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
            response = await client.call(request, version)
            served = {(api.api_key, api.min_version, api.max_version) for api in response.api_keys}
            declared = {r.api.api_key: (r.api.version_min, r.api.version_max) for r in ROUTES}
            assert served == {(key, 0 if key == PRODUCE else first, last) for key, (first, last) in declared.items()}
            assert response.error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


def test_api_versions_from_the_future_are_answered_in_version_0() -> None:
    async def scenario() -> None:
        async with serving() as node:
            client = await node.connect()
            await client.send(request_frame(RequestHeader(18, 99, 5, "new"), b"\x00\x01\x02 whatever"))
            frame = await client.receive()
            assert frame[:4] == struct.pack(">i", 5)
            response = codec.read(ApiVersionsResponse, 0, frame, 4)
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert len(response.api_keys) == len(ROUTES)
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


def test_api_versions_of_nameless_software_is_invalid() -> None:
    async def scenario() -> None:
        async with serving() as node:
            client = await node.connect()
            request = ApiVersionsRequest(client_software_name="-", client_software_version="")
            response = await client.call(request, 3)
            assert response.error_code == ErrorCode.INVALID_REQUEST
            await client.close()

    run(scenario())


WAYS_SHOWN = [
    (MetadataRequest(topics=None), 12),
    (FindCoordinatorRequest(key_type=KEY_TYPE_GROUP, coordinator_keys=("g",)), 4),
    (DescribeClusterRequest(include_cluster_authorized_operations=False), 1),
    (DescribeTopicPartitionsRequest(topics=()), 0),
]


@pytest.mark.parametrize(("request_", "version"), WAYS_SHOWN, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize(("out_of_touch", "leaderless"), [(True, True), (True, False), (False, True)])
def test_a_node_that_is_cut_off_answers_where_to_go_once_and_hangs_up(
    request_: Any, version: int, out_of_touch: bool, leaderless: bool
) -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            node.metadata.out_of_touch, node.leadership.leaderless = out_of_touch, leaderless
            client = await node.connect()
            assert (await client.call(fetch(0), 12)).responses  # what shows no way ends nothing
            await client.call(request_, version)
            if out_of_touch and leaderless:
                assert await client.closed_by_server()
            else:
                await client.call(request_, version)
            await client.close()

    run(scenario())


def test_what_is_produced_is_fetched_over_the_wire() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            for count in range(3):
                response = await client.call(produce(batch(b"v" * 20_000)), 9)
                assert response.responses[0].partition_responses[0].base_offset == count
            size = len(batch(b"v" * 20_000))
            (topic,) = (await client.call(fetch(1), 12)).responses
            assert len(topic.partitions[0].records) == 2 * size
            assert bytes(topic.partitions[0].records)[16:size] == batch(b"v" * 20_000)[16:]
            await client.close()

    run(scenario())


def test_produce_requests_overlap_and_later_requests_wait_their_turn_to_answer() -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic("t")
            client = await node.connect()
            node.store.hold()
            for value in (b"a", b"b", b"c"):
                await client.request(produce(batch(value)), 9)
            await client.request(ApiVersionsRequest(), 0)
            queue = node.store.queues[topic.queue_id(0)]
            while queue.end < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert [entry.data[16:] for entry in queue.batches] == [batch(v)[16:] for v in (b"a", b"b", b"c")]
            node.store.release()
            for offset in range(3):
                response = await client.response(0, 9)
                assert response.responses[0].partition_responses[0].base_offset == offset
            assert (await client.response(18, 0)).error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


def test_what_comes_together_is_answered_in_order_whatever_it_is() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t", partitions=2)
            await node.topic("compacted", cleanup_policy="compact")
            client = await node.connect()
            good, keyed = batch(b"one", b"two"), batch(b"v", key=b"k")
            requests: list[tuple[Any, int]] = [
                (produce(good), 9),
                (produce(good, good), 9),
                (produce(b"junk", good), 9),
                (produce(good, name="nobody"), 9),
                (produce(good, acks=1), 9),
                (MetadataRequest(topics=None), 9),
                (produce(keyed, name="compacted"), 9),
                (produce(good, name="compacted"), 9),
                (produce(good, acks=5), 9),
                (produce(good), 7),
                (fetch(0), 11),
                (produce(good), 9),
            ]
            frames = []
            for number, (request, version) in enumerate(requests):
                key = declaration_of(type(request)).api_key
                assert key is not None
                header = RequestHeader(key, version, number, "raw")
                frames.append(request_frame(header, codec.write(request, version)))
            await client.send(b"".join(frames))
            answers: list[Any] = []
            for number, (request, version) in enumerate(requests):
                key = declaration_of(type(request)).api_key
                assert key is not None
                frame = await client.receive()
                correlation_id, position = parse_response_header(frame, key, version)
                assert correlation_id == number
                if key == 0:
                    response = codec.read(API_MESSAGES[0].response, version, frame, position)
                    (topic,) = response.responses
                    answers.append([(one.error_code, one.base_offset) for one in topic.partition_responses])
            assert answers == [
                [(ErrorCode.NONE, 0)],
                [(ErrorCode.NONE, 2), (ErrorCode.NONE, 0)],
                [(ErrorCode.CORRUPT_MESSAGE, -1), (ErrorCode.NONE, 2)],
                [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)],
                [(ErrorCode.NONE, 4)],
                [(ErrorCode.NONE, 0)],
                [(ErrorCode.INVALID_RECORD, -1)],
                [(ErrorCode.INVALID_REQUIRED_ACKS, -1)],
                [(ErrorCode.NONE, 6)],
                [(ErrorCode.NONE, 8)],
            ]
            of_produce = [sample for sample in node.dispatcher.samples() if ("api", "Produce") in sample.labels]
            (latency,) = (one for one in of_produce if one.name == "mainstem_request_seconds")
            assert isinstance(latency, HistogramSample)
            assert latency.counts[-1] == len(answers)
            await client.close()

    run(scenario())


def test_bytes_behind_a_request_are_ignored() -> None:
    """As librdkafka sends it: four bytes of array length where one is meant."""

    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            frame = write_request_header(RequestHeader(3, 13, 1, "rdkafka")) + bytes.fromhex("00000000010000")
            await client.send_frame(frame)
            content = await client.receive()
            position = parse_response_header(content, 3, 13)[1]
            response = codec.read(MetadataResponse, 13, content, position)
            assert [topic.name for topic in elements(response.topics)] == ["t"]
            await client.close()

    run(scenario())


def test_acks_0_is_silent() -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic("t")
            client = await node.connect()
            await client.request(produce(batch(b"a"), acks=0), 9)
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            assert node.store.queues[topic.queue_id(0)].end == 1
            await client.close()

    run(scenario())


def header_of(api_key: int, version: int) -> bytes:
    return write_request_header(RequestHeader(api_key, version, 1, "hostile"))


@pytest.mark.parametrize(
    ("frame", "logged"),
    [
        (b"\x00", "bytes that are no request"),
        (b"\x00\x03\x00\x01\x00\x00\x00\x01\x7f\xff", "bytes that are no request"),
        (header_of(999, 0), "API 999 version 0, which is not served"),
        (header_of(3, 99), "API 3 version 99; of Metadata versions 0 to 13 are served"),
        (header_of(3, -1), "API 3 version -1"),
        (header_of(0, 2), "of Produce versions 3 to 13 are served"),
        (header_of(3, 1) + struct.pack(">i", 2**31 - 1), "Metadata v1 of client 'hostile' is malformed"),
        (header_of(3, 9) + b"\xff\xff\xff\xff\x0f", "Metadata v9 of client 'hostile' is malformed"),
        (header_of(0, 9) + b"\x00\xff\xff", "Produce v9 of client 'hostile' is malformed"),
        (header_of(0, 9) + b"\x00\xff\xff\0\0\0\0\xff\xff\xff\xff\x0f", "Produce v9"),
        (header_of(1, 12) + b"\xff" * 40, "Fetch v12"),
        (codec.write(produce(batch(b"a"), acks=0, name="unknown"), 9), "acks=0 was refused"),
    ],
)
def test_hostile_frames_close_their_connection_with_one_line_and_nobody_else_notices(
    frame: bytes, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    if "acks=0" in logged:
        frame = header_of(0, 9) + frame

    async def scenario() -> None:
        async with serving() as node:
            bystander, client = await node.connect(), await node.connect()
            await client.send_frame(frame)
            assert await client.closed_by_server()
            assert (await bystander.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            assert node.server.budget.bytes_taken == 0
            await bystander.close()
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("mainstem")]
    assert logged in record.getMessage()


def test_a_corrupt_batch_is_an_answer_and_the_connection_goes_on() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            response = await client.call(produce(batch(b"a")[:-1] + b"?"), 9)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
            response = await client.call(produce(batch(b"a")), 9)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


async def fail(broker: Broker, request: object, call: RequestContext) -> object:
    raise ZeroDivisionError("a fault of ours")


def breaking(key: int) -> list[Route]:
    """All routes; the handler of this API fails."""
    return [replace(route, handle=fail) if route.api.api_key == key else route for route in ROUTES]


def test_a_failing_handler_is_logged_once_and_answered_where_that_can_be_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving(routes=breaking(22)) as node:
            client = await node.connect()
            await client.request(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)
            response = await client.response(22, 4)
            assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    (record,) = [record for record in caplog.records if record.name.startswith("mainstem")]
    assert record.exc_info is not None
    assert "InitProducerId v4 of client 'raw' failed unexpectedly" in record.getMessage()


def test_a_failing_handler_that_was_asked_for_nothing_says_nothing_and_the_connection_goes_on() -> None:
    async def scenario() -> None:
        async with serving(routes=breaking(2)) as node:
            client = await node.connect()
            await client.request(ListOffsetsRequest(replica_id=-1, topics=()), 5)
            assert (await client.response(2, 5)).topics == ()
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.api.name)
def test_a_failing_request_for_nothing_or_for_everything_has_an_answer_that_no_client_takes_for_all_there_is(
    route: Any,
) -> None:
    for version in range(route.api.version_min, route.api.version_max + 1):
        for nothing in (None, ()):
            full = sample(route.api.request, version)
            lists = [
                field
                for field in declaration_of(route.api.request).fields
                if isinstance(field.kind, ArrayKind) and version in field.versions
            ]
            asked = replace(full, **{f.name: nothing for f in lists if nothing == () or version in f.nullable})
            response = failure_response(route.api.response, version, asked)
            assert response is not None
            read, _ = codec.read_prefix(route.api.response, version, memoryview(codec.write(response, version)), 0)
            if isinstance(read, MetadataResponse):
                assert read.brokers == (), "which clients take for no answer at all"
            elif route.api.name == "DescribeLogDirs":
                assert ErrorCode.UNKNOWN_SERVER_ERROR in codes_in(read)


def broken(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a fault of ours")


class Awaited(PromptFuture[Any]):
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = asyncio.Event()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        super().add_done_callback(callback)
        self.awaited.set()


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_produce_request_that_fails_is_answered_of_each_batch(
    alone: bool, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t", partitions=2)
            client = await node.connect()
            future = Awaited()
            append = (lambda *_, **__: future) if late else broken
            if alone:
                monkeypatch.setattr(node.dispatcher, "dispatch_burst", lambda *_: None)
            with monkeypatch.context() as patch:
                patch.setattr(node.store, "append", append)
                await client.request(produce(batch(b"a"), b"junk"), 9)
                if late:
                    await future.awaited.wait()
                    future.set_exception(ZeroDivisionError("a fault of ours"))
                (topic,) = (await client.response(0, 9)).responses
            codes = [part.error_code for part in topic.partition_responses]
            assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CORRUPT_MESSAGE]
            response = await client.call(produce(batch(b"a")), 9)
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
            assert node.server.counters.failures == 0
            await client.close()

    run(scenario())


def test_a_produce_request_that_cannot_be_looked_at_is_answered_of_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            monkeypatch.setattr(node.dispatcher, "dispatch_burst", lambda *_: None)
            with monkeypatch.context() as patch:
                patch.setattr(node.broker.produce_topics, "by_name", broken)
                (topic,) = (await client.call(produce(batch(b"a"), batch(b"b")), 9)).responses
            assert [part.error_code for part in topic.partition_responses] == 2 * [ErrorCode.UNKNOWN_SERVER_ERROR]
            await client.close()

    run(scenario())


@pytest.mark.parametrize("version", [4, 6, 7, 12])
@pytest.mark.parametrize("when", ["at once", "later", "beside the loop"])
def test_a_fetch_request_that_fails_is_answered(version: int, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic("t")
            client = await node.connect()
            if when == "beside the loop":
                node.store.cold.add(topic.queue_id(0))
                monkeypatch.setattr(node.store, "read", broken)
            elif when == "at once":
                monkeypatch.setattr(node.store, "read_at_once", broken)
            await client.request(fetch(0, max_wait_ms=60_000 if when == "later" else 0), version)
            if when == "later":
                while not node.store.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                monkeypatch.setattr(node.store, "read_at_once", broken)
                await (await node.connect()).call(produce(batch(b"a")), 9)
            response = await client.response(1, version)
            if version >= 7:
                assert response.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            else:
                (answered,) = response.responses
                assert answered.topic == "t"
                codes = [(part.partition_index, part.error_code) for part in answered.partitions]
                assert codes == [(0, ErrorCode.UNKNOWN_SERVER_ERROR)]
            assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
            await client.close()

    run(scenario())


def test_tracebacks_are_as_many_as_somebody_can_read(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(routes=breaking(22)) as node:
            client = await node.connect()
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            await client.request(request, 4)
            for _ in range(3 * LINES_AT_ONCE):
                await client.request(request, 4)
            for _ in range(3 * LINES_AT_ONCE + 1):
                assert (await client.response(22, 4)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            await client.close()

    with caplog.at_level(logging.WARNING, "mainstem"):
        run(scenario())
    assert LINES_AT_ONCE <= len([record for record in caplog.records if record.exc_info]) <= LINES_AT_ONCE + 3


def sample(message_class: type[Any], version: int, number: int = 1) -> Any:
    """A message with two items in every list."""

    def value(kind: Any, number: int) -> Any:
        if isinstance(kind, ArrayKind):
            return (value(kind.element, number), value(kind.element, number + 1))
        if isinstance(kind, StructKind):
            return sample(kind.struct_class, version, number)
        if isinstance(kind, FixedKind):
            return {"?": True, "d": 0.5}.get(kind.format, number)
        return {string: f"name-{number}", uuid: UUID(int=number)}.get(kind, b"x")

    fields = declaration_of(message_class).fields
    return message_class(**{
        field.name: value(field.kind, number)
        for field in fields if version in field.versions or not field.has_default
    })  # fmt: skip


def codes_in(response: Any) -> list[int]:
    """All error codes of a response, those of its items included."""
    names = ("error_code", "partition_error_code")
    found = [getattr(response, name) for name in names if hasattr(response, name)]
    for field in declaration_of(type(response)).fields:
        value = getattr(response, field.name)
        if isinstance(field.kind, ArrayKind) and isinstance(field.kind.element, StructKind):
            found += [code for item in value or () for code in codes_in(item)]
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.api.name)
def test_every_request_that_fails_has_an_answer_that_says_so(route: Any) -> None:
    """At its top level, or of each item that was asked for; whoever reads it must not take it for a success."""
    for version in range(route.api.version_min, route.api.version_max + 1):
        response = failure_response(route.api.response, version, sample(route.api.request, version))
        assert response is not None
        read, _ = codec.read_prefix(route.api.response, version, memoryview(codec.write(response, version)), 0)
        codes = codes_in(read)
        assert ErrorCode.UNKNOWN_SERVER_ERROR in codes
        if read.__class__.__name__.startswith(("ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords")):
            assert codes == 4 * [ErrorCode.UNKNOWN_SERVER_ERROR], "two partitions of two topics"
    assert failure_response(InitProducerIdResponse, 0) is not None


def test_items_of_a_failed_request_are_named_in_its_answer() -> None:
    request = ListOffsetsRequest(replica_id=-1, topics=(
        ListOffsetsTopic(name="a", partitions=(ListOffsetsPartition(partition_index=7, timestamp=12),)),
        ListOffsetsTopic(name="b", partitions=()),
    ))  # fmt: skip
    response = failure_response(ListOffsetsResponse, 5, request)
    assert response is not None
    assert [(topic.name, [part.partition_index for part in topic.partitions]) for topic in response.topics] == [
        ("a", [7]),
        ("b", []),
    ]
    assert response.topics[0].partitions[0].timestamp == -1, "nothing but names is taken from the request"
    described = failure_response(DescribeGroupsResponse, 5, DescribeGroupsRequest(groups=("x", "y")))
    assert described is not None
    assert [group.group_id for group in described.groups] == ["x", "y"]


def test_a_long_poll_ends_with_its_connection() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            await client.request(fetch(0, max_wait_ms=60_000), 12)
            while not node.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await client.reset()
            while node.store.waiting or node.server.budget.bytes_taken:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    run(scenario())


@pytest.mark.parametrize("ended_by", ["the client", "the node"])
def test_a_long_poll_is_given_up_when_the_stream_or_the_node_ends(ended_by: str) -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            await client.request(fetch(0, max_wait_ms=60_000), 12)
            while not node.store.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if ended_by == "the client":
                client.writer.write_eof()
            else:
                await node.server.close()
            assert await client.closed_by_server()
            assert not node.store.waiting
            await client.close()

    run(scenario())


def test_leaving_the_dispatcher_ends_what_waits_and_handlers_even_before_they_began() -> None:
    async def scenario() -> None:
        fakes = make_broker()
        topic = await fakes.topic("t")
        header = RequestHeader(1, 12, 1, "c")
        frame = memoryview(request_frame(header, codec.write(fetch(0, max_wait_ms=60_000), 12))[4:])
        async with BrokerDispatcher(fakes.broker) as dispatcher:
            waiting = dispatcher.dispatch(frame, SESSION)
            assert fakes.store.waiting == 1
            fakes.store.cold.add(topic.queue_id(0))
            begun = dispatcher.dispatch(frame, replace(SESSION, connection_id=2))
            while fakes.store.waiting < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            unbegun = dispatcher.dispatch(frame, replace(SESSION, connection_id=3))
        for exchange in (waiting, begun, unbegun):
            assert exchange is not None
            assert isinstance(exchange.reply, (asyncio.Future, PromptFuture))
            assert exchange.reply.cancelled()
            assert not exchange.pipelined
        assert fakes.store.waiting == 0

    run(scenario())


def test_latencies_and_errors_are_counted_by_api() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic("t")
            client = await node.connect()
            await client.call(produce(batch(b"a"), batch(b"b")), 9)
            await client.call(MetadataRequest(topics=()), 9)
            samples = list(node.dispatcher.samples())
            histograms = {s.labels[0][1]: s.counts[-1] for s in samples if isinstance(s, HistogramSample)}
            assert histograms == {"Produce": 1, "Metadata": 1}
            errors = [s for s in samples if isinstance(s, Sample) and s.name.endswith("errors_total")]
            assert [(s.labels, s.value) for s in errors] == [
                ((("api", "Produce"), ("error", "UNKNOWN_TOPIC_OR_PARTITION")), 1)
            ]
            await client.close()

    run(scenario())


def test_a_long_request_is_charged_until_it_is_answered_and_a_batch_until_it_is_appended() -> None:
    async def scenario() -> None:
        async with serving() as node:
            await node.topic()
            budget = node.server.budget
            client = await node.connect()
            names = tuple(MetadataRequestTopic(name=f"topic-{number}") for number in range(20_000))
            await client.request(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9)
            while not budget.bytes_most:  # noqa: ASYNC110
                await asyncio.sleep(0)
            kept = [account.kept for account in (each.account for each in node.server.connections)]
            while not any(kept):
                await asyncio.sleep(0)
                kept = [connection.account.kept for connection in node.server.connections]
            assert max(kept) > 20_000 * len("topic-0")
            assert len((await client.response(3, 9)).topics) == 20_000
            node.server.relieve()
            assert budget.bytes_taken == 0
            node.store.hold()
            producer = await node.connect()
            await producer.request(produce(batch(bytes(200_000))), 9)
            while not node.store.appended_acks:  # noqa: ASYNC110
                await asyncio.sleep(0)
            node.server.relieve()
            assert budget.bytes_taken == 0
            node.store.release()
            await producer.response(0, 9)

    asyncio.run(scenario())
