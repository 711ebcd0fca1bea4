"""A committed offset goes bad on the only disk there is: real consumers are told, and neither begin anew nor repeat."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPIC = "read-in-groups"
MESSAGES = 30
LOST = "went-bad-on-disk"
"""In the metadata of the commit that is damaged, by which it is found."""
SETTINGS = (
    "pipeline.mode=off", "groups.offsets_topic_partitions=1",
    "journal.segment_bytes=1048576", "journal.segment_age_seconds=1", "storage.write_cache_bytes=262144",
    "storage.checkpoint_seconds=1",
)  # fmt: skip
NEXT_SEGMENT = 1 << 21
"""Bytes that fill what is open, so that what was written before lies in sealed segments."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    node = Serving(tmp_path, *SETTINGS)
    node.program = HASTY_NODE
    try:
        yield node.start()
    finally:
        node.close()


def commit(node: Serving, group: str, offset: int, metadata: str = "") -> None:
    consumer = librdkafka.consumer(node.kafka, group)
    try:
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, offset, metadata)], asynchronous=False)
    finally:
        consumer.close()


def fill(node: Serving) -> None:
    for _ in range(8):
        librdkafka.produce(node.kafka, "filler", [Message(bytes(NEXT_SEGMENT // 4))])


def damage(write_dir: Path) -> None:
    """One bit of the commit."""
    (place,) = [
        (path, at)
        for path in sorted((write_dir / "journal").glob("*.wal"))
        if (at := path.read_bytes().find(LOST.encode())) >= 0
    ]
    path, at = place
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([LOST.encode()[0] ^ 1]))


def subscribed(node: Serving, group: str, reset: str) -> Consumer:
    consumer = librdkafka.consumer(node.kafka, group, **{"auto.offset.reset": reset})
    consumer.subscribe([TOPIC])
    return consumer


def first_error(consumer: Consumer) -> int:
    """The answers that the application gets instead of messages."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        error = message.error()
        assert error is not None, f"it reads on from offset {message.offset()}"
        if error.code() != KafkaError._TRANSPORT:
            return int(error.code())
    raise AssertionError("it is told nothing, and given nothing")


def test_consumers_whose_offsets_may_be_lost_are_told_and_all_others_go_on(node: Serving) -> None:
    librdkafka.produce(node.kafka, TOPIC, [Message(b"%d" % number) for number in range(MESSAGES)])
    commit(node, "early", 5)
    commit(node, "early", 10, LOST)
    commit(node, "since", 20)
    fill(node)
    assert node.stop() == 0
    damage(node.write_dir)
    node.start()
    eventually(
        lambda: node.metric("mainstem_consumer_group_partitions_incomplete") == 1,
        what="a partition that is served in part",
    )
    assert node.output_lines("cannot be read. Consumer groups of this partition go on")
    (partition,) = node.get("/v1/topics/__consumer_offsets")["partitions"]
    (missing,) = partition["missing"]
    assert partition["log_start"] < missing["first_offset"] <= missing["last_offset"] < partition["high_watermark"]
    for group, reset in (("early", "earliest"), ("early", "latest"), ("new", "latest")):
        with contextlib.closing(subscribed(node, group, reset)) as consumer:
            assert first_error(consumer) == KafkaError.KAFKA_STORAGE_ERROR, (group, reset)
    with contextlib.closing(subscribed(node, "since", "latest")) as consumer:
        values = [int(message.value()) for message in librdkafka.take(consumer, MESSAGES - 20)]
        assert values == list(range(20, MESSAGES))

    commit(node, "early", 12)  # somebody has decided
    with contextlib.closing(subscribed(node, "early", "latest")) as consumer:
        assert int(librdkafka.take(consumer, 1)[0].value()) == 12
