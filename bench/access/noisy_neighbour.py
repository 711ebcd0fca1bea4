"""The effect on a tenant that publishes little of another one that floods the node.

    python -m bench.access.noisy_neighbour --rounds 3 --seconds 5

The quiet one sends 200 records of 1 KB a second, on schedule, from eight connections; the flood is librdkafka, two
processes of a user of its own over SASL_SSL, that produce as fast as they can, and in some windows also read what they
wrote from the beginning. Windows alone and beside the flood take turns. One line per system and disturbance: the p99 of
all windows of a kind together, and its ratio to that alone. Mainstem is measured twice: with the flood's user in a
tenant, and without any tenant. The node has all cores but one, on which all clients are, the flood at low priority.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import load as loads
from bench import topics
from bench.load import Produce, Result
from bench.machine import share_cores
from bench.metrics import pooled_ms
from bench.systems import all_systems
from bench.systems.guard import Guard
from bench.systems.system import Durability, Node, Setup
from bench.topics import Queues
from mainstem.cli.dev.secured import MECHANISM, USER
from mainstem.console.token_file import read_token

HOME = Path(__file__).parents[2] / ".bench"
CACHE = Path.home() / ".cache" / "mainstem-bench"
QUIET, FLOOD = Queues("quiet", 1, 8), Queues("flood", 1, 16)
QUIET_PER_SECOND = 200.0
QUIET_RECORD_BYTES = 1024
FLOOD_RECORD_BYTES = 10_000
FLOODING_PROCESSES = 2
LEAD_SECONDS = 2.0
"""From the flood's start to the window."""
FLOOD_NICE = 19
ALONE, PRODUCING, READING = "alone", "beside producing", "beside producing and catching up"


def produce(settings: Mapping[str, str], ended: Event) -> None:
    producer = Producer({**settings, "linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.kbytes": 65_536})
    value = os.urandom(FLOOD_RECORD_BYTES)
    number = 0
    while not ended.is_set():
        try:
            producer.produce(FLOOD.names[0], value, partition=number % FLOOD.partitions)
            number += 1
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    producer.flush(5)


def catch_up(settings: Mapping[str, str], ended: Event) -> None:
    """From the beginning, again whenever the end is near."""
    consumer = Consumer({**settings, "group.id": "flood", "enable.auto.commit": False})
    beginning = [TopicPartition(FLOOD.names[0], partition, 0) for partition in range(FLOOD.partitions)]
    consumer.assign(beginning)
    while not ended.is_set():
        if not consumer.consume(1_000, timeout=0.2):
            consumer.assign(beginning)
    consumer.close()


@contextmanager
def flood(node: Node, kind: str, cpus: tuple[int, ...]) -> Iterator[None]:
    guard = node.setup.guard
    assert guard is not None
    assert node.guarded is not None
    settings = {"bootstrap.servers": node.guarded, **guard.librdkafka(), "sasl.mechanism": MECHANISM}
    works = [] if kind == ALONE else [produce] * FLOODING_PROCESSES
    works += [catch_up] if kind == READING else []
    spawning = multiprocessing.get_context("spawn")
    ended = spawning.Event()
    processes = [spawning.Process(target=_flooding, args=(work, settings, ended, cpus)) for work in works]
    for process in processes:
        process.start()
    try:
        ended.wait(LEAD_SECONDS)
        yield
    finally:
        ended.set()
        for process in processes:
            process.join(20)
            process.kill()


def _flooding(work: object, settings: Mapping[str, str], ended: Event, cpus: tuple[int, ...]) -> None:
    assert callable(work)
    os.sched_setaffinity(0, cpus)
    os.nice(FLOOD_NICE)
    work(settings, ended)


def make_tenant(node: Node) -> None:
    """The flood's user and topics are a tenant's."""
    token = read_token(node.setup.directory / "write")
    body = {"name": "flood", "prefix": "flood", "users": [USER]}
    request = urllib.request.Request(
        f"http://{node.http}/v1/tenants/set", json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"}, method="POST",
    )  # fmt: skip
    urllib.request.urlopen(request, timeout=30).close()


def measure(node: Node, program: Path, rounds: int, seconds: float) -> dict[str, list[Result]]:
    cpus = share_cores()
    for queues in (QUIET, FLOOD):
        topics.create(node.address, queues)
    node.tree.pin(cpus.broker)
    load = Produce(address=node.address, topics=f"{QUIET.prefix}:1", partitions=QUIET.partitions, connections=8,
                   record_bytes=QUIET_RECORD_BYTES, batch_records=1, rate=QUIET_PER_SECOND, poisson=True,
                   seconds=seconds)  # fmt: skip
    cores = ",".join(map(str, cpus.load))
    loads.run(program, load, cpus=cores)  # the first records of a node are not counted
    found: dict[str, list[Result]] = {kind: [] for kind in (ALONE, PRODUCING, READING)}
    for _ in range(rounds):
        for kind, results in found.items():
            with flood(node, kind, cpus.load):
                before = _stored(node)
                results.append(loads.run(program, load, cpus=cores))
                print(f"  {kind}: {(_stored(node) - before) / seconds / 1e6:.0f} MB/s stored", file=sys.stderr)
    return found


def _stored(node: Node) -> int:
    """Bytes that the node's processes have had written to files."""
    return sum(_written(pid) for pid in node.tree.pids())


def _written(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main() -> None:
    parser = argparse.ArgumentParser(description="What a flood of one tenant does to another.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    program = loads.build(HOME)
    cpus = share_cores()
    systems = all_systems(CACHE)
    for label, name in (("mainstem, no tenant", "mainstem"), ("mainstem, a tenant", "mainstem"), ("kafka", "kafka")):
        systems[name].prepare()
        with tempfile.TemporaryDirectory(prefix="noisy-", dir=HOME) as directory:
            home = Path(directory)
            node = systems[name].start(Setup(
                directory=home / "node", cpus=cpus.both, cores_count=len(cpus.broker), durability=Durability.ASYNC,
                guard=Guard(home / "guard", users=True),
            ))  # fmt: skip
            try:
                if label.endswith("a tenant"):
                    make_tenant(node)
                found = measure(node, program, given.rounds, given.seconds)
            finally:
                node.stop()
        alone = pooled_ms(found[ALONE], 0.99)
        for kind, results in found.items():
            p99 = pooled_ms(results, 0.99)
            print(f"{label:20} {kind:33} p99 {p99:8.2f} ms  {p99 / alone:6.2f} x", flush=True)


if __name__ == "__main__":
    main()
