"""How many requests to an S3 store a GB of messages costs: moved or written there, and read from there.

    python -m bench.store.reads.remote_requests --mebibytes 1024 --partitions 16 --segment-bytes 67108864
    python -m bench.store.reads.remote_requests --mebibytes 1024 --partitions 2000
    python -m bench.store.reads.remote_requests --mebibytes 1024 --partitions 16 --shared

A node of its own takes the messages in; Spark splits, merges and moves them; the node drops its own copies, is started
anew with nothing in memory, and a Kafka client reads everything from the beginning. The server (moto's) counts the
requests, so that nothing is left out: attempts, parts, what lies beside files. Queues that fill a segment
(`--segment-bytes`) make objects of their own; the others lie in packed files. At the end the objects in the bucket are
counted that are files, by what their names end in.

With `--shared` the store is the queue store of the node: Spark writes runs there, reads them and writes merged files,
and nothing is moved. The requests of the node itself meanwhile count too: it looks at each file before that counts, and
tells the store what its log decided."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from tools.s3_server import CREDENTIALS, Counts, S3Server, s3_server

from bench.errors import BenchError
from bench.store.tier_costs import priced
from bench.systems.mainstem import Mainstem
from bench.systems.system import Durability, Node, Setup
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.object_stores.urls import open_object_store

MIB, TIB = 1 << 20, 1 << 40
TOPIC = "tiered"
SECONDS_MAX = 300.0
LOCAL_COPIES_GO_SECONDS_MAX = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--segment-bytes", type=int, default=64 * MIB)
    parser.add_argument("--shared", action="store_true", help="the queue store itself lies in the object store")
    options = parser.parse_args()
    for name, value in CREDENTIALS.items():
        os.environ[f"AWS_{name.upper()}"] = value
    with tempfile.TemporaryDirectory() as directory, s3_server("mainstem-bench") as s3:
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        settings = {
            "store_dir" if options.shared else "remote_dir": f"s3://{s3.bucket}/bench",
            "object_store.endpoint": s3.endpoint,
            "storage.retention_check_seconds": "1",
        }
        setup = Setup(
            directory=Path(directory),
            cpus=cpus,
            cores_count=len(cpus),
            durability=Durability.SYNC,
            settings=settings,
        )
        node = Mainstem().start(setup)
        try:
            create(node, options.partitions, options.segment_bytes, moves=not options.shared)
            records = options.mebibytes * MIB // 1024
            mainstem(
                "bench", "produce", "--topic", TOPIC, "--records", str(records), "--keep", "--bootstrap", node.address
            )
            before = s3.counts()
            mainstem("split", "run", "--once", "--http", http_of(node))
            if options.shared:
                mainstem("store", "merge", "--once", "--http", http_of(node))
            else:
                before = s3.counts()
                mainstem("store", "tier", "--once", "--http", http_of(node))
            moved = s3.counts().since(before)
            moved_bytes = int(usage_of(node)["remote_bytes"]) if options.shared else await_local_copies_gone(node)
            node.stop()
            node = Mainstem().start(setup)
            before = s3.counts()
            read = json.loads(
                mainstem(
                    "bench", "consume", "--topic", TOPIC, "-n", str(records), "--json", "--bootstrap", node.address
                )
            )
            if read["records"] != records:
                raise BenchError(f"{read['records']} of {records} records were read")
            show("written and merged" if options.shared else "moved", moved, moved_bytes)
            show("read", s3.counts().since(before), moved_bytes)
            if options.shared:
                show_files(node)
            show_objects(s3, moved_bytes)
        finally:
            node.stop()


def create(node: Node, partitions: int, segment_bytes: int, *, moves: bool) -> None:
    """`moves`: its messages go to the remote tier at once."""
    configs = {"segment.bytes": str(segment_bytes)}
    if moves:
        configs |= {"remote.storage.enable": "true", "local.retention.ms": "1"}
    told = [word for name, value in configs.items() for word in ("--set", f"{name}={value}")]
    mainstem("topic", "create", TOPIC, "--partitions", str(partitions), *told, "--bootstrap", node.address)


def mainstem(*arguments: str) -> str:
    """Run a command of the command line; returns what it prints. Raises BenchError when it fails."""
    command = [sys.executable, "-m", "mainstem.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode:
        raise BenchError(f"mainstem {' '.join(arguments[:2])}: {done.stderr[-2000:]}")
    return done.stdout


def http_of(node: Node) -> str:
    assert node.http is not None
    return node.http


def await_local_copies_gone(node: Node) -> int:
    """The bytes of batches in the store, once the node has none of them on its own disk. Raises BenchError."""
    until = time.monotonic() + LOCAL_COPIES_GO_SECONDS_MAX
    while (usage := usage_of(node))["stored_bytes"] or not usage["remote_bytes"]:
        if time.monotonic() > until:
            raise BenchError(f"local copies did not go: {usage}")
        time.sleep(0.5)
    return int(usage["remote_bytes"])


def usage_of(node: Node) -> Any:
    with urllib.request.urlopen(f"http://{http_of(node)}/v1/store/usage/{TOPIC}", timeout=30) as answer:
        return json.load(answer)["topics"][0]


def show(what: str, counts: Counts, batch_bytes: int) -> None:
    """One line per kind of request, per GB of batches."""
    gigabytes = batch_bytes / 1e9
    transferred = (counts.received_bytes + counts.sent_bytes) / batch_bytes
    print(
        f"{what}: {gigabytes:.2f} GB of batches, {transferred:.3f} times that transferred, "
        f"{priced(counts.requests) / gigabytes:.6f} dollars per GB"
    )
    for name, count in sorted(counts.requests.items(), key=lambda item: -item[1]):
        print(f"    {name:26}{count:>8,}{count / gigabytes:>10,.1f} per GB")


def show_objects(s3: S3Server, batch_bytes: int) -> None:
    """One line per kind of object that is a file or a part of one, per TiB of batches."""
    for suffix, count in sorted(asyncio.run(_objects(s3)).items()):
        print(f"    objects, .{suffix:16}{count:>8,}{count * TIB / batch_bytes:>10,.0f} per TiB")


async def _objects(s3: S3Server) -> Counter[str]:
    """The objects of files, by what their names end in."""
    config = ObjectStoreConfig(endpoint=s3.endpoint, options=CREDENTIALS)
    store = open_object_store(f"s3://{s3.bucket}/bench", config)
    found: Counter[str] = Counter()
    after = ""
    while page := await store.page_for_upkeep("", after):
        after = page[-1].name
        found.update(one.name.rpartition(".")[2] for one in page if "/files/" in one.name)
    return found


def show_files(node: Node) -> None:
    """One line per kind of file that counts, per TiB of batches."""
    with urllib.request.urlopen(f"http://{http_of(node)}/v1/store/usage", timeout=30) as answer:
        levels = json.load(answer)["remote_levels"]
    stored = sum(level["batch_bytes"] for level in levels)
    for level in levels:
        named = f"{level['kind']}, level {level['level']}"
        print(f"    {named:26}{level['files']:>8,}{level['files'] * TIB / stored:>10,.0f} per TiB")


if __name__ == "__main__":
    main()
