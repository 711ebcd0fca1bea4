"""A Spark cluster of a master and two workers merges what it split, and compacts what it merged; one of its Python
workers is killed in the middle of it, and its tasks are done again."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.processes import Commands, descendants
from tests.end_to_end.readers import Reading, record_of
from tests.end_to_end.shell import command, environment, mainstem_json
from tests.end_to_end.splitters.spark_cluster import LOOPBACK, SparkCluster, split_options
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.spark.java import find_java

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark"),
]

STATE, PLAIN = "state", "plain"
CONFIGS: dict[str, dict[str, str]] = {STATE: {"cleanup.policy": "compact"}, PLAIN: {}}
PARTITIONS = 3
QUEUES = [Queue(topic, partition) for topic in CONFIGS for partition in range(PARTITIONS)]
KEYS = 200
RECORDS = 3_000
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.write_groups=2",
    "storage.write_cache_bytes=0",
    "queue_store.read_cache_bytes=0",
    "storage.prune_seconds=0.3",
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=0.5",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path / "node", *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


def produced(node: Serving) -> Reading:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    new = [NewTopic(topic, PARTITIONS, 1, config=config) for topic, config in CONFIGS.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_SECONDS)
    producer = librdkafka.producer(node.kafka, **{"enable.idempotence": True, "batch.num.messages": 50})
    told: Reading = {queue: [] for queue in QUEUES}
    choice = random.Random(5)
    for queue, records in told.items():
        for offset in range(RECORDS):
            key = b"key-%d" % choice.randrange(KEYS)
            value = None if choice.random() < 0.1 else choice.randbytes(choice.randrange(300))
            records.append(Record(offset, key, value))
            producer.produce(queue.topic, value, key, queue.partition)
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0
    return told


def read(node: Serving) -> Reading:
    reader = librdkafka.consumer(node.kafka, "unused")
    found: Reading = {queue: [] for queue in QUEUES}
    try:
        reader.assign([TopicPartition(*queue, 0) for queue in QUEUES])

        def is_done() -> bool:
            for message in reader.consume(500, 0.2):
                assert message.error() is None, message.error()
                found[Queue(message.topic(), message.partition())].append(record_of(message))
            return all(records and records[-1].offset == RECORDS - 1 for records in found.values())

        eventually(is_done, seconds=PATIENCE_SECONDS, what="the last record of every queue")
    finally:
        reader.close()
    return found


def run(commands: Commands, node: Serving, name: str, *arguments: str) -> None:
    check_end(commands, name, begun(commands, node, name, *arguments))


def begun(commands: Commands, node: Serving, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    variables = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
    return commands.start(name, command(*arguments, *split_options()), {**environment(node), **variables})


def check_end(commands: Commands, name: str, process: subprocess.Popen[bytes]) -> None:
    try:
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    assert code == EXIT_DONE, commands.log(name)


def python_workers(cluster: list[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """Of executors, those that run tasks."""
    found = []
    for process in (one for worker in cluster for one in descendants(worker.pid)):
        try:
            if any("pyspark" in part or "worker_start" in part for part in process.cmdline()[1:3]):
                found.append(process)
        except psutil.Error:
            continue
    return [one for one in found if not one.children()]


def test_two_workers_merge_and_compact_though_a_task_is_killed(
    node: Serving, commands: Commands, tmp_path: Path
) -> None:
    told = produced(node)
    cluster = SparkCluster(commands, tmp_path, workers=2)
    cluster.start()
    run(commands, node, "split", "split", "run", "--master", cluster.master, "--once", "--bytes-per-trigger", "1048576")
    name = "compaction"
    process = begun(commands, node, name, "store", "compact", "--master", cluster.master, "--once")
    packed = node.store_dir / "packed"
    eventually(
        lambda: (packed.exists() and any(packed.iterdir())) or process.poll() is not None,
        seconds=PATIENCE_SECONDS,
        what="a merge that writes",
    )
    assert process.poll() is None, commands.log(name)
    killed = python_workers(cluster.workers)
    assert killed, "tasks run in Python"
    killed[0].kill()
    check_end(commands, name, process)
    assert all(count >= 2 for count in cluster.executors()), "both workers had executors of both jobs"

    found = read(node)
    for queue, records in told.items():
        newest = {record.key: record for record in records}
        latest = [record for record in records if newest[record.key] is record]
        assert found[queue] == (latest if queue.topic == STATE else records)
    levels = [level["level"] for level in node.get("/v1/store")["levels"] if level["files"]]
    assert levels
    assert 0 not in levels, "all runs are merged"
    assert node.get("/v1/store")["compactions"]["passes"] >= 1
    assert node.stop() == 0, node.output
    directories = ("--write-dir", str(node.write_dir), "--store-dir", str(node.store_dir))
    assert mainstem_json(node, "store", "verify", *directories)["findings"] == []
