"""Real Spark splits, merges and compacts in a shared store: every file is an object of S3, written once, and all that
is read comes from there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.readers import Reading, read_all, record_of
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.end_to_end.tiering import StoreView, remote_bytes_read, remote_rows, unsplit_bytes
from tests.end_to_end.topics import Topics
from tests.harness.serving import Serving, eventually
from tests.storage.object_stores.servers import s3_server

from mainstem.pipeline.spark.java import find_java
from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.store_files.object_names import file_objects
from mainstem.storage.store_files.store_file import SEGMENT_SUFFIX

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


def test_what_spark_splits_merges_and_compacts_is_in_the_store_alone(tmp_path: Path, one_spark: OneSpark) -> None:
    pytest.importorskip("obstore")
    expected = produced()
    ends = {queue: len(records) for queue, records in expected.items()}
    with s3_server() as server:
        options = [f"object_store.options.{key}={value}" for key, value in server.options.items()]
        node = Serving(tmp_path / "node", *SETTINGS, f"object_store.endpoint={server.endpoint}", *options)
        try:
            node.start()
            for queue, config in CONFIGS.items():
                Topics(node).create(queue.topic, config)
                messages = [Message(record.value, record.key) for record in expected[queue]]
                librdkafka.produce(node.kafka, queue.topic, messages)
            one_spark.run(node, "--once", "--no-merge")
            eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
            split = remote_rows(node).counted
            assert split
            assert all(name.endswith(".run") for _group, name in split)
            assert read_all(node.kafka, ends) == expected
            one_spark.run(node, "--once", "--compact-only")  # which merges as well
            store = StoreView(
                "s3://mainstem-tests/shared",
                ObjectStoreConfig(endpoint=server.endpoint, options=server.options),
                node.get("/v1/cluster")["cluster_id"],
            )
            rows = remote_rows(node)
            assert not [name for _group, name in rows.counted if name.endswith(".run")]
            assert [name.partition("/")[0] for _group, name in rows.counted if name.endswith(SEGMENT_SUFFIX)] == [
                "bulk"
            ]
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
            assert not [path for kind in ("run", "pack", "extents") for path in node.write_dir.rglob(f"*.{kind}")]
        finally:
            node.close()
