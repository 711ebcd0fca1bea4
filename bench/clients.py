"""Produce and consume MB/s of one node with confluent-kafka, on one and on many partitions.

Starts a node on an empty directory per partition count, produces `--megabytes` of 1 KB messages (acks=all,
idempotent, synced), reads them back from the write cache, then once more with the caches cold after a restart. The
client is part of what is measured: read the ratios of one run, not the absolutes.

    python bench/clients.py --partitions 1 1000 --megabytes 200
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

MESSAGE_BYTES = 1024


class Node(NamedTuple):
    process: subprocess.Popen[str]
    kafka: str


def start(directory: Path) -> Node:
    command = [
        sys.executable, "-m", "mainstem.cli.main", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
        "--rpc", "127.0.0.1:0", "--write-dir", str(directory / "write"), "--store-dir", str(directory / "store"),
        "--set", "pipeline.mode=off", "--set", "storage.write_cache_bytes=536870912",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready "):
            return Node(process, dict(word.split("=", 1) for word in line.split()[1:])["kafka"])
    raise SystemExit("the node did not start")


def produce(bootstrap: str, partitions: int, count: int) -> float:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("bench", partitions, 1)])["bench"].result()
    producer = Producer({
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 1_000_000,
    })  # fmt: skip
    value = os.urandom(MESSAGE_BYTES)
    begun = time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce("bench", value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(300):
        raise SystemExit("not everything was delivered")
    return count * MESSAGE_BYTES / (time.perf_counter() - begun) / 1e6


def consume(bootstrap: str, partitions: int, count: int) -> float:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "fetch.message.max.bytes": 4_000_000,
        "queued.max.messages.kbytes": 500_000,
    })  # fmt: skip
    consumer.assign([TopicPartition("bench", partition, 0) for partition in range(partitions)])
    begun = time.perf_counter()
    seen = 0
    while seen < count:
        messages = consumer.consume(min(10_000, count - seen), 60)
        if not messages:
            raise SystemExit(f"{seen} of {count} messages came")
        seen += len(messages)
    seconds = time.perf_counter() - begun
    consumer.close()
    return count * MESSAGE_BYTES / seconds / 1e6


def stop(node: Node) -> None:
    node.process.terminate()
    node.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 1000])
    parser.add_argument("--megabytes", type=int, default=200)
    options = parser.parse_args()
    count = options.megabytes * 1_000_000 // MESSAGE_BYTES
    print(f"{'partitions':>10} {'produce MB/s':>13} {'tail MB/s':>10} {'journal MB/s':>13}")
    for partitions in options.partitions:
        directory = Path(tempfile.mkdtemp(prefix="mainstem-bench-"))
        node = start(directory)
        try:
            produced = produce(node.kafka, partitions, count)
            tail = consume(node.kafka, partitions, count)
            stop(node)
            node = start(directory)
            journal = consume(node.kafka, partitions, count)
            print(f"{partitions:>10} {produced:>13.1f} {tail:>10.1f} {journal:>13.1f}")
        finally:
            stop(node)
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
