"""Waiting for data, offsets that do not exist, positions, times, and topics nobody knows."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AsyncioPartition
from aiokafka.errors import OffsetOutOfRangeError as AsyncioOutOfRange
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka import TopicPartition as PythonPartition
from kafka.errors import OffsetOutOfRangeError
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import asyncio_client, kafka_python, kcat, librdkafka
from tests.clients.drivers.message import FIRST_TIMESTAMP_MS, Message
from tests.harness.patience import PATIENCE_SECONDS

LONG_WAIT_MS = 50_000  # longer than anything here takes, so that only data can have ended the wait


def numbered(count: int) -> list[Message]:
    return [Message(b"%d" % number, timestamp_ms=FIRST_TIMESTAMP_MS + number) for number in range(count)]


def test_a_waiting_reader_is_woken_by_the_first_message(bootstrap: str, topic: str) -> None:
    reader = librdkafka.consumer(bootstrap, "unused", **{"fetch.wait.max.ms": LONG_WAIT_MS, "fetch.min.bytes": 1})
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(1.0) is None, "nothing is there yet"
    librdkafka.produce(bootstrap, topic, [Message(b"here")])
    (message,) = librdkafka.take(reader, 1, seconds=LONG_WAIT_MS / 2_000)
    assert message.value() == b"here"
    reader.close()


def test_a_reader_that_wants_many_bytes_waits_for_them(bootstrap: str, topic: str) -> None:
    librdkafka.produce(bootstrap, topic, [Message(b"x")])
    reader = librdkafka.consumer(bootstrap, "unused", **{"fetch.wait.max.ms": LONG_WAIT_MS, "fetch.min.bytes": 50_000})
    reader.assign([TopicPartition(topic, 0, 0)])
    assert reader.poll(1.0) is None, "one byte is not enough"
    librdkafka.produce(bootstrap, topic, [Message(bytes(60_000))])
    messages = librdkafka.take(reader, 2, seconds=LONG_WAIT_MS / 2_000)
    assert [len(message.value()) for message in messages] == [1, 60_000]
    reader.close()


def test_an_offset_out_of_range_is_an_error_or_a_reset_as_the_reader_wishes(bootstrap: str, topic: str) -> None:
    librdkafka.produce(bootstrap, topic, numbered(3))
    beyond = [TopicPartition(topic, 0, 1_000)]

    strict = librdkafka.consumer(bootstrap, "unused", **{"auto.offset.reset": "error"})
    strict.assign(beyond)
    with pytest.raises(KafkaException) as refused:
        librdkafka.take(strict, 1)
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    strict.close()

    from_start = librdkafka.consumer(bootstrap, "unused")
    from_start.assign(beyond)
    assert [message.offset() for message in librdkafka.take(from_start, 3)] == [0, 1, 2]
    from_start.close()

    at_end = kafka_python.consumer(bootstrap, auto_offset_reset="latest")
    at_end.assign([PythonPartition(topic, 0)])
    at_end.seek(PythonPartition(topic, 0), 1_000)
    assert at_end.poll(timeout_ms=1_000) == {}
    assert at_end.position(PythonPartition(topic, 0)) == 3
    at_end.close()

    by_python = kafka_python.consumer(bootstrap, auto_offset_reset="none")
    by_python.assign([PythonPartition(topic, 0)])
    by_python.seek(PythonPartition(topic, 0), 1_000)
    with pytest.raises(OffsetOutOfRangeError):
        kafka_python.take(by_python, 1)
    by_python.close()

    with pytest.raises(AsyncioOutOfRange):
        asyncio.run(_read_out_of_range(bootstrap, topic))


async def _read_out_of_range(bootstrap: str, topic: str) -> None:
    where = AsyncioPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none") as reader:
        reader.assign([where])
        reader.seek(where, 1_000)
        await asyncio_client.take(reader, 1)


def test_seeking_goes_anywhere_and_positions_follow(bootstrap: str, topic: str) -> None:
    librdkafka.produce(bootstrap, topic, numbered(50))
    reader = librdkafka.consumer(bootstrap, "unused")
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.offset() for message in librdkafka.take(reader, 2)] == [0, 1]
    for offset in (40, 0, 25):
        reader.seek(TopicPartition(topic, 0, offset))
        (message,) = librdkafka.take(reader, 1)
        assert (message.offset(), message.value()) == (offset, b"%d" % offset)
        assert reader.position([TopicPartition(topic, 0)])[0].offset == offset + 1
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS) == (0, 50)
    reader.seek(TopicPartition(topic, 0, OFFSET_END))
    assert reader.poll(0.5) is None
    reader.close()

    by_python = kafka_python.consumer(bootstrap)
    where = PythonPartition(topic, 0)
    by_python.assign([where])
    assert by_python.beginning_offsets([where]) == {where: 0}
    assert by_python.end_offsets([where]) == {where: 50}
    by_python.seek_to_end(where)
    assert by_python.position(where) == 50
    by_python.seek(where, 48)
    assert [message.value for message in kafka_python.take(by_python, 2)] == [b"48", b"49"]
    by_python.close()


def test_times_lead_to_offsets(bootstrap: str, topic: str) -> None:
    for compression, first in (("none", 0), ("gzip", 100), ("zstd", 200)):
        batch = [Message(b"", b"k", timestamp_ms=FIRST_TIMESTAMP_MS + 10 * (first + number)) for number in range(100)]
        librdkafka.produce(bootstrap, topic, batch, compression)
    expected = {-1_000: 0, 0: 0, 1: 1, 10: 1, 995: 100, 1_500: 150, 2_985: 299, 2_990: 299}

    reader = librdkafka.consumer(bootstrap, "unused")
    for after_ms, offset in expected.items():
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, FIRST_TIMESTAMP_MS + after_ms)], PATIENCE_SECONDS)
        assert found.offset == offset, after_ms
    (found,) = reader.offsets_for_times([TopicPartition(topic, 0, FIRST_TIMESTAMP_MS + 2_991)], PATIENCE_SECONDS)
    assert found.offset == OFFSET_END, "nothing is that young"
    reader.close()

    by_python = kafka_python.consumer(bootstrap)
    where = PythonPartition(topic, 0)
    answer = by_python.offsets_for_times({where: FIRST_TIMESTAMP_MS + 1_495})[where]
    assert (answer.offset, answer.timestamp) == (150, FIRST_TIMESTAMP_MS + 1_500)
    assert by_python.offsets_for_times({where: FIRST_TIMESTAMP_MS + 2_991}) == {where: None}
    by_python.close()

    printed = kcat.output(bootstrap, "-Q", "-t", f"{topic}:0:{FIRST_TIMESTAMP_MS + 1_495}")
    assert printed.decode().strip() == f"{topic} [0] offset 150"


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_group_without_offsets_starts_where_its_reader_wishes(
    bootstrap: str, topic: str, name: str, reset: str
) -> None:
    librdkafka.produce(bootstrap, topic, numbered(10))
    reader = librdkafka.consumer(bootstrap, name, **{"auto.offset.reset": reset})
    reader.subscribe([topic])
    message = None
    while message is None:  # "latest" is looked up some time after the assignment
        librdkafka.produce(bootstrap, topic, [Message(b"later")])
        message = reader.poll(0.5)
    assert message.error() is None
    assert message.offset() == 0 if reset == "earliest" else message.offset() >= 10
    reader.close()


def test_a_group_without_offsets_and_without_a_wish_is_an_error(bootstrap: str, topic: str, name: str) -> None:
    librdkafka.produce(bootstrap, topic, numbered(1))
    reader = librdkafka.consumer(bootstrap, name, **{"auto.offset.reset": "error"})
    reader.subscribe([topic])
    with pytest.raises(KafkaException) as refused:
        librdkafka.take(reader, 1)
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    reader.close()


def test_asking_for_an_unknown_topic_says_so_and_does_not_make_it(
    bootstrap: str, admin: AdminClient, name: str
) -> None:
    reader = librdkafka.consumer(bootstrap, name)
    for _ in range(2):
        described = reader.list_topics(name, PATIENCE_SECONDS).topics[name]
        assert described.error is not None
        assert described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    reader.subscribe([name])
    with pytest.raises(KafkaException) as refused:
        librdkafka.take(reader, 1)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    reader.close()

    by_python = kafka_python.consumer(bootstrap, allow_auto_create_topics=False)
    assert not by_python.partitions_for_topic(name)
    by_python.close()
    assert name not in admin.list_topics(timeout=PATIENCE_SECONDS).topics


def test_a_reader_finds_partitions_that_were_added(bootstrap: str, admin: AdminClient, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_SECONDS)
    reader = librdkafka.consumer(bootstrap, f"{topic}-readers", **{"topic.metadata.refresh.interval.ms": 500})
    reader.subscribe([topic])
    sender = librdkafka.producer(bootstrap)
    for partition in range(3):
        sender.produce(topic, b"%d" % partition, partition=partition)
    assert sender.flush(PATIENCE_SECONDS) == 0
    assert sorted(message.partition() for message in librdkafka.take(reader, 3)) == [0, 1, 2]
    reader.commit(asynchronous=False)  # the rebalance to come starts from what is committed
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(PATIENCE_SECONDS)
    late = librdkafka.producer(bootstrap)
    for partition in (3, 4):
        late.produce(topic, b"%d" % partition, partition=partition)
    assert late.flush(PATIENCE_SECONDS) == 0
    assert sorted(message.partition() for message in librdkafka.take(reader, 2)) == [3, 4]
    reader.close()
