"""confluent-kafka, the Python face of librdkafka."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka import Message as ConfluentMessage
from tests.clients.drivers.message import Message, Received
from tests.harness.patience import PATIENCE_SECONDS

KEEP_TRYING: dict[str, Any] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 2,
}
"""Short pauses, so that a test goes on soon after a node came back; no lines about lost connections."""


LEADER_MOVES = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._UNKNOWN_PARTITION,
    }
)
"""Errors of a call that has to be made again when a leader dies or moves. The last is what librdkafka says of a
partition that has no leader, when it is the only one asked about."""


def can_send(message: Message) -> bool:
    return True


def produce(bootstrap: str, topic: str, messages: Iterable[Message], compression: str = "none") -> None:
    """Send to partition 0 and wait for every acknowledgement. Raises what librdkafka reports."""
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            failures.append(error)

    sender = producer(bootstrap, **{"compression.type": compression, "linger.ms": 20})
    for message in messages:
        time_of = {} if message.timestamp_ms is None else {"timestamp": message.timestamp_ms}
        sender.produce(
            topic,
            value=message.value,
            key=message.key,
            headers=list(message.headers),
            partition=0,
            on_delivery=delivered,
            **time_of,
        )
    assert sender.flush(PATIENCE_SECONDS) == 0, "not everything was acknowledged"
    if failures:
        raise KafkaException(failures[0])


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Received]:
    """The next `count` messages from `offset` on."""
    reader = consumer(bootstrap, "unused")
    try:
        reader.assign([TopicPartition(topic, partition, offset)])
        return [received(message) for message in take(reader, count)]
    finally:
        reader.close()


def producer(bootstrap: str, **settings: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, **KEEP_TRYING, **settings})


def consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    """A consumer that starts at the beginning and commits only when told to."""
    classic = {
        "session.timeout.ms": 45_000,  # a machine that is busy for a while drops no member
        "heartbeat.interval.ms": 300,
    }
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            **({} if settings.get("group.protocol") == "consumer" else classic),
            **KEEP_TRYING,
            **settings,
        }
    )


def take(reader: Consumer, count: int, seconds: float = PATIENCE_SECONDS) -> list[ConfluentMessage]:
    """`count` messages; errors that pass by themselves are waited out."""
    taken: list[ConfluentMessage] = []
    deadline = time.monotonic() + seconds
    while len(taken) < count:
        for message in reader.consume(min(count - len(taken), 1_000), timeout=0.2):
            error = message.error()
            if error is None:
                taken.append(message)
            elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
                raise KafkaException(error)
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came within {seconds} s"
    return taken


def watermarks(reader: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Log start and high watermark; errors that pass by themselves, such as a leader that moved, are waited out."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_SECONDS)
            return low, high
        except KafkaException as error:
            if error.args[0].code() not in LEADER_MOVES or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def received(message: ConfluentMessage) -> Received:
    kind, timestamp_ms = message.timestamp()
    assert kind != TIMESTAMP_NOT_AVAILABLE
    return Received(message.offset(), message.value(), message.key(), tuple(message.headers() or ()), timestamp_ms)


def partitions(topic: str, numbers: Sequence[int], offset: int = 0) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for number in numbers]
