"""Retention that was lowered need not wait for its next round: a command has the node apply it, and says which files
went."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tests.cli.documented import documented_keys, keys_of
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.splits.test_doomed_jobs import is_pruned, split
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

LESS, AS_BEFORE = "less", "as-before"
MESSAGES = 100
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.write_groups=1",
    "storage.retention_check_seconds=100000",
    "storage.prune_seconds=0.2",
    "storage.checkpoint_seconds=0.5",
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=0.3",
    "journal.pool_segments=0",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path, *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


def bounds(node: Serving) -> dict[str, tuple[int, int]]:
    reader = librdkafka.consumer(node.kafka, "unused")
    try:
        return {topic: librdkafka.watermarks(reader, topic, 0) for topic in (LESS, AS_BEFORE)}
    finally:
        reader.close()


def test_retention_that_was_lowered_goes_when_it_is_asked_to(node: Serving) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
    # of different classes: no file has both
    new = [NewTopic(topic, 1, 1, config={"retention.ms": ms}) for topic, ms in ((LESS, "86400000"), (AS_BEFORE, "-1"))]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_SECONDS)
    producer = librdkafka.producer(node.kafka)
    for topic in (LESS, AS_BEFORE):
        for number in range(MESSAGES):
            producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    split(node)
    ends = {name: group["split"] for name, group in node.get("/v1/split")["groups"].items()}
    eventually(lambda: is_pruned(node, ends), seconds=PATIENCE_SECONDS, what="a journal without what is split")

    assert mainstem_json(node, "store", "retain")["files"] == 0, "nothing is too old"
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, LESS, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_SECONDS)
    assert bounds(node)[LESS] == (0, MESSAGES), "the next round is a day away"
    done = mainstem_json(node, "store", "retain")
    documented = documented_keys()["store retain"]
    assert keys_of(done, documented) == documented
    assert done["files"] == 1
    assert done["bytes"] > MESSAGES
    assert bounds(node) == {LESS: (MESSAGES, MESSAGES), AS_BEFORE: (0, MESSAGES)}
    assert "0 files of disk 2 went" in mainstem(node, "store", "retain")
