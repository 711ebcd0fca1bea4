"""Nodes whose queue store is one object store for all: they split into it, read it back, remember which it is, and
refuse another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.clients.drivers import kafka_python, librdkafka
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.tiering import RUN_BYTES, read_by_kafka_python, remote_bytes_read, unsplit_bytes
from tests.end_to_end.topics import Topics
from tests.harness.serving import Serving, eventually
from tests.storage.object_stores.gcs_stand_in import gcs_server
from tests.storage.object_stores.servers import hdfs_server, s3_server

QUEUE = Queue("kept", 0)
MESSAGES, VALUE_BYTES = 200, 2_000
SMALL = (
    "pipeline.mode=off", "storage.write_cache_bytes=0", "journal.segment_age_seconds=1",
    "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3", "nameserver.write_groups=2",
)  # fmt: skip


@contextmanager
def _directory(root: Path) -> Iterator[tuple[str, ...]]:
    (root / "shared").mkdir()
    yield (f"store_dir={root / 'shared'}", "shared_store=true")


@contextmanager
def _s3(root: Path) -> Iterator[tuple[str, ...]]:
    pytest.importorskip("obstore")
    with s3_server() as server:
        options = [f"object_store.options.{key}={value}" for key, value in server.options.items()]
        yield (f"store_dir=s3://{server.bucket}/shared", f"object_store.endpoint={server.endpoint}", *options)


@contextmanager
def _gcs(root: Path) -> Iterator[tuple[str, ...]]:
    pytest.importorskip("obstore")
    with gcs_server("mainstem-shared") as server:
        yield (
            f"store_dir=gs://{server.bucket}/shared", f"object_store.endpoint={server.endpoint}",
            "object_store.options.bearer_token=test",
        )  # fmt: skip


@contextmanager
def _hdfs(root: Path) -> Iterator[tuple[str, ...]]:
    """It replaces no object on condition: heads of chains stay as they were first written."""
    pytest.importorskip("hdfs_native")
    with hdfs_server() as name_node:
        yield (f"store_dir={name_node}/shared",)


@pytest.fixture(
    params=[
        pytest.param(_directory, id="directory"),
        pytest.param(_s3, id="s3"),
        pytest.param(_gcs, id="gcs", marks=pytest.mark.long),
        pytest.param(_hdfs, id="hdfs", marks=pytest.mark.long),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """The settings of a node of a shared store."""
    with request.param(tmp_path) as settings:
        yield settings


def url_of(place: tuple[str, ...]) -> str:
    return place[0].removeprefix("store_dir=")


def value_of(number: int) -> bytes:
    return (b"%d:" % number).ljust(VALUE_BYTES, b".")


EXPECTED = {QUEUE: [Record(number, None, value_of(number)) for number in range(MESSAGES)]}


def kinds_in_store(node: Serving, place: tuple[str, ...]) -> set[str]:
    """The kinds of files that count, none of which is on a disk 2."""
    status = mainstem_json(node, "store", "status")
    assert (status["shared_store"], status["store_disk"], status["levels"]) == (url_of(place), None, [])
    return {level["kind"] for level in status["remote"]["levels"]}


def log_dirs(node: Serving) -> dict[str, dict[str, int]]:
    """Bytes per topic in each directory, by DescribeLogDirs."""
    admin = kafka_python.admin(node.kafka)
    try:
        (of_node,) = admin.describe_log_dirs()
    finally:
        admin.close()
    return {
        place["log_dir"]: {
            topic["name"]: sum(partition["partition_size"] for partition in topic["partitions"])
            for topic in place["topics"]
            if topic["name"] == QUEUE.topic
        }
        for place in of_node["log_dirs"]
    }


def test_what_was_split_is_read_from_the_store_alone(place: tuple[str, ...], tmp_path: Path) -> None:
    node = Serving(tmp_path / "node", *SMALL, *place)
    try:
        node.start()
        told = {"url": url_of(place), "folder": node.get("/v1/cluster")["cluster_id"]}
        assert node.get("/v1/split/endpoint")["shared_store"] == told, "what may be secret is told over node RPC alone"
        Topics(node).create(QUEUE.topic, {"retention.ms": "-1"})
        librdkafka.produce(node.kafka, QUEUE.topic, [Message(value_of(number)) for number in range(MESSAGES)])
        with PlainSplitter(node.http, RUN_BYTES) as splitter:
            splitter.split(merging=False)
        eventually(lambda: not unsplit_bytes(node), what="a journal that is pruned of what is split")
        assert kinds_in_store(node, place) == {"run"}
        for merged in (False, True):
            if merged:
                with PlainSplitter(node.http, RUN_BYTES) as splitter:
                    splitter.drain()
                assert "run" not in kinds_in_store(node, place)
                assert mainstem_json(node, "store", "status")["merges"]["merged_files"] > 0
                assert node.metric("mainstem_queue_store_merged_files_total") > 0
            assert read_by_kafka_python(node.kafka, {QUEUE: MESSAGES}) == EXPECTED
            assert remote_bytes_read(node) > MESSAGES * VALUE_BYTES
            assert node.stop() == 0
            node.start()
        usage = mainstem_json(node, "store", "usage", "--topic", QUEUE.topic)
        assert usage["topics"][0]["remote_bytes"] > MESSAGES * VALUE_BYTES
        (told,) = mainstem_json(node, "topic", "list")["topics"]
        assert told["stored_bytes"] > MESSAGES * VALUE_BYTES
        (partition,) = mainstem_json(node, "topic", "describe", QUEUE.topic)["partitions"]
        assert partition["stored_bytes"] == told["stored_bytes"]
        held = {QUEUE.topic: told["stored_bytes"]}
        assert log_dirs(node) == {str(node.write_dir): {QUEUE.topic: 0}, url_of(place): held}
        top = mainstem_json(node, "top", "--once")
        assert top["nodes"][0]["store_bytes"] > MESSAGES * VALUE_BYTES
        assert top["shared_store"] == url_of(place)
        assert "shared store" in mainstem(node, "cluster", "status")
        assert not node.store_dir.exists()
        assert not [*node.write_dir.rglob("*.run"), *node.write_dir.rglob("*.pack")]
    finally:
        node.close()


def test_a_node_stays_with_its_shared_store(tmp_path: Path) -> None:
    with _directory(tmp_path) as place:
        node = Serving(tmp_path / "node", *SMALL, *place)
        try:
            node.start()
            assert node.stop() == 0
            node.settings = SMALL
            with pytest.raises(AssertionError, match="is disk 1 of a node whose queue store is shared"):
                node.start()
            (tmp_path / "other").mkdir()
            node.settings = (*SMALL, f"store_dir={tmp_path / 'other'}", "shared_store=true")
            with pytest.raises(AssertionError, match=f"is {tmp_path}/shared. Set store_dir to that"):
                node.start()
            node.settings = (*SMALL, *place)
            node.start()
            assert node.stop() == 0
        finally:
            node.close()


def test_topics_of_a_shared_store_have_no_remote_tier(tmp_path: Path) -> None:
    with _directory(tmp_path) as place:
        node = Serving(tmp_path / "node", *SMALL, *place, f"remote_dir={tmp_path / 'shared'}")
        try:
            node.start()
            with pytest.raises(AssertionError, match="all that is split is in the object store"):
                mainstem(node, "topic", "create", "kept", "--set", "remote.storage.enable=true")
            mainstem(node, "topic", "create", "kept")
        finally:
            node.close()


def test_a_node_with_another_store_than_the_others_does_not_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SMALL, count=2)
    try:
        cluster.start()
        cluster.stop(2)
        with _directory(tmp_path) as place:
            cluster.nodes[2].settings += place
            with pytest.raises(AssertionError, match="node 1 keeps its queue store in a directory of its own"):
                cluster.nodes[2].start()
    finally:
        cluster.close()
