"""A compacted queue moves to another write group, and real Spark compacts what it has in both: whoever reads all of it
comes to the latest value of each key, and keys that were deleted behind the move do not come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.load import Record
from tests.end_to_end.readers import record_of
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.spark.java import find_java

pytestmark = pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark")

TOPIC = "state"
CONFIGS = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
"""Tombstones go in the second pass that has them."""
KEYS = 200
RECORDS = 1_000
BATCH_RECORDS = 50
SETTINGS = (
    "pipeline.mode=off", "nameserver.write_groups=2", "storage.write_cache_bytes=0", "storage.prune_seconds=0.3",
    "journal.segment_bytes=1MiB", "journal.segment_age_seconds=0.5", "storage.checkpoint_seconds=0.5",
)  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path, *SETTINGS)
    serving.start()
    try:
        yield serving
    finally:
        serving.drop()


def group_of(node: Serving) -> int:
    group: int = mainstem_json(node, "cluster", "explain", f"{TOPIC}:0")["group"]
    return group


def produce(node: Serving, told: list[Record], rng: random.Random, deleted: float) -> None:
    producer = librdkafka.producer(
        node.kafka, **{"enable.idempotence": True, "linger.ms": 5, "batch.num.messages": BATCH_RECORDS}
    )
    for _ in range(RECORDS):
        key = b"key-%d" % rng.randrange(KEYS)
        value = None if rng.random() < deleted else rng.randbytes(rng.randrange(1, 300))
        told.append(Record(len(told), key, value))
        producer.produce(TOPIC, value, key, 0)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0


def split(node: Serving, spark: OneSpark) -> None:
    """And wait until nothing of it is left in the journal, of which all is read as it came."""
    committed = {name: group["committed"] for name, group in node.get("/v1/split")["groups"].items()}

    def is_pruned() -> bool:
        groups = node.get("/v1/split")["groups"]
        return all(groups[name]["pruned"] >= block for name, block in committed.items())

    spark.run(node, "--once")
    eventually(is_pruned, seconds=PATIENCE_SECONDS, what="a journal without what is split")


def read(node: Serving, told: list[Record]) -> list[Record]:
    """The queue from its beginning until its last record has come."""
    reader = librdkafka.consumer(node.kafka, "unused")
    found: list[Record] = []
    try:
        reader.assign([TopicPartition(TOPIC, 0, 0)])
        while found[-1:] != told[-1:]:
            found += [record_of(message) for message in librdkafka.take(reader, 1)]
    finally:
        reader.close()
    return found


def values(records: list[Record]) -> dict[bytes | None, bytes]:
    """The last value of each key that is there, as a reader has it in the end."""
    last = {record.key: record.value for record in records}
    return {key: value for key, value in last.items() if value is not None}


def test_each_key_has_its_latest_value_behind_a_move(node: Serving, one_spark: OneSpark) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=CONFIGS)])[TOPIC].result(PATIENCE_SECONDS)
    rng, told = random.Random(3), list[Record]()
    produce(node, told, rng, deleted=0.1)
    split(node, one_spark)
    one_spark.run(node, "--once", "--compact-only")
    before, moved_at = group_of(node), len(told)
    mainstem(node, "cluster", "move-queue", f"{TOPIC}:0", "--to", str(1 - before), "--wait")
    produce(node, told, rng, deleted=0.5)
    split(node, one_spark)
    for _ in range(3):  # the records, the horizons of tombstones, and the tombstones
        one_spark.run(node, "--once", "--merge-only")
        one_spark.run(node, "--once", "--compact-only")
        found = read(node, told)
        assert values(found) == values(told)
    assert set(found) <= set(told)
    early, late = ([one for one in found if (one.offset < moved_at) is first] for first in (True, False))
    for part in (early, late):
        assert len(part) < KEYS + 2 * BATCH_RECORDS < RECORDS, "both write groups are compacted"
    deleted = {one.key for one in late if one.value is None}
    assert deleted & {one.key for one in early}, "their values are still in the write group before"
    assert node.stop() == 0, node.output
    node.start()
    assert read(node, told) == found
