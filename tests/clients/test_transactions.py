"""Transactions as released clients make them: librdkafka, kafka-python and aiokafka, against one node."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as AsyncTopicPartition
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from tests.clients.conftest import MakeTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.message import Message
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.cli.main import root


@pytest.fixture
def transactional_id() -> str:
    return f"transactions-{uuid.uuid4().hex[:8]}"


def transactional(bootstrap: str, transactional_id: str, **settings: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            **KEEP_TRYING,
            **settings,
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


def reader(bootstrap: str, group: str, isolation: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **KEEP_TRYING,
        }
    )


def values(bootstrap: str, topic: str, last: bytes, isolation: str = "read_committed") -> list[bytes]:
    """All that a reader of this isolation level sees up to the message `last`."""
    consumer = reader(bootstrap, "unused", isolation)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while last not in found:
        [message] = librdkafka.take(consumer, 1)
        found.append(message.value())
    consumer.close()
    return found


def test_librdkafka_commits_and_aborts(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = transactional(bootstrap, transactional_id)
    for number in range(6):
        producer.begin_transaction()
        for part in (b"a", b"b"):
            producer.produce(topic, b"%d%s" % (number, part), partition=0)
        producer.flush(PATIENCE_SECONDS)
        if number % 2:
            producer.abort_transaction(PATIENCE_SECONDS)
        else:
            producer.commit_transaction(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"end", partition=0)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert values(bootstrap, topic, b"end") == [b"0a", b"0b", b"2a", b"2b", b"4a", b"4b", b"end"]
    assert len(values(bootstrap, topic, b"end", "read_uncommitted")) == 13


def test_a_zombie_is_fenced_and_its_transaction_aborted(bootstrap: str, topic: str, transactional_id: str) -> None:
    zombie = transactional(bootstrap, transactional_id)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(PATIENCE_SECONDS)
    successor = transactional(bootstrap, transactional_id)
    successor.begin_transaction()
    successor.produce(topic, b"successor", partition=0)
    successor.commit_transaction(PATIENCE_SECONDS)
    with pytest.raises(KafkaException) as refused:
        zombie.commit_transaction(PATIENCE_SECONDS)
    assert refused.value.args[0].fatal()
    assert values(bootstrap, topic, b"successor") == [b"successor"]
    assert values(bootstrap, topic, b"successor", "read_uncommitted") == [b"zombie", b"successor"]


def test_consume_transform_produce(bootstrap: str, make_topic: MakeTopic, transactional_id: str, name: str) -> None:
    """Offsets and results come into force together, or not at all."""
    source, target = make_topic(), make_topic()
    librdkafka.produce(bootstrap, source, [Message(b"%d" % n) for n in range(10)])
    consumer = reader(bootstrap, name)
    consumer.subscribe([source])
    producer = transactional(bootstrap, transactional_id)
    for commits in (False, True):
        messages = librdkafka.take(consumer, 5)
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value() + b"!", partition=0)
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, messages[-1].offset() + 1)], consumer.consumer_group_metadata(), PATIENCE_SECONDS
        )
        if commits:
            producer.commit_transaction(PATIENCE_SECONDS)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
            assert [it.offset for it in consumer.committed([TopicPartition(source, 0)], PATIENCE_SECONDS)] == [-1001]
            consumer.seek(TopicPartition(source, 0, 0))
    committed = consumer.committed([TopicPartition(source, 0)], PATIENCE_SECONDS)
    assert [it.offset for it in committed] == [5]
    consumer.close()
    assert values(bootstrap, target, b"4!") == [b"0!", b"1!", b"2!", b"3!", b"4!"]


def test_a_transaction_past_its_time_is_aborted(
    node: Serving, bootstrap: str, topic: str, transactional_id: str
) -> None:
    slow = transactional(bootstrap, transactional_id, **{"transaction.timeout.ms": 1_000})
    slow.begin_transaction()
    slow.produce(topic, b"late", partition=0)
    slow.flush(PATIENCE_SECONDS)
    eventually(lambda: node.metric("mainstem_transactions_timed_out_total") >= 1, what="the abort by the coordinator")
    other = transactional(bootstrap, f"{transactional_id}-other")
    other.begin_transaction()
    other.produce(topic, b"in time", partition=0)
    other.commit_transaction(PATIENCE_SECONDS)
    assert values(bootstrap, topic, b"in time") == [b"in time"]
    with pytest.raises(KafkaException):
        slow.commit_transaction(PATIENCE_SECONDS)


def test_kafka_python_commits_and_aborts(bootstrap: str, topic: str, transactional_id: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    for value, commits in ((b"1", True), (b"2", False), (b"3", True)):
        producer.begin_transaction()
        producer.send(topic, value, partition=0)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.close()
    assert values(bootstrap, topic, b"3") == [b"1", b"3"]


def test_aiokafka_sends_offsets_to_a_transaction(
    bootstrap: str, make_topic: MakeTopic, transactional_id: str, name: str
) -> None:
    source, target = make_topic(), make_topic()

    async def story() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
        await producer.start()
        place = AsyncTopicPartition(source, 0)
        for offset, commits in ((3, False), (7, True)):
            await producer.begin_transaction()
            await producer.send_and_wait(target, b"%d" % offset, partition=0)
            await producer.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "")}, name)
            await (producer.commit_transaction if commits else producer.abort_transaction)()
        await producer.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))
    consumer = reader(bootstrap, name)
    assert consumer.committed([TopicPartition(source, 0)], PATIENCE_SECONDS)[0].offset == 7
    consumer.close()
    assert values(bootstrap, target, b"7") == [b"7"]


def test_the_command_line_finds_transactions_and_aborts_them(bootstrap: str, topic: str, transactional_id: str) -> None:
    def txn(*arguments: str) -> Any:
        ran = CliRunner().invoke(root, ["txn", *arguments, "--bootstrap", bootstrap, "--json"])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.output)

    producer = transactional(bootstrap, transactional_id)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(PATIENCE_SECONDS)
    states = {it["transactional_id"]: it["state"] for it in txn("list", "--state", "Ongoing")["transactions"]}
    assert states == {transactional_id: "Ongoing"}
    described = txn("describe", transactional_id)
    assert (described["state"], described["partitions"]) == ("Ongoing", [{"topic": topic, "partition": 0}])
    assert txn("list", "--hanging", "--topic", topic, "--idle-minutes", "0") == {"hanging": []}
    assert txn("abort", transactional_id)["producer_id"] == described["producer_id"]
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_SECONDS)
    assert txn("describe", transactional_id)["state"] == "Empty"
    mistyped = CliRunner().invoke(root, ["txn", "abort", f"{transactional_id}-mistyped", "--bootstrap", bootstrap])
    assert "no such transactional id" in str(mistyped.exception)
    assert f"{transactional_id}-mistyped" not in [it["transactional_id"] for it in txn("list")["transactions"]]
    refused = CliRunner().invoke(
        root,
        ["txn", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0", "--bootstrap", bootstrap],
    )
    assert refused.exit_code != 0
    assert "no transaction is open from 0 on" in str(refused.exception) + refused.output
