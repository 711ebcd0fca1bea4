"""What does a broker without storage cost?

Three nodes that store, once serving clients themselves and once behind two brokers, on this machine. Counted is the CPU
time of all their processes, from /proc:

    large     batches of up to 1 MB, as fast as they go: ms per MB
    small     single records of 100 bytes from 16 clients, in no hurry: µs per record

    python -m bench.scale.broker_costs [--seconds 10]

Prints a line per measurement, with the ratio. Beside it, `reader_costs` measures what readers through brokers cost the
nodes that store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.process_tree import cpu_of
from mainstem.cli.dev.cluster import START_SECONDS_MAX, DevNode

STORES = 3
MAINSTEM = [sys.executable, "-m", "mainstem.cli.main"]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    seconds = parser.parse_args().seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no node is left behind
    direct, through = produce(0, seconds), produce(2, seconds)
    for name, unit, one, other in zip(("large", "small"), ("ms/MB", "µs"), direct, through, strict=True):
        print(
            f"{name:<8} straight {one:.2f} {unit}, through brokers {other:.2f} {unit}: {other / one:.2f} x", flush=True
        )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    main()
