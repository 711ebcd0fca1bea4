"""clients: librdkafka and Kafka's own Java producer, as people use them.

On the load's core, where the client is mostly the slower side: the node's CPU time is the figure that says something
about the node.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence

from bench.errors import LoadFailed
from bench.metrics import MEGABYTE, Figures
from bench.session import Form, Session, Stage, Workload
from bench.systems.kafka_jars import fetch
from bench.systems.system import Durability
from bench.topics import Queues

PARTITIONS = {"short": (1_000,), "full": (16, 1_000)}
RECORD_BYTES = 100
SECONDS_MAX = 120.0
JAVA_RECORDS_PER_SECOND = 300_000
"""About what the Java producer reaches on one core, to make its run about as long as the form asks."""
_JAVA_REPORT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)


def librdkafka(partitions: int) -> str:
    return f"librdkafka produce, {partitions:,} queues"


def librdkafka_consume(partitions: int) -> str:
    return f"librdkafka consume, {partitions:,} queues"


def java(partitions: int) -> str:
    return f"kafka-producer-perf-test, {partitions:,} queues"


def _clients(stage: Stage) -> None:
    stage.start()
    stage.warm(stage.produce(stage.create("warm", 16), record_bytes=RECORD_BYTES, batch_records=100))
    warm = stage.create("warmclients", 16)
    for what in ("produce", "consume"):
        _run(stage, _librdkafka_command(stage, what, warm))
    for partitions in PARTITIONS[stage.form.name]:
        queues = stage.create(f"clients{partitions}", partitions)
        _measure(stage, librdkafka(partitions), _librdkafka_command(stage, "produce", queues), partitions)
        _measure(stage, librdkafka_consume(partitions), _librdkafka_command(stage, "consume", queues), partitions)
        _measure(stage, java(partitions), _java_command(stage, queues.names[0]), partitions)


def _librdkafka_command(stage: Stage, what: str, queues: Queues) -> Sequence[str]:
    return [
        sys.executable, "-m", "bench.librdkafka", what, "--address", stage.node.address,
        "--topic", queues.names[0], "--partitions", str(queues.partitions),
        "--seconds", str(stage.form.seconds), "--record-bytes", str(RECORD_BYTES),
    ]  # fmt: skip


def _java_command(stage: Stage, topic: str) -> Sequence[str]:
    count = int(stage.form.seconds * JAVA_RECORDS_PER_SECOND)
    return [
        "java", "-Xmx512m", "-cp", f"{fetch(stage.bench.cache)}/*",
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count),
        "--record-size", str(RECORD_BYTES), "--throughput", "-1",
        "--command-property", f"bootstrap.servers={stage.node.address}", "acks=all", "linger.ms=5",
    ]  # fmt: skip


def _run(stage: Stage, command: Sequence[str]) -> str:
    """On the load's core; its output. Raises LoadFailed when it fails."""
    pinned = ["taskset", "-c", ",".join(map(str, stage.bench.cpus.load)), *command]
    done = subprocess.run(pinned, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != 0:
        raise LoadFailed(f"{stage.label}, {command[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _measure(stage: Stage, title: str, command: Sequence[str], queues: int) -> None:
    window = stage.window()
    count, rate = _report(_run(stage, command))
    cpu = window.node_cpu_seconds()
    figures: Figures = {
        "records_per_s": rate,
        "mb_per_s": rate * RECORD_BYTES / MEGABYTE,
        "cpu_ms_per_mb": cpu * 1000 / (count * RECORD_BYTES / MEGABYTE),
        "others_cores": window.others_cores(),
    }
    stage.record(title, figures, queues=queues)


def _report(output: str) -> tuple[int, float]:
    """Records, and records a second, as either client tells. Raises LoadFailed when it tells nothing."""
    if output.startswith("{"):
        told = json.loads(output)
        return told["records"], told["records"] / told["seconds"]
    reports = _JAVA_REPORT.findall(output)
    if not reports:
        raise LoadFailed(f"the Java producer reported nothing: {output[-300:]}")
    count, rate = reports[-1]
    return int(count), float(rate)


def sessions(form: Form) -> list[Session]:
    return [Session(name="real clients", run=_clients, durability=Durability.ASYNC)]


WORKLOAD = Workload(
    "clients",
    "librdkafka and the Java producer",
    sessions,
    shown=("records_per_s", "mb_per_s", "cpu_ms_per_mb"),
)
