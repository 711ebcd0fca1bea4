"""What do the readers of one queue cost the nodes that store it, when they read through brokers?

    python -m bench.scale.reader_costs [--seconds 8] [--rounds 3]

Three nodes that store and two brokers, on this machine. One producer sends a batch at a time at a steady rate, and 1 or
100 consumers read the queue from its end. Counted is the CPU time of the storage nodes per MB produced, less what they
take without anybody: each round measures first that, then one reader, then a hundred, all in the same cluster.

Rounds of one and of a hundred readers differ in the readers alone. A batch is one record, so that a busy machine makes
no larger ones of the same records, of which a byte would cost less. The storage nodes have cores of their own where
there are two or more (not with `--shared-cores`): else their caches hold what a hundred clients and the brokers did
between two of their turns, and what that costs is counted as theirs.

Prints per kind what the storage nodes did besides (blocks written, messages of write groups, reads asked of them),
ratios, and the target; `--json FILE` writes the ratios as a result file.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from bench.machine import CpuSets, share_cores
from bench.process_tree import ProcessTree
from bench.report.document import targets_table
from bench.results import Results, Row
from bench.scale import rows
from bench.scale.broker_costs import MAINSTEM, bench, cluster, cpu_seconds, metric_of
from bench.systems.mainstem import Mainstem
from mainstem.cli.dev.cluster import DevNode

TOPIC = "read"
CROWD = 100
RATE = 50
RECORD_BYTES = 4096
"""A hundred readers take 20 MB a second in 5,000 answers, which the brokers and clients manage on one core."""
BEGIN_SECONDS_MAX = 60.0
"""Until every consumer has read something."""
BLOCKS, BYTES = "mainstem_journal_blocks_total", "mainstem_append_bytes_total"
MESSAGES = "mainstem_raft_exchange_received_messages_total"
COUNTED = (BLOCKS, BYTES, MESSAGES)
READS_ANSWERED, READS_ASKED = "mainstem_link_tail_reads_total", "mainstem_link_reads_total"


class Look(NamedTuple):
    """The counters of the nodes at one moment."""

    at: float
    cpu: float
    """Seconds, of the nodes that store."""
    counters: dict[str, float]
    """By name: `COUNTED` of the nodes that store, reads of the brokers."""


class Span(NamedTuple):
    """Between two looks, per second."""

    cpu: float
    counters: dict[str, float]


def stores_of(nodes: Sequence[DevNode]) -> list[DevNode]:
    return [node for node in nodes if not node.serves_clients]


def brokers_of(nodes: Sequence[DevNode]) -> list[DevNode]:
    return [node for node in nodes if node.serves_clients]


def look(nodes: Sequence[DevNode]) -> Look:
    stores, brokers = stores_of(nodes), brokers_of(nodes)
    counters = {name: sum(metric_of(node, name) for node in stores) for name in COUNTED}
    counters |= {name: sum(metric_of(node, name) for node in brokers) for name in (READS_ANSWERED, READS_ASKED)}
    return Look(time.monotonic(), cpu_seconds(stores), counters)


def between(before: Look, after: Look) -> Span:
    seconds = after.at - before.at
    counters = {name: (after.counters[name] - count) / seconds for name, count in before.counters.items()}
    return Span((after.cpu - before.cpu) / seconds, counters)


def watched(nodes: Sequence[DevNode], seconds: float) -> Span:
    before = look(nodes)
    time.sleep(seconds)
    return between(before, look(nodes))


def with_readers(nodes: Sequence[DevNode], count: int, seconds: float) -> Span:
    """While so many consumers read what one producer sends."""
    addresses = ",".join(node.kafka for node in brokers_of(nodes))
    load = ["-t", TOPIC, "--keep", "--partitions", "1", "--seconds", str(BEGIN_SECONDS_MAX + seconds)]
    load += ["--rate", str(RATE), "--record-bytes", str(RECORD_BYTES), "--batch-bytes", str(RECORD_BYTES)]
    producing = subprocess.Popen(bench(nodes, "produce", *load, "--linger-ms", "0"), stdout=subprocess.DEVNULL)
    reading = subprocess.Popen(
        [sys.executable, "-m", "bench.scale.reader_costs", "--read", str(count), "--bootstrap", addresses],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert reading.stdout is not None
        if reading.stdout.readline() != "all read\n":
            raise SystemExit(f"of {count} consumers some have read nothing in {BEGIN_SECONDS_MAX:.0f} s")
        span = watched(nodes, seconds)
    finally:
        for process in (producing, reading):
            process.terminate()
            process.wait()
    return span


def read(count: int, addresses: str, topic: str = TOPIC, rack: str = "") -> None:
    """Read a topic's first queue from its end with so many consumers until SIGTERM, and say so when each has read
    something. `rack`: they are in this one; empty: in none."""
    over, left = threading.Event(), threading.Semaphore(0)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    def follow() -> None:
        consumer = Consumer({
            "bootstrap.servers": addresses, "group.id": "nobody", "enable.auto.commit": False, "log_level": 0,
            "client.rack": rack,
        })  # fmt: skip
        consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        while not consumer.consume(1, 0.5):
            pass
        left.release()
        while not over.is_set():
            consumer.consume(500, 0.5)

    for _ in range(count):
        threading.Thread(target=follow, daemon=True).start()
    if all(left.acquire(timeout=BEGIN_SECONDS_MAX) for _ in range(count)):
        print("all read", flush=True)
        over.wait()
    os._exit(1)


def cost_of(span: Span, idle: Span) -> float:
    """CPU ms per MB, less what the nodes take without anybody."""
    return 1e3 * (span.cpu - idle.cpu) / (span.counters[BYTES] / 1e6)


def tell(count: int, span: Span, idle: Span) -> float:
    """The cost, printed with what else the nodes did."""
    counters, cost = span.counters, cost_of(span, idle)
    print(
        f"{count:>3} readers: {cost:.0f} ms/MB ({1e3 * span.cpu:.0f} ms/s, idle {1e3 * idle.cpu:.0f}) at "
        f"{counters[BYTES] / 1e6:.2f} MB/s; blocks {counters[BLOCKS]:.1f}/s, messages of write groups "
        f"{counters[MESSAGES] - idle.counters[MESSAGES]:.0f}/s more than idle; reads answered by brokers "
        f"{counters[READS_ANSWERED]:.0f}/s, asked of the nodes that store {counters[READS_ASKED]:.2f}/s",
        flush=True,
    )
    return cost


def share(nodes: Sequence[DevNode], cores: CpuSets) -> None:
    """The nodes that store get cores of their own; all other processes of this bench inherit the rest."""
    for node in stores_of(nodes):
        assert node.process is not None, "it runs"
        ProcessTree(node.process.pid).pin(cores.broker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3, help="of nobody, 1 and 100 readers; the median counts")
    parser.add_argument("--shared-cores", action="store_true", help="all processes run on all cores")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--read", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read, options.bootstrap)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    results, cores = Results(), share_cores()
    if not options.shared_cores:
        os.sched_setaffinity(0, cores.load)
    with cluster(2) as nodes:
        if not options.shared_cores:
            share(nodes, cores)
        subprocess.run(
            [*MAINSTEM, "topic", "create", TOPIC, "--partitions", "1", "--bootstrap", nodes[-1].kafka], check=True,
            capture_output=True,
        )  # fmt: skip
        with_readers(nodes, 1, 1.0)  # everything has run once
        rounds = []
        for _ in range(options.rounds):
            idle = watched(nodes, options.seconds)
            rounds.append([tell(count, with_readers(nodes, count, options.seconds), idle) for count in (1, CROWD)])
    for one, many in rounds:
        results.add(Row(rows.BROKERS, rows.CROWD), Mainstem.name, {rows.TO_ONE_READER: many / one})
    ratios = [many / one for one, many in rounds]
    print(f"readers 1 → {CROWD}: {statistics.median(ratios):.2f} x ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
    print(targets_table(results, measured_only=True))
    if options.json is not None:
        results.save(options.json)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
