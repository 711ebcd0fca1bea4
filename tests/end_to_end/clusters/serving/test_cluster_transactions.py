"""Transactions while nodes of a cluster are killed: librdkafka writes each number to all partitions in one transaction,
and commits an offset with it. Readers of committed data find the same numbers in every partition."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.clients.drivers.librdkafka import KEEP_TRYING, take
from tests.end_to_end.cluster import Cluster
from tests.harness.patience import PATIENCE_SECONDS

PARTITIONS = 4
SETTINGS = ("pipeline.mode=off", "nameserver.replication_factor=3")
ID = "the-producer"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("transactions"), *SETTINGS)
    try:
        cluster.start()
        cluster.wait_until_well()
        yield cluster
    finally:
        cluster.close()


def begun(cluster: Cluster) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": ID,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 0,
            **KEEP_TRYING,
        }
    )
    while True:
        try:
            producer.init_transactions(PATIENCE_SECONDS)
        except KafkaException as refused:
            if not refused.args[0].retriable():
                raise
        else:
            return producer


def end(producer: Producer) -> bool:
    """Whether the transaction is committed; librdkafka says when to ask again, and when to abort."""
    while True:
        try:
            producer.commit_transaction(PATIENCE_SECONDS)
        except KafkaException as failure:
            error = failure.args[0]
            if error.retriable():
                continue
            if not error.txn_requires_abort():
                raise
            with suppress(KafkaException):
                producer.abort_transaction(PATIENCE_SECONDS)
            return False
        return True


def test_nothing_is_half_visible_when_nodes_are_killed(cluster: Cluster) -> None:
    cluster.create_topic("numbers", PARTITIONS)
    group = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", **KEEP_TRYING})
    group.assign([TopicPartition("numbers", 0, 0)])
    producer = begun(cluster)
    committed: list[int] = []
    for number in range(12):
        if number in (3, 7):  # in the middle of a transaction, and between two
            victim = 1 + number % 3
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("numbers", b"%d" % number, partition=partition)
            if number in (3, 7):
                producer.flush(PATIENCE_SECONDS)
                cluster.kill(victim)
            producer.send_offsets_to_transaction(
                [TopicPartition("numbers", 0, number)], group.consumer_group_metadata(), PATIENCE_SECONDS
            )
            ended = end(producer)
        except KafkaException as failure:
            if failure.args[0].fatal():
                producer = begun(cluster)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
            ended = False
        if ended:
            committed.append(number)
        if number in (3, 7):
            cluster.start(victim)
    assert len(committed) >= 8
    last = begun(cluster)
    last.begin_transaction()
    for partition in range(PARTITIONS):
        last.produce("numbers", b"end", partition=partition)
    last.commit_transaction(PATIENCE_SECONDS)
    found = [seen(cluster, partition) for partition in range(PARTITIONS)]
    assert found.count(found[0]) == PARTITIONS, "a transaction is half visible"
    assert set(committed) <= set(found[0])
    assert found[0] == sorted(found[0])
    assert in_force(group) == found[0][-1]
    group.close()


def in_force(group: Consumer) -> int:
    """The offset that the group has committed, whichever node tells it: coordinators may move still."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            offset: int = group.committed([TopicPartition("numbers", 0)], PATIENCE_SECONDS)[0].offset
            return offset
        except KafkaException as failure:
            passes = failure.args[0].retriable() or failure.args[0].code() == KafkaError.NOT_COORDINATOR
            if not passes or time.monotonic() > deadline:
                raise


def seen(cluster: Cluster, partition: int) -> list[int]:
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            **KEEP_TRYING,
        }
    )
    reader.assign([TopicPartition("numbers", partition, 0)])
    found: list[int] = []
    while True:
        [message] = take(reader, 1)
        if message.value() == b"end":
            reader.close()
            return found
        found.append(int(message.value()))
