"""aiokafka, a client for asyncio with a codec of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests.clients.drivers.message import Message, Received
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS


def can_send(message: Message) -> bool:
    """It insists on a key or a value, and on headers that are not null."""
    return (message.key, message.value) != (None, None) and all(value is not None for _, value in message.headers)


def produce(bootstrap: str, topic: str, messages: Iterable[Message], compression: str = "none") -> None:
    """Send to partition 0 and wait for every acknowledgement. Raises what the client reports."""
    asyncio.run(send(bootstrap, topic, messages, compression_type=None if compression == "none" else compression))


async def send(bootstrap: str, topic: str, messages: Iterable[Message], **settings: Any) -> list[int]:
    """The offsets the messages were given, in their order."""
    async with producer(bootstrap, linger_ms=20, **settings) as sender:
        futures = [
            await sender.send(
                topic,
                value=message.value,
                key=message.key,
                headers=list(message.headers),
                partition=0,
                timestamp_ms=message.timestamp_ms,
            )
            for message in messages
        ]
        results = await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_SECONDS)
    return [result.offset for result in results]


def producer(bootstrap: str, **settings: Any) -> AIOKafkaProducer:
    """Its messages fail when a request has not been answered for as long as one may take."""
    return AIOKafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=PATIENCE_MS, **settings)


def consume(bootstrap: str, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[Received]:
    """The next `count` messages from `offset` on."""
    return asyncio.run(_consume(bootstrap, topic, count, partition, offset))


async def _consume(bootstrap: str, topic: str, count: int, partition: int, offset: int) -> list[Received]:
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=100) as reader:
        where = TopicPartition(topic, partition)
        reader.assign([where])
        reader.seek(where, offset)
        return await take(reader, count)


async def take(reader: AIOKafkaConsumer, count: int) -> list[Received]:
    records = [await asyncio.wait_for(reader.getone(), PATIENCE_SECONDS) for _ in range(count)]
    return [
        Received(record.offset, record.value, record.key, tuple(record.headers), record.timestamp) for record in records
    ]
