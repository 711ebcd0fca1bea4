"""How fast `mainstem store export` writes a topic, what that does to the node's event loop, and whether Kafka reads it.

    python -m bench.store.export --mebibytes 256 --kafka

A node of its own is filled over Kafka's protocol and exported from, on this machine. A line with megabytes per second
and the largest turn of the node's event loop meanwhile follows. With `--kafka`, Kafka's `kafka-dump-log` reads what was
written.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.errors import BenchError
from bench.nodes.timed_node import MIB, TimedNode
from bench.store import kafka_dump

TOPIC = "exported"


def mainstem(address: str, *arguments: str) -> str:
    """The output of a command. Raises BenchError when it fails."""
    command = [sys.executable, "-m", "mainstem.cli.main", *arguments, "--bootstrap", address]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if done.returncode:
        raise BenchError(f"mainstem {arguments[0]} {arguments[1]}: {done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--segment-bytes", default="64MiB")
    parser.add_argument("--kafka", action="store_true", help="have Kafka read what was written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, TimedNode(directory) as node:
        mainstem(node.address, "topic", "create", TOPIC, "--partitions", str(options.partitions))
        records = ("--record-bytes", "1000", "--bytes", str(options.mebibytes * MIB))
        mainstem(node.address, "bench", "produce", "--topic", TOPIC, *records, "--keep")
        node.turns()
        root = Path(directory) / "exported"
        where = ("--to", str(root), "--segment-bytes", options.segment_bytes)
        written = json.loads(mainstem(node.address, "store", "export", TOPIC, *where, "--json"))
        longest = node.turns().longest
        count, batches = (sum(it[key] for it in written["partitions"]) for key in ("bytes", "batches"))
        print(
            f"{count / written['seconds'] / 1e6:.0f} MB/s, {count / 1e6:.0f} MB in {batches} batches; "
            f"largest turn of the node's loop {longest:.1f} ms"
        )
        if options.kafka:
            print(kafka_dump.check(sorted(root.glob("*/*.log")), batches))


if __name__ == "__main__":
    main()
