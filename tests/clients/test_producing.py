"""Acknowledgements, sizes, idempotence and creation of topics as producers see them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from aiokafka.errors import MessageSizeTooLargeError as AsyncioTooLarge
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as ConfluentMessage
from kafka.errors import MessageSizeTooLargeError
from tests.clients.conftest import SETTINGS, MakeTopic
from tests.clients.drivers import asyncio_client, kafka_python, kcat, librdkafka
from tests.clients.drivers.message import Message, content
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving

CLIENTS = (librdkafka, kafka_python, asyncio_client, kcat)
MESSAGE_BYTES_MAX = 1_048_588  # Kafka's default of max.message.bytes
BATCH_OVERHEAD_BYTES = 61 + 21  # a batch's header and the most that one record without a key adds
MIB = 1 << 20

Send = Callable[[str, str, bytes], None]


def send_by_librdkafka(bootstrap: str, topic: str, value: bytes) -> None:
    results: list[KafkaError | None] = []
    sender = librdkafka.producer(bootstrap, **{"message.max.bytes": 64 * MIB})
    sender.produce(topic, value, partition=0, on_delivery=lambda error, _: results.append(error))
    sender.flush(PATIENCE_SECONDS)
    (error,) = results
    if error is not None:
        raise KafkaException(error)


def send_by_kafka_python(bootstrap: str, topic: str, value: bytes) -> None:
    sender = kafka_python.producer(bootstrap, max_request_size=64 * MIB)
    try:
        sender.send(topic, value, partition=0).get(timeout=PATIENCE_SECONDS)
    finally:
        sender.close(timeout=PATIENCE_SECONDS)


def send_by_aiokafka(bootstrap: str, topic: str, value: bytes) -> None:
    asyncio.run(asyncio_client.send(bootstrap, topic, [Message(value)], max_request_size=64 * MIB))


SENDERS = pytest.mark.parametrize(
    ("send", "refusal"),
    [
        pytest.param(send_by_librdkafka, KafkaException, id="librdkafka"),
        pytest.param(send_by_kafka_python, MessageSizeTooLargeError, id="kafka_python"),
        pytest.param(send_by_aiokafka, AsyncioTooLarge, id="asyncio_client"),
    ],
)


@SENDERS
def test_a_message_may_be_as_large_as_the_topic_allows_and_no_larger(
    bootstrap: str, topic: str, send: Send, refusal: type[Exception]
) -> None:
    largest = os.urandom(MESSAGE_BYTES_MAX - BATCH_OVERHEAD_BYTES)
    send(bootstrap, topic, largest)
    with pytest.raises(refusal) as refused:
        send(bootstrap, topic, os.urandom(MESSAGE_BYTES_MAX))
    if refusal is KafkaException:
        assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    send(bootstrap, topic, b"and on it goes")
    for reader in CLIENTS:
        assert [message.value for message in reader.consume(bootstrap, topic, 2)] == [
            largest,
            b"and on it goes",
        ]


@SENDERS
def test_messages_beyond_the_readers_fetch_size_come_through(
    bootstrap: str, make_topic: MakeTopic, send: Send, refusal: type[Exception]
) -> None:
    topic = make_topic(max_message_bytes=20 * MIB)
    huge = os.urandom(9 * MIB)
    for value in (b"before", huge, b"after"):
        send(bootstrap, topic, value)
    for reader in CLIENTS:
        assert [message.value for message in reader.consume(bootstrap, topic, 3)] == [
            b"before",
            huge,
            b"after",
        ]
    with pytest.raises(refusal):
        send(bootstrap, topic, os.urandom(20 * MIB))


def test_the_limit_counts_compressed_bytes(bootstrap: str, topic: str) -> None:
    value = bytes(4 * MIB)
    sender = librdkafka.producer(bootstrap, **{"message.max.bytes": 8 * MIB, "compression.type": "zstd"})
    sender.produce(topic, value)
    assert sender.flush(PATIENCE_SECONDS) == 0
    assert [message.value for message in kafka_python.consume(bootstrap, topic, 1)] == [value]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement_by_every_client(bootstrap: str, topic: str, acks: int | str) -> None:
    messages = [Message(b"%d" % number, b"key") for number in range(100)]
    by_librdkafka = librdkafka.producer(bootstrap, acks=acks)
    by_kafka_python = kafka_python.producer(bootstrap, acks=acks, enable_idempotence=False)
    for message in messages:
        by_librdkafka.produce(topic, message.value, message.key, partition=0)
    assert by_librdkafka.flush(PATIENCE_SECONDS) == 0
    librdkafka.consume(bootstrap, topic, 100)  # acks=0 says nothing about arrival
    for message in messages:
        by_kafka_python.send(topic, message.value, message.key, partition=0)
    by_kafka_python.flush(timeout=PATIENCE_SECONDS)
    by_kafka_python.close()
    librdkafka.consume(bootstrap, topic, 200)
    asyncio.run(asyncio_client.send(bootstrap, topic, messages, acks=acks)) if acks != 0 else asyncio.run(
        _send_unacknowledged(bootstrap, topic, messages)
    )
    librdkafka.consume(bootstrap, topic, 300)
    kcat.output(
        bootstrap, "-P", "-t", topic, "-p", "0", "-X", f"topic.acks={acks}", "-K:",
        stdin=b"".join(b"%b:%b\n" % (message.key or b"", message.value or b"") for message in messages),
    )  # fmt: skip
    found = librdkafka.consume(bootstrap, topic, 400)
    assert [message.content for message in found] == [content(message) for message in messages] * 4


async def _send_unacknowledged(bootstrap: str, topic: str, messages: list[Message]) -> None:
    async with asyncio_client.producer(bootstrap, acks=0) as sender:
        for message in messages:
            await sender.send(topic, message.value, message.key, partition=0)
        await sender.flush()


def test_idempotent_producers_of_every_client(bootstrap: str, topic: str) -> None:
    messages = [Message(b"%d" % number) for number in range(500)]
    by_librdkafka = librdkafka.producer(bootstrap, **{"enable.idempotence": True, "batch.num.messages": 10})
    for message in messages:
        by_librdkafka.produce(topic, message.value, partition=0)
    assert by_librdkafka.flush(PATIENCE_SECONDS) == 0
    by_kafka_python = kafka_python.producer(bootstrap, enable_idempotence=True, batch_size=100)
    for message in messages:
        by_kafka_python.send(topic, message.value, partition=0)
    by_kafka_python.close(timeout=PATIENCE_SECONDS)
    offsets = asyncio.run(asyncio_client.send(bootstrap, topic, messages, enable_idempotence=True, max_batch_size=200))
    assert offsets == list(range(1_000, 1_500))
    found = librdkafka.consume(bootstrap, topic, 1_500)
    assert [message.value for message in found] == [message.value for message in messages] * 3


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda client: client.__name__.rpartition(".")[2])
def test_readers_keep_up_with_producers_at_work(bootstrap: str, make_topic: MakeTopic, reader: ModuleType) -> None:
    producers, each = 4, 1_000
    topic = make_topic(partitions=2)

    def work(number: int) -> None:
        sender = librdkafka.producer(bootstrap, **{"linger.ms": 1, "batch.num.messages": 20})
        for count in range(each):
            sender.produce(topic, b"%d" % count, b"%d" % number, partition=number % 2)
        sender.flush(PATIENCE_SECONDS)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    try:
        found = [reader.consume(bootstrap, topic, producers // 2 * each, partition) for partition in range(2)]
    finally:
        for thread in threads:
            thread.join()
    for partition, messages in enumerate(found):
        assert [message.offset for message in messages] == list(range(len(messages)))
        for number in range(partition, producers, 2):
            values = [message.value for message in messages if message.key == b"%d" % number]
            assert values == [b"%d" % count for count in range(each)], "a producer's order"


def test_writing_to_an_unknown_topic_creates_it(bootstrap: str, name: str) -> None:
    for client in CLIENTS:
        topic = f"{name}-{client.__name__.rpartition('.')[2]}"
        client.produce(bootstrap, topic, [Message(b"first")])
        assert [message.value for message in librdkafka.consume(bootstrap, topic, 1)] == [b"first"]


@pytest.fixture(scope="module")
def strict_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Topics do not come by themselves here."""
    serving = Serving(tmp_path_factory.mktemp("strict"), *SETTINGS, "broker.auto_create_topics=false")
    try:
        yield serving.start()
    finally:
        serving.close()


def test_without_automatic_creation_an_unknown_topic_is_an_error(strict_node: Serving, name: str) -> None:
    results: list[KafkaError | None] = []
    sender = librdkafka.producer(strict_node.kafka, **{"topic.metadata.propagation.max.ms": 500})
    sender.produce(name, b"lost", on_delivery=lambda error, _: results.append(error))
    sender.flush(PATIENCE_SECONDS)
    assert [error and error.code() for error in results] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert name not in sender.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_compacted_topic_names_the_records_that_it_does_not_take(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(cleanup_policy="compact")
    told: dict[bytes, int] = {}

    def note(error: KafkaError | None, message: ConfluentMessage) -> None:
        told[message.value() or b""] = KafkaError.NO_ERROR if error is None else error.code()

    sender = librdkafka.producer(bootstrap, **{"linger.ms": 60_000})
    for value, key in ((b"good", b"k"), (b"bad", None), (b"also good", b"k"), (b"bad too", None)):
        sender.produce(topic, value, key, partition=0, on_delivery=note)
    sender.flush(PATIENCE_SECONDS)
    different = KafkaError._INVALID_DIFFERENT_RECORD  # noqa: SLF001
    assert told == {
        b"good": different, b"bad": KafkaError.INVALID_RECORD,
        b"also good": different, b"bad too": KafkaError.INVALID_RECORD,
    }  # fmt: skip
