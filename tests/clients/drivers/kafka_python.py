"""kafka-python, a client in pure Python with a codec of its own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from tests.clients.drivers.message import Message, Received
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS


def can_send(message: Message) -> bool:
    """It insists on a key or a value, and on headers that are not null."""
    return (message.key, message.value) != (None, None) and all(value is not None for _, value in message.headers)


def produce(bootstrap: str, topic: str, messages: Iterable[Message], compression: str = "none") -> None:
    """Send to partition 0 and wait for every acknowledgement. Raises what the client reports."""
    sender = producer(bootstrap, compression_type=None if compression == "none" else compression, linger_ms=20)
    try:
        futures = [
            sender.send(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=0,
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        for future in futures:
            future.get(timeout=PATIENCE_SECONDS)
    finally:
        sender.close(timeout=PATIENCE_SECONDS)


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Received]:
    """The next `count` messages from `offset` on."""
    reader = consumer(bootstrap)
    try:
        where = TopicPartition(topic, partition)
        reader.assign([where])
        reader.seek(where, offset)
        return take(reader, count)
    finally:
        reader.close()


def producer(bootstrap: str, **settings: Any) -> KafkaProducer:
    patient = dict.fromkeys(("bootstrap_timeout_ms", "delivery_timeout_ms", "max_block_ms"), PATIENCE_MS)
    patient["request_timeout_ms"] = PATIENCE_MS // 2  # less than a delivery may take
    return KafkaProducer(bootstrap_servers=bootstrap, reconnect_backoff_max_ms=200, **{**patient, **settings})


def admin(bootstrap: str) -> KafkaAdminClient:
    return KafkaAdminClient(
        bootstrap_servers=bootstrap, bootstrap_timeout_ms=PATIENCE_MS, request_timeout_ms=PATIENCE_MS
    )


def consumer(bootstrap: str, *topics: str, **settings: Any) -> KafkaConsumer:
    """A consumer that starts at the beginning and commits only when told to. It looks for the leaders every second:
    when one has moved, kafka-python asks the old one for offsets, without a pause, until it is time to look again."""
    return KafkaConsumer(
        *topics,
        bootstrap_servers=bootstrap,
        reconnect_backoff_max_ms=200,
        fetch_max_wait_ms=100,
        retry_backoff_ms=20,
        metadata_max_age_ms=1_000,
        bootstrap_timeout_ms=PATIENCE_MS,
        request_timeout_ms=PATIENCE_MS,
        **{"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings},
    )


def take(reader: KafkaConsumer, count: int, seconds: float = PATIENCE_SECONDS) -> list[Received]:
    taken: list[Received] = []
    deadline = time.monotonic() + seconds
    while len(taken) < count:
        for records in reader.poll(timeout_ms=200, max_records=count - len(taken)).values():
            taken += [
                Received(record.offset, record.value, record.key, tuple(record.headers), record.timestamp)
                for record in records
            ]
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came within {seconds} s"
    return taken
