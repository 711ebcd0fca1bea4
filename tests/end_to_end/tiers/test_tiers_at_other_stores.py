"""A topic whose history lies in Google's store, or in HDFS, is read back from there by a Kafka client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.tiering import (
    StoreView,
    read_by_kafka_python,
    remote_bytes_read,
    remote_rows,
    split_and_merge,
    tier_bytes,
    upload_rest,
)
from tests.end_to_end.topics import Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tests.storage.object_stores.gcs_stand_in import gcs_server
from tests.storage.object_stores.servers import hdfs_server

from mainstem.storage.object_stores.config import ObjectStoreConfig

QUEUE = Queue("kept", 0)
CONFIGS = {"remote.storage.enable": "true", "local.retention.ms": "1", "retention.ms": "-1"}
MESSAGES, VALUE_BYTES = 300, 2_000
GROUPS = range(2)


class Place(NamedTuple):
    url: str
    config: ObjectStoreConfig


@contextmanager
def _gcs() -> Iterator[Place]:
    pytest.importorskip("obstore")
    with gcs_server("mainstem-tiers") as server:
        yield Place(
            f"gs://{server.bucket}/tier", ObjectStoreConfig(endpoint=server.endpoint, options={"bearer_token": "test"})
        )


@contextmanager
def _hdfs() -> Iterator[Place]:
    pytest.importorskip("hdfs_native")
    with hdfs_server() as name_node:
        yield Place(f"{name_node}/tier", ObjectStoreConfig())


@pytest.fixture(params=["gcs", pytest.param("hdfs", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with {"gcs": _gcs, "hdfs": _hdfs}[request.param]() as place:
        yield place


@pytest.fixture
def node(place: Place, tmp_path: Path) -> Iterator[Serving]:
    options = [f"object_store.options.{key}={value}" for key, value in place.config.options.items()]
    node = Serving(
        tmp_path, "pipeline.mode=off", "storage.write_cache_bytes=0", "queue_store.read_cache_bytes=0",
        "journal.segment_age_seconds=1", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
        "storage.retention_check_seconds=1", f"nameserver.write_groups={len(GROUPS)}", f"remote_dir={place.url}",
        f"object_store.endpoint={place.config.endpoint}", *options,
    )  # fmt: skip
    node.program = HASTY_NODE
    try:
        yield node.start()
    finally:
        node.close()


def value_of(number: int) -> bytes:
    return (b"%d:" % number).ljust(VALUE_BYTES, b".")


def test_what_was_uploaded_is_read_back(place: Place, node: Serving) -> None:
    Topics(node).create(QUEUE.topic, CONFIGS)
    librdkafka.produce(node.kafka, QUEUE.topic, [Message(value_of(number)) for number in range(MESSAGES)])
    split_and_merge(node)
    assert upload_rest(node) == ""
    eventually(
        lambda: not tier_bytes(node, QUEUE.topic)[0],
        seconds=PATIENCE_SECONDS,
        what="a topic that lies in the store alone",
    )
    found = read_by_kafka_python(node.kafka, {QUEUE: MESSAGES})
    assert found == {QUEUE: [Record(number, None, value_of(number)) for number in range(MESSAGES)]}
    assert remote_bytes_read(node) > MESSAGES * VALUE_BYTES
    store = StoreView(place.url, place.config, node.get("/v1/cluster")["cluster_id"])
    counted = remote_rows(node).counted
    assert counted
    eventually(lambda: store.counted(GROUPS) == counted, seconds=PATIENCE_SECONDS, what="a chain that says what counts")
    assert store.superfluous(GROUPS, counted) == set()
