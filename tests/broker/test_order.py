"""The order of a producer that numbers nothing and has several requests under way, while the disk is full now and
then."""

from __future__ import annotations

import asyncio

from confluent_kafka import Producer
from tests.broker.harness import Serving, serving
from tests.fakes.clock import LoopClock

from mainstem.model import Outcome
from mainstem.protocol.records import read_records, stored_batches

MESSAGES = 3_000
REFUSALS = 40


def test_librdkafka_keeps_its_order_while_batches_are_refused_for_want_of_disk() -> None:
    async def scenario() -> None:
        async with serving() as node:
            topic = await node.topic()
            sent = asyncio.create_task(asyncio.to_thread(send, node, topic.name, LoopClock().now_ms()))
            refused = 0
            while not sent.done():
                held = len(node.store.appended_acks)
                await asyncio.sleep(0.002)
                if refused < REFUSALS and len(node.store.appended_acks) > held:
                    node.store.refuse = Outcome.STORAGE_BUSY
                    asked = len(node.store.appended_acks)
                    while len(node.store.appended_acks) == asked and not sent.done():  # noqa: ASYNC110
                        await asyncio.sleep(0)
                    node.store.refuse = None  # at once: what comes behind the refused batch would be taken
                    refused += 1
            assert await sent == []
            assert refused > 1
            batches = node.store.queues[topic.queue_id(0)].batches
            found = [
                int(record.value or b"-1")
                for stored in batches
                for batch in stored_batches(memoryview(stored.data))
                for record in read_records(batch)
            ]
            assert found == list(range(MESSAGES))

    asyncio.run(scenario())


def send(node: Serving, topic: str, now_ms: int) -> list[str]:
    """The failures; `now_ms` is what the node takes for the time."""
    failures: list[str] = []
    host, port = node.server.addresses[0]
    producer = Producer({
        "bootstrap.servers": f"{host}:{port}",
        "enable.idempotence": False,
        "max.in.flight": 5,
        "acks": -1,
        "batch.num.messages": 10,
        "linger.ms": 0,
        "retry.backoff.ms": 1,
        "retry.backoff.max.ms": 10,
        "reconnect.backoff.ms": 1,
        "reconnect.backoff.max.ms": 10,
        # or the client, at a moment without any connection, may drop a broker that it has just sent a batch to, and
        # sends the batch again
        "metadata.recovery.strategy": "none",
        "message.timeout.ms": 60_000,
    })  # fmt: skip
    for number in range(MESSAGES):
        producer.produce(
            topic,
            str(number).encode(),
            partition=0,
            timestamp=now_ms,
            on_delivery=lambda error, _: failures.append(str(error)) if error else None,
        )
        producer.poll(0.0005 if number % 10 == 0 else 0)
    assert producer.flush(60) == 0
    return failures
