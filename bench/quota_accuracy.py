"""Measures how exactly a node holds clients to their quotas.

    python -m bench.quota_accuracy --seconds 10

One line per quota and number of clients: what librdkafka got through in so many seconds, as a share of what the quota
allows in them. All clients of a line bear one client id, and so share one quota; each sends, or reads, as fast as it
can.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.timed_node import MIB, TimedNode, Wire, create
from mainstem.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlteredQuotas,
    QuotaEntityPart,
    QuotaOperation,
)
from mainstem.security.quotas.quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE

RATE = 4 * MIB
RECORD_BYTES = 10_000
SETTLING_SECONDS = 2.0
"""In which the first burst is used up."""
VERSION = 1
ANSWER_SECONDS_MAX = 30.0
TOPIC = "limited"
PARTITIONS = 4


class Passed:
    """Bytes that came through, counted by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0
        self.ended = False

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.bytes += size_bytes


def produce(address: str, client_id: str, passed: Passed) -> None:
    def delivered(error: object, message: Message) -> None:
        if error is None:
            passed.add(RECORD_BYTES)

    producer = Producer({
        "bootstrap.servers": address, "client.id": client_id, "linger.ms": 5, "queue.buffering.max.kbytes": 8192,
        "on_delivery": delivered, "message.timeout.ms": 60_000,
    })  # fmt: skip
    value = os.urandom(RECORD_BYTES)
    number = 0
    while not passed.ended:
        try:
            producer.produce(TOPIC, value, partition=number % PARTITIONS)
            number += 1
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(5)


def consume(address: str, client_id: str, passed: Passed) -> None:
    consumer = Consumer({
        "bootstrap.servers": address, "client.id": client_id, "group.id": client_id, "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    while not passed.ended:
        for message in consumer.consume(100, timeout=0.05):
            value = message.value()
            if message.error() is None and value is not None:
                passed.add(len(value))
    consumer.close()


def limit(wire: Wire, client_id: str, key: str) -> None:
    ops = (QuotaOperation(key=key, value=float(RATE), remove=False),)
    entity = (QuotaEntityPart(entity_type="client-id", entity_name=client_id),)
    request = AlterClientQuotasRequest(entries=(AlteredQuotas(entity=entity, ops=ops),), validate_only=False)
    (answer,) = wire.call(request, VERSION).entries
    assert not answer.error_code, answer.error_message


def share(
    address: str, client_id: str, work: Callable[[str, str, Passed], None], clients: int, seconds: float
) -> float:
    """What came through in `seconds`, of what may."""
    passed = Passed()
    threads = [threading.Thread(target=work, args=(address, client_id, passed)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLING_SECONDS)
    before, begun = passed.bytes, time.perf_counter()
    time.sleep(seconds)
    found = (passed.bytes - before) / (RATE * (time.perf_counter() - begun))
    passed.ended = True
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="How exactly quotas are held.")
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory, TimedNode(directory) as node:
        wire = Wire(node.address, ANSWER_SECONDS_MAX)
        create(wire, TOPIC, PARTITIONS)
        free = share(node.address, "free", produce, 1, seconds)
        print(f"{'no quota':20} 1 client  {free:6.2f} of {RATE // MIB} MiB/s")
        for key, work in ((PRODUCER_BYTE_RATE, produce), (CONSUMER_BYTE_RATE, consume)):
            for clients in (1, 4):
                client_id = f"{key}-{clients}"
                limit(wire, client_id, key)
                found = share(node.address, client_id, work, clients, seconds)
                print(f"{key:20} {clients} clients {found:6.3f} of {RATE // MIB} MiB/s", flush=True)


if __name__ == "__main__":
    main()
