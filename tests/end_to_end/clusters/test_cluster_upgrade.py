"""A cluster of the version before there were feature levels is upgraded node by node under load, goes back, comes again
and is raised: nothing that was acknowledged is lost, and consumer groups go on where they were."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import goes_on, load_on
from tests.end_to_end.odd_nodes.old_version import BEFORE_LEVELS, sources_of
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import SOURCE, eventually

from mainstem.console.token_file import read_token

NEWEST = 3
TOPIC = "upgraded"


@pytest.fixture(scope="module")
def old_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return sources_of(BEFORE_LEVELS, tmp_path_factory.mktemp("before-levels"))
    except (LookupError, OSError) as reason:
        pytest.skip(f"the history of the repository is needed (git fetch --unshallow): {reason}")


@pytest.fixture
def cluster(tmp_path: Path, old_sources: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, "pipeline.mode=off")
    for node in cluster.nodes.values():
        node.source = old_sources
    try:
        yield cluster.start()
    finally:
        cluster.close()


def restart_as(cluster: Cluster, node_id: int, source: Path) -> None:
    cluster.stop(node_id)
    cluster.nodes[node_id].source = source
    cluster.start(node_id)
    cluster.wait_until_well()


def raise_level(cluster: Cluster, node_id: int) -> str | None:
    """Why not; None: it is raised."""
    token = read_token(cluster.nodes[node_id].write_dir)
    request = urllib.request.Request(
        f"http://{cluster.nodes[node_id].http}/v1/cluster/feature-level",
        json.dumps({"level": NEWEST}).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {token}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
            return None
    except HTTPError as error:
        return f"HTTP {error.code}: {json.load(error)['error']}"


class Group:
    """A consumer group that commits a number in one partition, and finds the one it committed before."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._committed = -1001  # librdkafka's word for none

    def commit_next(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "upgraded", **KEEP_TRYING})
        try:
            [found] = consumer.committed([TopicPartition(self._topic, 0)], timeout=PATIENCE_SECONDS)
            assert found.offset == self._committed
            self._committed = max(found.offset, 0) + 1
            wanted = TopicPartition(self._topic, 0, self._committed)

            def committed() -> bool:
                [done] = consumer.commit(offsets=[wanted], asynchronous=False)
                return done.error is None

            eventually(committed, seconds=PATIENCE_SECONDS, what=f"a commit of {self._committed}")
        finally:
            consumer.close()


@pytest.mark.long
def test_node_by_node_to_the_new_version_and_back_and_forth_again(cluster: Cluster, old_sources: Path) -> None:
    with load_on(cluster, TOPIC) as load:
        group = Group(cluster, TOPIC)
        group.commit_next()
        for source, name in ((SOURCE, "forth"), (old_sources, "back"), (SOURCE, "again")):
            for node_id in cluster.nodes:
                restart_as(cluster, node_id, source)
                goes_on(load, TOPIC)
                group.commit_next()
                if node_id == 2:  # old and new nodes agree on changes of the metadata, whoever leads it
                    cluster.create_topic(f"{name}-{node_id}", 4)
                    new = [one for one in cluster.nodes if cluster.nodes[one].source == SOURCE]
                    assert cluster.get("/v1/cluster", new[0])["feature_level"] == 1
                    refused = raise_level(cluster, new[0])
                    assert refused is not None, "raised, though an old node is there"
                    assert f"HTTP 409: feature level {NEWEST} must wait" in refused
        assert raise_level(cluster, 1) is None
        eventually(
            lambda: all(cluster.get("/v1/cluster", one)["feature_level"] == NEWEST for one in cluster.nodes),
            seconds=PATIENCE_SECONDS,
            what="all nodes at the new level",
        )
        goes_on(load, TOPIC)
        group.commit_next()
        cluster.stop(3)
        cluster.nodes[3].source = old_sources
        with pytest.raises(AssertionError, match="raise_feature_level"):
            cluster.start(3)
        cluster.nodes[3].source = SOURCE
        cluster.start(3)
        cluster.wait_until_well()
        goes_on(load, TOPIC)
        group.commit_next()
    topics = {topic["name"] for topic in cluster.get("/v1/topics")["topics"]}
    assert {"forth-2", "back-2", "again-2"} <= topics
