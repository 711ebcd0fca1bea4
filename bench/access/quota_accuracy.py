"""Measures how exactly a node holds clients to their quotas.

    python -m bench.access.quota_accuracy --seconds 10
    python -m bench.access.quota_accuracy --seconds 10 --cluster

One line per quota and number of clients: what librdkafka got through in so many seconds, as a share of what the quota
allows in them. All clients of a line bear one client id, and so share one quota; each sends, or reads, as fast as it
can. With `--cluster` there are three nodes that share quotas (`quota.cluster_wide`), and the clients of a
line are spread over them as it says; producers and consumers, which have quotas of their own, go on at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.nodes.timed_node import MIB, TimedNode, Wire, create
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
NODES = 3
CLUSTER_PARTITIONS = 24
SPREADS = ((1, 0, 0), (1, 1, 1), (4, 1, 0), (5, 2, 1))
"""Clients on each node."""
PORT = 23_600
"""Of the cluster: free ones are not looked for."""


class Passed:
    """Bytes that came through, counted by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bytes = 0
        self.ended = False

    def add(self, size_bytes: int) -> None:
        with self._lock:
            self.bytes += size_bytes


def produce(address: str, client_id: str, passed: Passed, partitions: Sequence[int] = range(PARTITIONS)) -> None:
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
            producer.produce(TOPIC, value, partition=partitions[number % len(partitions)])
            number += 1
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(5)


def consume(address: str, client_id: str, passed: Passed, partitions: Sequence[int] = range(PARTITIONS)) -> None:
    consumer = Consumer({
        "bootstrap.servers": address, "client.id": client_id, "group.id": client_id, "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in partitions])
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


def share(address: str, client_id: str, works: Sequence[Callable[[str, str, Passed], None]], seconds: float) -> float:
    """The bytes that came through in `seconds` to as many clients as there is work, of those that may."""
    passed = Passed()
    threads = [threading.Thread(target=work, args=(address, client_id, passed)) for work in works]
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


@contextmanager
def cluster(directory: str) -> Iterator[str]:
    """The address of one of three nodes that share quotas."""
    ready = subprocess.Popen(
        [
            sys.executable, "-m", "mainstem.cli.main", "dev", "cluster", "3", "--dir", directory, "--port", str(PORT),
            "--set", "quota.cluster_wide=true", "--set", "pipeline.mode=off",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert ready.stdout is not None
        for line in ready.stdout:
            if "ready" in line.lower():
                break
        yield f"127.0.0.1:{PORT + 1}"
    finally:
        ready.terminate()
        ready.wait()


def led(address: str) -> list[list[int]]:
    """The partitions that each node leads, most first, once all nodes lead some."""
    admin = AdminClient({"bootstrap.servers": address})
    while True:
        by_node: dict[int, list[int]] = {}
        for number, partition in admin.list_topics(TOPIC, timeout=ANSWER_SECONDS_MAX).topics[TOPIC].partitions.items():
            by_node.setdefault(partition.leader, []).append(number)
        if len(by_node) == NODES and -1 not in by_node:
            return sorted(by_node.values(), key=len, reverse=True)
        time.sleep(0.5)


def measure_cluster(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory, cluster(directory) as address:
        wire = Wire(address, ANSWER_SECONDS_MAX)
        create(wire, TOPIC, CLUSTER_PARTITIONS)
        nodes = led(address)
        share(address, "filler", [partial(produce, partitions=each) for each in nodes], seconds)
        for spread in SPREADS:
            shares = {}
            with ThreadPoolExecutor() as at_once:
                for key, work in ((PRODUCER_BYTE_RATE, produce), (CONSUMER_BYTE_RATE, consume)):
                    client_id = f"{key}-{'-'.join(map(str, spread))}"
                    limit(wire, client_id, key)
                    works = [
                        partial(work, partitions=partitions)
                        for partitions, clients in zip(nodes, spread, strict=True)
                        for _ in range(clients)
                    ]
                    shares[key] = at_once.submit(share, address, client_id, works, seconds)
            for key, found in shares.items():
                print(f"{key:20} clients on nodes {spread} {found.result():6.3f} of {RATE // MIB} MiB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="How exactly quotas are held.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--cluster", action="store_true", help="Three nodes that share quotas.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    if arguments.cluster:
        measure_cluster(arguments.seconds)
    else:
        measure_node(arguments.seconds)


def measure_node(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as directory, TimedNode(directory) as node:
        wire = Wire(node.address, ANSWER_SECONDS_MAX)
        create(wire, TOPIC, PARTITIONS)
        free = share(node.address, "free", [produce], seconds)
        print(f"{'no quota':20} 1 client  {free:6.2f} of {RATE // MIB} MiB/s")
        for key, work in ((PRODUCER_BYTE_RATE, produce), (CONSUMER_BYTE_RATE, consume)):
            for clients in (1, 4):
                client_id = f"{key}-{clients}"
                limit(wire, client_id, key)
                found = share(node.address, client_id, [work] * clients, seconds)
                print(f"{key:20} {clients} clients {found:6.3f} of {RATE // MIB} MiB/s", flush=True)


if __name__ == "__main__":
    main()
