"""What does a broker without storage cost, and what do its readers cost the storage nodes?

Three nodes that store, once serving clients themselves and once behind two brokers, on this machine. Counted is the CPU
time of all their processes, from /proc:

    large     batches of up to 1 MB, as fast as they go: ms per MB
    small     single records of 100 bytes from 16 clients, in no hurry: µs per record
    readers   one queue at a steady rate, read from its end by 1 and by 100 consumers, through the brokers: the CPU of
              the storage nodes, ms per MB produced

    python -m bench.scale.broker_costs [--seconds 10]

Prints a line per measurement, ratios, and the target; `--json FILE` writes the ratios of readers as a result file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from bench.process_tree import cpu_of
from bench.report.document import targets_table
from bench.results import Results, Row
from bench.scale import rows
from bench.systems.mainstem import Mainstem
from mainstem.cli.dev.cluster import START_SECONDS_MAX, DevNode

STORES = 3
MAINSTEM = [sys.executable, "-m", "mainstem.cli.main"]
READERS_RATE = 300
"""Records of 1 KB a second: a hundred readers take 30 MB a second, which two cores can both send and read."""


@contextmanager
def cluster(brokers: int) -> Iterator[list[DevNode]]:
    port = random.randrange(10_000, 29_000)
    roles: dict[int, tuple[str, ...]] = dict.fromkeys(
        range(1, STORES + 1), ("storage", "nameserver") if brokers else ()
    )
    roles |= dict.fromkeys(range(STORES + 1, STORES + brokers + 1), ("broker",))
    with tempfile.TemporaryDirectory(prefix="mainstem-broker-costs-") as directory:
        nodes = [
            DevNode(Path(directory), node_id, port, STORES, ("pipeline.mode=off",), roles=roles[node_id])
            for node_id in roles
        ]
        try:
            for node in nodes:
                node.begin()
            for node in nodes:
                node.wait_ready(time.monotonic() + START_SECONDS_MAX)
            yield nodes
        finally:
            for node in nodes:
                node.stop()
            for node in nodes:
                node.wait_stopped(time.monotonic() + 10)


def cpu_seconds(nodes: Sequence[DevNode]) -> float:
    return sum(cpu_of(node.process.pid) for node in nodes if node.process is not None)


def metric_of(node: DevNode, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + " "))


def bench(nodes: Sequence[DevNode], *arguments: str) -> list[str]:
    addresses = ",".join(node.kafka for node in nodes if node.serves_clients)
    return [*MAINSTEM, "bench", *arguments, "--bootstrap", addresses, "--no-progress"]


def records_of(nodes: Sequence[DevNode], *arguments: str) -> int:
    """Run a producer; how many records it had acknowledged."""
    output = subprocess.run(
        [*bench(nodes, "produce", *arguments), "--json"], check=True, capture_output=True, text=True
    ).stdout
    return int(json.loads(output)["records"])


def produce(brokers: int, seconds: float) -> tuple[float, float]:
    """(CPU ms per MB of large batches, CPU µs per small record) of all nodes."""
    with cluster(brokers) as nodes:
        records_of(nodes, "--seconds", "2")
        before = cpu_seconds(nodes)
        large = records_of(nodes, "--seconds", str(seconds))
        large_ms = 1e3 * (cpu_seconds(nodes) - before) / (large * 1024 / 1e6)
        small_options = ("--record-bytes", "100", "--linger-ms", "0", "--producers", "16", "--rate", "3000")
        records_of(nodes, "--seconds", "2", *small_options)
        before = cpu_seconds(nodes)
        small = records_of(nodes, "--seconds", str(seconds), *small_options)
        return large_ms, 1e6 * (cpu_seconds(nodes) - before) / small


def readers(count: int, seconds: float) -> float:
    """CPU ms of the storage nodes per MB produced to a queue that so many consumers read."""
    with cluster(2) as nodes:
        stores = [node for node in nodes if not node.serves_clients]
        subprocess.run(
            [*MAINSTEM, "topic", "create", "read", "--partitions", "1", "--bootstrap", nodes[-1].kafka], check=True,
            capture_output=True,
        )  # fmt: skip
        addresses = ",".join(node.kafka for node in nodes if node.serves_clients)
        reading = subprocess.Popen(
            [sys.executable, "-m", "bench.scale.broker_costs", "--read", str(count), "--bootstrap", addresses],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(5)
        before = cpu_seconds(stores)
        records = records_of(
            nodes, "-t", "read", "--keep", "--seconds", str(seconds), "--rate", str(READERS_RATE), "--partitions", "1"
        )
        used = cpu_seconds(stores) - before
        answered, asked = (
            sum(metric_of(node, name) for node in nodes if node.serves_clients)
            for name in ("mainstem_link_tail_reads_total", "mainstem_link_reads_total")
        )
        print(f"readers  {count}: {answered:.0f} reads answered by the brokers, {asked:.0f} by the storage nodes")
        reading.terminate()
        print(f"readers  {count}: {reading.communicate()[0].strip()} records read of {records} produced")
        return 1e3 * used / (records * 1024 / 1e6)


def read(count: int, addresses: str) -> None:
    """Read the queue from its end with so many consumers, until SIGTERM; prints how many records they got together."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    got = [0] * count

    def follow(number: int) -> None:
        consumer = Consumer({
            "bootstrap.servers": addresses, "group.id": "nobody", "enable.auto.commit": False, "log_level": 0,
        })  # fmt: skip
        consumer.assign([TopicPartition("read", 0, OFFSET_END)])
        while not over.is_set():
            got[number] += len(consumer.consume(500, 0.5))

    threads = [threading.Thread(target=follow, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(got), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3, help="of 1 and 100 readers in turn; the median counts")
    parser.add_argument("--only-readers", action="store_true", help="measure nothing else")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--read", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read, options.bootstrap)
    if not options.only_readers:
        compare_ways(options.seconds)
    rounds = [(readers(1, options.seconds), readers(100, options.seconds)) for _ in range(options.rounds)]
    alone, crowd = (statistics.median(row) for row in zip(*rounds, strict=True))
    print(f"readers  1: {alone:.2f} ms/MB, 100: {crowd:.2f} ms/MB: {crowd / alone:.2f} x")
    results = Results()
    for one, many in rounds:
        results.add(Row(rows.BROKERS, rows.CROWD), Mainstem.name, {rows.TO_ONE_READER: many / one})
    print(targets_table(results, measured_only=True))
    if options.json is not None:
        results.save(options.json)


def compare_ways(seconds: float) -> None:
    """Straight to the nodes that store, and through brokers."""
    direct, through = produce(0, seconds), produce(2, seconds)
    for name, unit, one, other in zip(("large", "small"), ("ms/MB", "µs"), direct, through, strict=True):
        print(
            f"{name:<8} straight {one:.2f} {unit}, through brokers {other:.2f} {unit}: {other / one:.2f} x", flush=True
        )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
