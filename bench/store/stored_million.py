"""A million queues in 1,000 topics with 1,000 different retentions, from creation to reads of what was merged.

A node is started on an empty directory; the topics are created, a record is written to every queue, and what was
written is split by Spark, round after round; then everything is merged, the node is started again, and queues are read.
Each row has the seconds, the node's own CPU seconds, its longest stall (as in `bench/scale/queues.py`), and its memory.

    python -m bench.store.stored_million                          1,000 × 1,000, two rounds
    python -m bench.store.stored_million --topics 100 --partitions 100

Targets: at most 300 MB over the idle node, a restart within 3 s, any read within 20 ms when warm. Every wait is
bounded; a run takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.scale.queues import (
    CREATE_TOPICS,
    WAIT_SECONDS_MAX,
    Client,
    Measured,
    Node,
    Table,
    describe_log_dirs,
    metadata,
    probing,
    start,
)
from mainstem.protocol.encoded_array import elements
from mainstem.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from mainstem.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from mainstem.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from mainstem.protocol.records.builder import NewRecord, build_batch
from mainstem.protocol.records.header import walk_batches

PRODUCE, FETCH = 0, 1
RECORD_BYTES = 200
HOUR_MS = 3_600_000
READS = 300
SPARK_SECONDS_MAX = 1_800.0
TOPICS_PER_CREATE = 100
IDLE_SECONDS = 10
"""A node gives memory that nothing uses back to the machine some seconds after its work is over."""
CACHES = (
    "storage.write_cache_bytes=67108864",
    "queue_store.read_cache_bytes=33554432",
    "queue_store.index_cache_bytes=33554432",
    "journal.index_cache_bytes=33554432",
)
"""Small ones, which fill up whatever the number of queues: the memory is that of the queues."""


class Shape(NamedTuple):
    topics: int
    partitions: int


class Reads(NamedTuple):
    """Milliseconds of single reads of queues drawn at random."""

    median: float
    p99: float
    longest: float

    def __str__(self) -> str:
        return f"one read: median {self.median:.1f} ms, p99 {self.p99:.1f} ms, longest {self.longest:.1f} ms"


def name_of(topic: int) -> str:
    return f"kept-{topic:04d}"


def create(client: Client, shape: Shape) -> None:
    """Topic by topic another retention: a day, and an hour more for each."""
    for first in range(0, shape.topics, TOPICS_PER_CREATE):
        numbers = range(first, min(shape.topics, first + TOPICS_PER_CREATE))
        wanted = tuple(
            CreatableTopic(
                name=name_of(number), num_partitions=shape.partitions, replication_factor=1, assignments=(),
                configs=(CreatableTopicConfig(name="retention.ms", value=str((24 + number) * HOUR_MS)),),
            )
            for number in numbers
        )  # fmt: skip
        request = CreateTopicsRequest(topics=wanted, timeout_ms=60_000)
        response: CreateTopicsResponse = client.ask(CREATE_TOPICS, 7, request, CreateTopicsResponse)
        if refused := [topic for topic in elements(response.topics) if topic.error_code]:
            raise SystemExit(f"topics were refused: {refused[:3]}")


def content(round_number: int) -> bytes:
    return random.Random(round_number).randbytes(RECORD_BYTES)


def write(client: Client, shape: Shape, round_number: int) -> str:
    """A record to each queue, a topic a request."""
    batch = build_batch([NewRecord(int(time.time() * 1000), None, content(round_number))]).data
    for topic in range(shape.topics):
        partitions = tuple(PartitionProduceData(index=index, records=batch) for index in range(shape.partitions))
        request = ProduceRequest(
            acks=-1, timeout_ms=60_000, topic_data=(TopicProduceData(name=name_of(topic), partition_data=partitions),)
        )
        response: ProduceResponse = client.ask(PRODUCE, 9, request, ProduceResponse)
        answered = elements(elements(response.responses)[0].partition_responses)
        refused = [one for one in answered if one.error_code or one.base_offset != round_number]
        if refused or len(answered) != shape.partitions:
            raise SystemExit(f"batches were refused: {refused[:3]}")
    return f"{shape.topics * shape.partitions * len(batch) / 1e6:.0f} MB"


def read(client: Client, topic: int, partition: int, rounds: int) -> float:
    """Read a queue from its start to its end; milliseconds. Exits where its records are not those written."""
    begun = time.perf_counter()
    records, offset = b"", 0
    while offset < rounds:
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=(FetchTopic(topic=name_of(topic), partitions=(asked,)),),
        )
        response: FetchResponse = client.ask(FETCH, 12, request, FetchResponse)
        found = elements(elements(response.responses)[0].partitions)[0]
        parts = found.records if isinstance(found.records, tuple) else (found.records or b"",)
        got = b"".join(map(bytes, parts))
        if found.error_code or not got:
            raise SystemExit(f"{name_of(topic)}-{partition} ends at {offset}: {found}")
        records += got
        offset = max(header.next_offset for _, header in walk_batches(got))
    took = time.perf_counter() - begun
    if any(content(number) not in records for number in range(rounds)):
        raise SystemExit(f"{name_of(topic)}-{partition} has not what was written")
    return 1000 * took


def read_some(client: Client, shape: Shape, rounds: int, seed: int) -> Reads:
    drawn = random.Random(seed)
    places = [(drawn.randrange(shape.topics), drawn.randrange(shape.partitions)) for _ in range(READS)]
    took = sorted(read(client, topic, partition, rounds) for topic, partition in places)
    return Reads(statistics.median(took), took[int(0.99 * len(took))], took[-1])


def spark(node: Node, *command: str) -> None:
    """Run one of Mainstem's Spark jobs to its end."""
    arguments = [sys.executable, "-m", "mainstem.cli.main", *command, "--once", "--http", node.http]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=SPARK_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def usage(node: Node) -> str:
    with urllib.request.urlopen(f"http://{node.http}/v1/store/usage", timeout=WAIT_SECONDS_MAX) as answer:
        return f"{len(answer.read()) / 1e6:.1f} MB"


def files_note(directory: Path) -> str:
    files = [path for path in (directory / "store").rglob("*") if path.is_file()]
    return f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.0f} MB on disk 2"


def run(shape: Shape, rounds: int, directory: Path, table: Table) -> None:
    node = start(directory, *CACHES)
    try:
        with probing(node) as watcher:
            client = Client(node.host, node.port)

            def measured(what: str, action: Callable[[], Measured]) -> Measured:
                watcher.longest()
                before, begun = node.cpu_seconds, time.perf_counter()
                result = action()
                seconds = time.perf_counter() - begun
                cpu, said = node.cpu_seconds - before, "" if result is None else str(result)
                table.add(what, node, seconds, cpu, watcher.longest(), said)
                return result

            idle = node.resident_bytes
            table.add("start, empty", node, node.ready_seconds, node.cpu_seconds, None, "")
            measured(f"create {shape.topics} × {shape.partitions}", lambda: create(client, shape))
            for number in range(rounds):
                measured(f"write to all, round {number + 1}", partial(write, client, shape, number))
                measured("split", lambda: spark(node, "split", "run"))
                print(f"{'':34} {files_note(directory)}")
            measured("read, from runs", lambda: read_some(client, shape, rounds, 1))
            measured("merge", lambda: spark(node, "store", "merge"))
            print(f"{'':34} {files_note(directory)}")
            measured("idle", lambda: time.sleep(IDLE_SECONDS))
            over = (node.resident_bytes - idle) / 1e6
            print(f"{'':34} {over:.0f} MB over the idle node (target: 300)")
            client.close()
        node.stop()
        node = start(directory, *CACHES)
        note = f"{(node.resident_bytes - idle) / 1e6:.0f} MB over the idle node"
        table.add("start again", node, node.ready_seconds, node.cpu_seconds, None, note)
        with probing(node) as watcher:
            client = Client(node.host, node.port)
            measured("read, cold", lambda: read_some(client, shape, rounds, 2))
            measured("read, others", lambda: read_some(client, shape, rounds, 3))
            measured("read, the same again", lambda: read_some(client, shape, rounds, 3))
            measured("Metadata of all topics", lambda: f"{len(metadata(client, None)) / 1e6:.1f} MB")
            measured("DescribeLogDirs of everything", lambda: describe_log_dirs(client))
            measured("usage of all topics", lambda: usage(node))
            measured("idle", lambda: time.sleep(IDLE_SECONDS))
            over = (node.resident_bytes - idle) / 1e6
            print(f"{'':34} {over:.0f} MB over the idle node (target: 300)")
            client.close()
    finally:
        node.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    options = parser.parse_args()
    shape = Shape(options.topics, options.partitions)
    directory = Path(tempfile.mkdtemp(prefix="mainstem-stored-"))
    table = Table()
    try:
        run(shape, options.rounds, directory, table)
    finally:
        shutil.rmtree(directory)
    if options.json is not None:
        options.json.write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
