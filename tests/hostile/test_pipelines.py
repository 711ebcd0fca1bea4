"""Producers that send more at once than the disk takes: what was read of them is appended, in its order, and the rest
waits in their sockets."""

from __future__ import annotations

import threading

from confluent_kafka import Producer
from tests.harness.patience import PATIENCE_MS, PATIENCE_SECONDS
from tests.hostile.conftest import StartNode
from tests.hostile.honest import FETCH, PRODUCE, HonestClient, create_topic, fetch_request, produce_request
from tests.hostile.wire import Wire

from mainstem.protocol.records import read_records, stored_batches

BACKLOG = "storage.write_backlog_bytes_max=100000"
"""Less than two of the batches below."""
PRODUCERS = 4
BATCHES = 300
BATCH_BYTES = 60_000


def read_all(address: str, topic: str, count: int) -> list[bytes]:
    """The first `count` values of a topic's only partition."""
    values: list[bytes] = []
    with Wire(address) as wire:
        while len(values) < count:
            answer = wire.call(fetch_request(topic, len(values), bytes_max=8 << 20), FETCH)
            (found,) = answer.responses[0].partitions
            assert found.error_code == 0, found
            for batch in stored_batches(found.records):
                values += [record.value or b"" for record in read_records(batch) if record.offset >= len(values)]
    return values


def test_a_pipeline_longer_than_the_backlog_is_taken_whole_and_in_order(start_node: StartNode) -> None:
    node = start_node(BACKLOG)
    topics = [create_topic(node.kafka, f"pipeline-{number}") for number in range(PRODUCERS)]
    errors: list[int] = []

    def send(topic: str) -> None:
        with Wire(node.kafka) as wire:
            requests = [
                wire.frame(produce_request(topic, [number.to_bytes(4, "big") + bytes(BATCH_BYTES)]), PRODUCE)
                for number in range(BATCHES)
            ]
            sending = threading.Thread(target=lambda: wire.socket.sendall(b"".join(requests)))
            sending.start()
            for _ in requests:
                answer = wire.answer(0, PRODUCE)
                errors.append(answer.responses[0].partition_responses[0].error_code)
            sending.join()

    with HonestClient(node.kafka) as honest:
        senders = [threading.Thread(target=send, args=(topic,)) for topic in topics]
        for sender in senders:
            sender.start()
        honest.goes_on()
        for sender in senders:
            sender.join()
        honest.goes_on()
    assert errors == [0] * PRODUCERS * BATCHES
    for topic in topics:
        numbers = [int.from_bytes(value[:4], "big") for value in read_all(node.kafka, topic, BATCHES)]
        assert numbers == list(range(BATCHES))


def test_librdkafka_without_numbers_keeps_its_order_beyond_the_backlog(start_node: StartNode) -> None:
    node = start_node(BACKLOG)
    topics = [create_topic(node.kafka, f"librdkafka-{number}") for number in range(PRODUCERS)]
    count = 4_000
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({
        "bootstrap.servers": node.kafka,
        "enable.idempotence": False,
        "max.in.flight": 5,
        "acks": 1,
        "batch.size": 60_000,
        "linger.ms": 1,
        "queue.buffering.max.messages": PRODUCERS * count,
        "retry.backoff.ms": 1,
        "message.timeout.ms": PATIENCE_MS,
        "request.timeout.ms": PATIENCE_MS,  # what is sent again without numbers may come in another order
        "socket.timeout.ms": PATIENCE_MS,
    })  # fmt: skip
    for number in range(count):
        for topic in topics:
            producer.produce(topic, number.to_bytes(4, "big") + bytes(5_000), partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert failures == []
    for topic in topics:
        numbers = [int.from_bytes(value[:4], "big") for value in read_all(node.kafka, topic, count)]
        assert numbers == list(range(count))
