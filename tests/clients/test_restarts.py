"""Clients over a node that is stopped and killed under them: nothing acknowledged is lost or comes twice, order
holds, offsets of groups do not go back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.clients.conftest import SETTINGS
from tests.clients.drivers import asyncio_client, kafka_python, librdkafka
from tests.clients.drivers.message import Message
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

PATIENT = {"message.timeout.ms": PATIENCE_MS, "socket.timeout.ms": 10_000}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    """A node of its own for every test, on ports that it keeps."""
    serving = Serving(tmp_path, *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


def create(node: Serving, topic: str, partitions: int = 1, **configs: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": node.kafka, **librdkafka.KEEP_TRYING})
    admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(PATIENCE_SECONDS)
    return admin


class Load:
    """An idempotent producer that numbers its messages, and what became of each of them."""

    def __init__(self, node: Serving, topic: str, partitions: int) -> None:
        self._sender = librdkafka.producer(
            node.kafka, **{"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 1, **PATIENT}
        )
        self._topic = topic
        self.partitions = partitions
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """number -> partition and offset"""

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self._sender.produce(
                self._topic,
                b"%d" % number,
                partition=number % self.partitions,
                on_delivery=self._delivered(number),
            )
        self.sent += count

    def _delivered(self, number: int) -> Any:
        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, f"message {number}: {error}"
            self.acknowledged[number] = message.partition(), message.offset()

        return delivered

    def wait_for(self, acknowledged: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.acknowledged) < acknowledged:
            self._sender.poll(0.05)
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {acknowledged} acknowledged"

    @property
    def unacknowledged(self) -> int:
        return self.sent - len(self.acknowledged)


def history(node: Serving, topic: str, partitions: int, count: int) -> dict[int, list[tuple[int, int]]]:
    """partition -> (offset, number) of all there is, read by a new client."""
    reader = librdkafka.consumer(node.kafka, "unused")
    reader.assign(librdkafka.partitions(topic, range(partitions)))
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(partitions)}
    for message in librdkafka.take(reader, count):
        found[message.partition()].append((message.offset(), int(message.value())))
    ends = [librdkafka.watermarks(reader, topic, number)[1] for number in range(partitions)]
    reader.close()
    assert ends == [len(found[partition]) for partition in range(partitions)], "nothing comes twice"
    return found


def check(load: Load, found: dict[int, list[tuple[int, int]]]) -> None:
    """Every message once, in its producer's order, at the offset that its acknowledgement named."""
    for partition, entries in found.items():
        assert [offset for offset, _ in entries] == list(range(len(entries)))
        assert [number for _, number in entries] == list(range(partition, load.sent, load.partitions))
    at = {number: (partition, offset) for partition, entries in found.items() for offset, number in entries}
    assert at == load.acknowledged


def test_killed_again_and_again_under_an_idempotent_producer(node: Serving) -> None:
    create(node, "t", partitions=3)
    load = Load(node, "t", partitions=3)
    caught = 0
    for _ in range(5):
        load.send(2_000)
        load.wait_for(load.sent - 1_500)
        load.send(2_000)
        caught += load.unacknowledged
        node.kill()
        node.start()
    load.wait_for(load.sent)
    assert caught > 0, "requests were in flight when the node died"
    check(load, history(node, "t", 3, load.sent))


def test_stopped_under_load_both_sides_go_on(node: Serving) -> None:
    create(node, "t", partitions=2)
    load = Load(node, "t", partitions=2)
    reader = librdkafka.consumer(node.kafka, "g", **{"enable.auto.commit": True, "auto.commit.interval.ms": 200})
    reader.subscribe(["t"])
    read: dict[int, list[int]] = {0: [], 1: []}
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            for message in reader.consume(500, 0.1):
                if message.error() is None:
                    read[message.partition()].append(message.offset())

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        for _ in range(2):
            load.send(2_000)
            load.wait_for(load.sent - 1_000)
            load.send(2_000)
            assert node.stop() == 0, node.output
            node.start()
        load.wait_for(load.sent)
        check(load, history(node, "t", 2, load.sent))
        each = list(range(load.sent // 2))
        eventually(lambda: all(sorted(set(offsets)) == each for offsets in read.values()), what="all of it read")
    finally:
        ended.set()
        thread.join()
        reader.close()
    for offsets in read.values():
        first_time = list(dict.fromkeys(offsets))
        assert first_time == each, "in order; what a rebalance repeats is repeated from a committed offset"


def test_kafka_pythons_idempotent_producer_over_a_kill(node: Serving) -> None:
    create(node, "t")
    sender = kafka_python.producer(
        node.kafka,
        enable_idempotence=True,
        batch_size=500,
        delivery_timeout_ms=PATIENCE_MS,
        request_timeout_ms=10_000,
    )
    futures = [sender.send("t", b"%d" % number, partition=0) for number in range(1_000)]
    futures[200].get(timeout=PATIENCE_SECONDS)
    futures += [sender.send("t", b"%d" % number, partition=0) for number in range(1_000, 2_000)]
    node.kill()
    node.start()
    offsets = [future.get(timeout=PATIENCE_SECONDS).offset for future in futures]
    sender.close()
    assert offsets == list(range(2_000))
    assert history(node, "t", 1, 2_000) == {0: [(number, number) for number in range(2_000)]}


def test_aiokafkas_idempotent_producer_over_a_kill(node: Serving) -> None:
    create(node, "t")

    async def scenario() -> list[int]:
        async with asyncio_client.producer(node.kafka, enable_idempotence=True, max_batch_size=500) as sender:
            futures = [await sender.send("t", b"%d" % number, partition=0) for number in range(1_000)]
            await futures[200]
            futures += [await sender.send("t", b"%d" % number, partition=0) for number in range(1_000, 1_050)]
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.start)
            return [result.offset for result in await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_SECONDS)]

    assert asyncio.run(scenario()) == list(range(1_050))
    assert history(node, "t", 1, 1_050) == {0: [(number, number) for number in range(1_050)]}


def test_committed_offsets_survive_kills_and_never_go_back(node: Serving) -> None:
    create(node, "t", partitions=2)
    ended: set[int] = set()
    """Offsets whose asynchronous commit was answered or given up, so that no later retry can undo another."""

    def on_commit(_: KafkaError | None, partitions: list[TopicPartition]) -> None:
        ended.update(partition.offset for partition in partitions)

    reader = librdkafka.consumer(node.kafka, "g", on_commit=on_commit)
    where = TopicPartition("t", 0)
    reader.assign([where])
    acknowledged = 0
    for _ in range(4):
        for offset in range(acknowledged + 1, acknowledged + 40):
            reader.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
            acknowledged = offset
        in_flight = range(acknowledged + 1, acknowledged + 11)
        for offset in in_flight:
            reader.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=True)
        node.kill()
        node.start()
        found = eventually(lambda: committed(node, "g", where), what="the coordinator's answer")
        assert acknowledged <= found <= in_flight[-1]

        def retried(wanted: range = in_flight) -> bool:
            reader.poll(0.05)
            return ended.issuperset(wanted)

        eventually(retried, what="the end of the client's retries")
        acknowledged = in_flight[-1]
        reader.commit(offsets=[TopicPartition("t", 0, acknowledged)], asynchronous=False)
        assert committed(node, "g", where) == acknowledged
    reader.close()


def committed(node: Serving, group: str, where: TopicPartition) -> int | None:
    asking = librdkafka.consumer(node.kafka, group)
    try:
        (found,) = asking.committed([where], 10)
    except KafkaException:
        return None
    finally:
        asking.close()
    assert found.error is None
    offset: int = found.offset
    return offset


def test_a_group_goes_on_over_a_kill_from_where_it_was(node: Serving) -> None:
    create(node, "t", partitions=2)
    load = Load(node, "t", partitions=2)
    load.send(200)
    load.wait_for(200)
    reader = librdkafka.consumer(node.kafka, "g")
    reader.subscribe(["t"])
    first = {(message.partition(), message.offset()) for message in librdkafka.take(reader, 200)}
    reader.commit(asynchronous=False)
    node.kill()
    node.start()
    load.send(200)
    load.wait_for(400)
    second = {(message.partition(), message.offset()) for message in librdkafka.take(reader, 200)}
    reader.close()
    assert first == {(partition, offset) for partition in range(2) for offset in range(100)}
    assert second == {(partition, offset) for partition in range(2) for offset in range(100, 200)}


def test_what_admins_changed_survives_a_kill(node: Serving) -> None:
    admin = create(node, "kept", partitions=4, **{"retention.ms": "12345"})
    create(node, "altered")
    create(node, "gone")
    create(node, "again")
    for topic in ("kept", "gone", "again"):
        librdkafka.produce(node.kafka, topic, [Message(b"%d" % number) for number in range(10)])
    entry = ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, "altered", incremental_configs=[entry])
    for futures in (
        admin.incremental_alter_configs([altered]),
        admin.delete_topics(["gone", "again"]),
        admin.delete_records([TopicPartition("kept", 0, 6)]),
    ):
        for future in futures.values():
            future.result(PATIENCE_SECONDS)
    create(node, "again", partitions=2)
    node.kill()
    node.start()
    topics = admin.list_topics(timeout=PATIENCE_SECONDS).topics
    counts = {name: len(topic.partitions) for name, topic in topics.items() if not name.startswith("__")}
    assert counts == {"kept": 4, "altered": 1, "again": 2}
    for topic, config, value in (("kept", "retention.ms", "12345"), ("altered", "max.message.bytes", "5000")):
        (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        assert future.result(PATIENCE_SECONDS)[config].value == value
    reader = librdkafka.consumer(node.kafka, "unused")
    assert reader.get_watermark_offsets(TopicPartition("kept", 0), PATIENCE_SECONDS) == (6, 10)
    assert reader.get_watermark_offsets(TopicPartition("again", 0), PATIENCE_SECONDS) == (0, 0)
    reader.close()
    kept = librdkafka.consume(node.kafka, "kept", 4, offset=6)
    assert [message.value for message in kept] == [b"6", b"7", b"8", b"9"]
