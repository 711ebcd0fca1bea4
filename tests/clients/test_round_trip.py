"""Every client reads what another one writes: the same bytes, in the same order, with the same times."""

from __future__ import annotations

import time
from types import ModuleType

import pytest
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import asyncio_client, kafka_python, kcat, librdkafka
from tests.clients.drivers.message import AWKWARD, FIRST_TIMESTAMP_MS, Message, content
from tests.harness.patience import PATIENCE_SECONDS

CLIENTS = (librdkafka, kafka_python, asyncio_client, kcat)
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def client_name(client: ModuleType) -> str:
    return client.__name__.rpartition(".")[2]


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("writer", CLIENTS, ids=client_name)
def test_every_client_reads_what_every_client_wrote(
    bootstrap: str, topic: str, writer: ModuleType, compression: str
) -> None:
    sent = [message for message in AWKWARD if writer.can_send(message)]
    writer.produce(bootstrap, topic, sent, compression)
    for reader in CLIENTS:
        found = reader.consume(bootstrap, topic, len(sent))
        assert [message.content for message in found] == [content(message) for message in sent], reader
        assert [message.offset for message in found] == list(range(len(sent))), reader
        if writer is not kcat:
            assert [message.timestamp_ms for message in found] == [message.timestamp_ms for message in sent]
        half = reader.consume(bootstrap, topic, len(sent) // 2, offset=len(sent) - len(sent) // 2)
        assert half == found[len(sent) - len(sent) // 2 :], "a read from the middle of a batch"


@pytest.mark.parametrize("writer", [librdkafka, kafka_python, asyncio_client], ids=client_name)
def test_log_append_time_replaces_the_producers_time(bootstrap: str, make_topic: MakeTopic, writer: ModuleType) -> None:
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    writer.produce(bootstrap, topic, [Message(b"%d" % n, timestamp_ms=FIRST_TIMESTAMP_MS) for n in range(5)], "gzip")
    after_ms = time.time_ns() // 1_000_000
    readings = [reader.consume(bootstrap, topic, 5) for reader in CLIENTS]
    for found in readings:
        assert [message.value for message in found] == [b"%d" % n for n in range(5)]
        assert all(before_ms <= message.timestamp_ms <= after_ms for message in found)
    assert readings.count(readings[0]) == len(readings)


def test_many_batches_of_many_partitions_keep_their_order(bootstrap: str, make_topic: MakeTopic) -> None:
    partitions, each = 200, 50
    topic = make_topic(partitions=partitions)
    sender = librdkafka.producer(bootstrap)
    for number in range(each):
        for partition in range(partitions):
            sender.produce(topic, value=b"%d" % number, key=b"%d" % partition, partition=partition)
    assert sender.flush(PATIENCE_SECONDS) == 0
    reader = librdkafka.consumer(bootstrap, "unused")
    reader.assign(librdkafka.partitions(topic, range(partitions)))
    values: dict[int, list[int]] = {}
    for message in librdkafka.take(reader, partitions * each):
        assert message.key() == b"%d" % message.partition()
        values.setdefault(message.partition(), []).append(int(message.value()))
    reader.close()
    assert values == {partition: list(range(each)) for partition in range(partitions)}
