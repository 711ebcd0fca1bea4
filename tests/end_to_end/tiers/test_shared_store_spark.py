"""Real Spark splits, merges and compacts in a shared store: every file is an object of S3, written once, and all that
is read comes from there. So it does where its executors are those of a standalone cluster."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import TopicPartition
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.processes import Commands
from tests.end_to_end.readers import Reading, read_all, record_of
from tests.end_to_end.shell import command, environment
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.end_to_end.splitters.spark_cluster import LOOPBACK, SparkCluster, split_options
from tests.end_to_end.tiering import StoreView, remote_bytes_read, remote_rows, unsplit_bytes
from tests.end_to_end.topics import Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tests.storage.object_stores.servers import s3_server

from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.spark.java import find_java
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import JOINED_SUFFIX

pytestmark = pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark")

PLAIN, STATE, BULK = Queue("plain", 0), Queue("state", 0), Queue("bulk", 0)
CONFIGS = {
    PLAIN: {"retention.ms": "-1"},
    STATE: {"cleanup.policy": "compact"},
    BULK: {"retention.ms": "-1", "segment.bytes": str(8 << 20)},
}
PART_BYTES = 5 << 20
"""The segment of the bulk queue is larger, so that it is written in parts."""
KEYS = 20
BULK_BYTES = 900_000
GROUPS = 2
SETTINGS = (
    "pipeline.mode=off",
    f"nameserver.write_groups={GROUPS}",
    "storage.write_cache_bytes=0",
    "storage.checkpoint_seconds=1",
    "storage.prune_seconds=0.3",
    "journal.segment_age_seconds=1",
    "store_dir=s3://mainstem-tests/shared",
    f"object_store.part_bytes={PART_BYTES}",
)


def produced() -> Reading:
    choice = random.Random(7)
    keys = [b"key-%d" % choice.randrange(KEYS) for _ in range(400)]
    return {
        PLAIN: [Record(number, b"k", choice.randbytes(500)) for number in range(400)],
        STATE: [Record(number, key, choice.randbytes(200)) for number, key in enumerate(keys)],
        BULK: [Record(number, None, choice.randbytes(BULK_BYTES)) for number in range(14)],
    }


def read_to_the_end(bootstrap: str, queue: Queue, end: int) -> list[Record]:
    """The remainder of a compacted queue, whose last record is."""
    reader = librdkafka.consumer(bootstrap, "unused")
    found: list[Record] = []
    try:
        reader.assign([TopicPartition(*queue, 0)])
        while not found or found[-1].offset + 1 < end:
            found += [record_of(message) for message in librdkafka.take(reader, 1)]
    finally:
        reader.close()
    return found


class Shared(NamedTuple):
    """A node with all queues, of which nothing is split, and its bucket."""

    node: Serving
    expected: Reading
    store: StoreView

    @property
    def ends(self) -> dict[Queue, int]:
        return {queue: len(records) for queue, records in self.expected.items()}


@contextmanager
def shared_store(directory: Path) -> Iterator[Shared]:
    pytest.importorskip("obstore")
    expected = produced()
    with s3_server() as server:
        options = [f"object_store.options.{key}={value}" for key, value in server.options.items()]
        node = Serving(directory, *SETTINGS, f"object_store.endpoint={server.endpoint}", *options)
        try:
            node.start()
            for queue, config in CONFIGS.items():
                Topics(node).create(queue.topic, config)
                messages = [Message(record.value, record.key) for record in expected[queue]]
                librdkafka.produce(node.kafka, queue.topic, messages)
            store = StoreView(
                "s3://mainstem-tests/shared",
                ObjectStoreConfig(endpoint=server.endpoint, options=server.options),
                node.get("/v1/cluster")["cluster_id"],
            )
            yield Shared(node, expected, store)
        finally:
            node.close()


def test_what_spark_splits_merges_and_compacts_is_in_the_store_alone(tmp_path: Path, one_spark: OneSpark) -> None:
    with shared_store(tmp_path / "node") as shared:
        node, expected, store = shared
        ends = shared.ends
        one_spark.run(node, "--once", "--no-merge")
        eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
        split = remote_rows(node).counted
        assert split
        assert all(name.endswith(".run") for _group, name in split)
        assert read_all(node.kafka, ends) == expected
        one_spark.run(node, "--once", "--compact-only")  # which merges as well
        rows = remote_rows(node)
        assert not [name for _group, name in rows.counted if name.endswith(".run")]
        assert [name.partition("/")[0] for _group, name in rows.counted if name.endswith(JOINED_SUFFIX)] == ["bulk"]
        assert {one for file in rows.counted for one in file_objects(*file)} <= store.objects()
        eventually(lambda: store.counted(range(GROUPS)) == rows.counted, what="the chain in the store")
        assert split <= rows.leaving | rows.counted
        latest = {record.key: record for record in expected.pop(STATE)}
        kept = sorted(latest.values(), key=lambda record: record.offset)
        for _ in range(2):
            assert read_to_the_end(node.kafka, STATE, ends[STATE]) == kept
            assert read_all(node.kafka, {queue: ends[queue] for queue in expected}) == expected
            assert remote_bytes_read(node) > ends[BULK] * BULK_BYTES
            assert node.stop() == 0
            node.start()
        assert not node.store_dir.exists()
        assert not [path for kind in ("run", "pack", "extents", "seg") for path in node.write_dir.rglob(f"*.{kind}")]


@pytest.mark.long
def test_executors_of_a_cluster_read_and_write_the_store_themselves(tmp_path: Path, commands: Commands) -> None:
    """The node tells them where it is and how it is reached; no directory is theirs and the node's."""
    with shared_store(tmp_path / "node") as shared:
        node, expected, store = shared
        cluster = SparkCluster(commands, tmp_path, workers=2)
        cluster.start()

        def run(name: str, *arguments: str) -> None:
            line = command(*arguments, "--master", cluster.master, "--once", *split_options())
            variables = {"SPARK_LOCAL_IP": LOOPBACK, "PYSPARK_PYTHON": sys.executable}
            process = commands.start(name, line, {**environment(node), **variables})
            try:
                code = process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
            assert code == EXIT_DONE, commands.log(name)

        run("split", "split", "run")
        eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
        split = remote_rows(node).counted
        assert split
        assert all(name.endswith(".run") for _group, name in split)
        run("merge", "store", "merge")
        counted = remote_rows(node).counted
        assert counted
        assert not [name for _group, name in counted if name.endswith(".run")]
        assert {one for file in counted for one in file_objects(*file)} <= store.objects()
        assert sum(cluster.executors()) >= 2, "of both jobs"
        assert read_all(node.kafka, shared.ends) == expected
        assert remote_bytes_read(node) > len(expected[BULK]) * BULK_BYTES
        assert not [path for kind in ("run", "pack", "extents", "seg") for path in tmp_path.rglob(f"*.{kind}")]
