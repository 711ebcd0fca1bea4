"""Measures what a leader saves when the readers of a queue are spread over its replicas.

    python -m bench.scale.spread_reads [--seconds 6] [--rounds 2] [--readers 30]

Three nodes on this machine, a topic with `read.spread.enable` and one without, of one partition each. One producer
sends a batch at a time at a steady rate, and so many consumers that name a rack read the queue from its end. Counted is
the CPU time of each node; both topics take turns in the same cluster. Prints per kind what the leader and the busier of
the others take, and the leader's as a ratio of what it takes when nobody is sent away.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from confluent_kafka.admin import AdminClient

from bench.scale.broker_costs import MAINSTEM, bench, cluster, cpu_seconds
from bench.scale.reader_costs import BEGIN_SECONDS_MAX, RATE, RECORD_BYTES, read
from mainstem.cli.dev.cluster import DevNode

KEPT, SPREAD = "kept", "spread"


def leader_of(nodes: Sequence[DevNode], topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": nodes[0].kafka})
    leader: int = admin.list_topics(topic, timeout=BEGIN_SECONDS_MAX).topics[topic].partitions[0].leader
    return leader


def measured(nodes: Sequence[DevNode], topic: str, readers: int, seconds: float) -> tuple[float, float]:
    """CPU seconds per second of the leader, and of the busier of the others, while so many consumers read."""
    load = ["-t", topic, "--keep", "--partitions", "1", "--seconds", str(BEGIN_SECONDS_MAX + seconds)]
    load += ["--rate", str(RATE), "--record-bytes", str(RECORD_BYTES), "--batch-bytes", str(RECORD_BYTES)]
    producing = subprocess.Popen(bench(nodes, "produce", *load, "--linger-ms", "0"), stdout=subprocess.DEVNULL)
    command = [sys.executable, "-m", "bench.scale.spread_reads", "--read", topic, "--readers", str(readers)]
    addresses = ",".join(node.kafka for node in nodes)
    reading = subprocess.Popen([*command, "--bootstrap", addresses], stdout=subprocess.PIPE, text=True)
    try:
        assert reading.stdout is not None
        if reading.stdout.readline() != "all read\n":
            raise SystemExit(f"of {readers} consumers some have read nothing in {BEGIN_SECONDS_MAX:.0f} s")
        before, began = [cpu_seconds([node]) for node in nodes], time.monotonic()
        time.sleep(seconds)
        taken = [(cpu_seconds([node]) - first) for node, first in zip(nodes, before, strict=True)]
        passed = time.monotonic() - began
    finally:
        for process in (producing, reading):
            process.terminate()
            process.wait()
    leader = taken.pop(leader_of(nodes, topic) - 1)
    return leader / passed, max(taken) / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--readers", type=int, default=30)
    parser.add_argument("--read", default="", help=argparse.SUPPRESS)
    parser.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.readers, options.bootstrap, options.read, rack="here")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    found: dict[str, list[tuple[float, float]]] = {KEPT: [], SPREAD: []}
    with cluster(0) as nodes:
        for topic in found:
            spread = ["--set", "read.spread.enable=true"] if topic == SPREAD else []
            subprocess.run(
                [*MAINSTEM, "topic", "create", topic, "--partitions", "1", *spread, "--bootstrap", nodes[0].kafka],
                check=True, capture_output=True,
            )  # fmt: skip
        for _ in range(options.rounds):
            for topic, spans in found.items():
                spans.append(measured(nodes, topic, options.readers, options.seconds))
                leader, other = (1e3 * it for it in spans[-1])
                print(f"{topic:>6}: leader {leader:.0f} ms/s, the busier of the others {other:.0f}", flush=True)
    ratios = [spread[0] / kept[0] for kept, spread in zip(found[KEPT], found[SPREAD], strict=True)]
    told = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"the leader's processor with {options.readers} readers spread: {statistics.median(ratios):.2f} x ({told})")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
