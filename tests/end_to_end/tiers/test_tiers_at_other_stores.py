"""A topic whose history lies in Google's store, or in HDFS, is read back from there by a Kafka client, and the cluster
is not adopted from there while it lives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.clients.drivers import librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.odd_nodes.telling_node import TELLING_NODE
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
from mainstem.storage.object_stores.store_folder import StoreFolder
from mainstem.storage.object_stores.urls import open_object_store
from mainstem.storage.remote.chain.owner_record import FoundOwner, OwnerRecord, read_owner, take_over

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
    node.program = TELLING_NODE
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


def test_a_cluster_is_adopted_once_it_lives_no_more(place: Place, node: Serving) -> None:
    cluster_id = node.get("/v1/cluster")["cluster_id"]

    def owner() -> FoundOwner:
        return asyncio.run(read_owner(_folder(place, cluster_id)))

    def has_changed(first: FoundOwner) -> bool:
        return owner() != first

    def adopted(read_first: FoundOwner) -> OwnerRecord | None:
        record = OwnerRecord(1 << 40, 0, 2, 0)
        return asyncio.run(take_over(_folder(place, cluster_id), read_first, record))

    Topics(node).create(QUEUE.topic, CONFIGS)
    eventually(lambda: owner().record is not None, seconds=PATIENCE_SECONDS, what="a cluster that says that it lives")
    for _ in range(3):
        read_first = owner()
        eventually(partial(has_changed, read_first), seconds=PATIENCE_SECONDS, what="a beat")
        found = adopted(read_first)
        assert found is not None
        assert read_first.record is not None
        assert found.beats > read_first.record.beats
    assert len(owner().lower) < 3, "what was replaced is deleted"
    node.kill()
    assert adopted(owner()) is None


def _folder(place: Place, cluster_id: str) -> StoreFolder:
    return StoreFolder(open_object_store(place.url, place.config), cluster_id)
