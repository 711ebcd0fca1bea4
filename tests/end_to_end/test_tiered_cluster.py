"""A cluster with a remote tier in one bucket, whose leader dies in the middle of an upload, under a load. Kafka clients
get each acknowledged message once and in order all the same, from the bucket, and in the end nothing lies there but
what counts, and the chains that say so.

The story is told once and keeps its evidence; the tests below examine it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on
from tests.end_to_end.load import GIVES_UP_MS, Load, Queue, Record
from tests.end_to_end.readers import Reading
from tests.end_to_end.tidy_node import GRACE_VARIABLE, TIDY_NODE
from tests.end_to_end.tiering import (
    RemoteRows,
    StoreView,
    local_files,
    read_by_kafka_python,
    remote_bytes_read,
    remote_rows,
    split_and_merge,
    unsplit_bytes,
    upload_rest,
    uploads_of,
)
from tests.patience import PATIENCE_SECONDS
from tests.serving import eventually
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.store_files.object_names import file_objects

pytest.importorskip("obstore")

BUCKET = "mainstem-tiers"
TOPIC = "kept"
GROUPS = range(3)
MESSAGES_PER_SECOND = 200


def settings_with(s3: S3Server) -> tuple[str, ...]:
    return (
        "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
        "storage.write_cache_bytes=0", "queue_store.read_cache_bytes=0", "storage.checkpoint_seconds=1",
        "storage.prune_seconds=0.3", "storage.retention_check_seconds=1", f"nameserver.write_groups={len(GROUPS)}",
        f"remote_dir={url_of(s3)}", f"object_store.endpoint={s3.endpoint}", "object_store.retry_seconds=2",
        "object_store.probe_seconds_max=1", *(f"object_store.options.{key}={CREDENTIALS[key]}" for key in CREDENTIALS),
    )  # fmt: skip


def url_of(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/tier"


class Uploaded(NamedTuple):
    """What a leader had done of an upload when it died."""

    group: int
    intended: frozenset[str]
    """Names of files."""
    put: frozenset[str]
    """Names of objects in the bucket."""


class Story:
    """What happens, and the evidence of it."""

    def __init__(self, directory: Path, s3: S3Server) -> None:
        self.s3 = s3
        self.grace_is_over = directory / "grace is over"
        self.cluster = Cluster(directory, *settings_with(s3), program=TIDY_NODE)
        self.load: Load
        self.death: Uploaded
        self.readings: dict[int, Reading] = {}
        """By the node that the client was told of."""
        self.from_the_bucket: dict[int, float] = {}
        """Node → bytes of batches that it served from there meanwhile."""
        self.rows: dict[int, RemoteRows] = {}
        """Node → what it knows of the tier in the end."""
        self.counted: set[tuple[int, str]] = set()
        """What counts, as the bucket says."""
        self.superfluous: set[str] = set()

    def tell(self) -> None:
        cluster = self.cluster
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS, remote_storage_enable="true", local_retention_ms="1", retention_ms="-1")
        view = cluster.get("/v1/cluster")
        assert view["feature_level"] == view["feature_level_newest"], "a new cluster may have a remote tier"
        config = ObjectStoreConfig(endpoint=self.s3.endpoint, options=CREDENTIALS)
        self.bucket = StoreView(url_of(self.s3), config, view["cluster_id"])
        self.load = Load(cluster.bootstrap, [TOPIC], MESSAGES_PER_SECOND, GIVES_UP_MS)
        self.load.start()
        goes_on(self.load, TOPIC)
        self._leader_dies()
        goes_on(self.load, TOPIC)
        self.load.finish()
        self.load.check_order()
        cluster.wait_until_well()
        self._settle()
        self._read()
        self.grace_is_over.touch()
        eventually(self._is_tidy, seconds=PATIENCE_SECONDS, what="a bucket with nothing but what counts")

    def close(self) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        self.cluster.close()

    # --- what is done to it ---------------------------------------------------------------------------------

    def _leader_dies(self) -> None:
        """One of several files is in the bucket; another node leads from then on, and deletes it."""
        for _ in range(2):  # two files of the same write group
            goes_on(self.load, TOPIC)
            self._split_and_merge()
        leader = eventually(self._dead_leader, seconds=PATIENCE_SECONDS, what="a leader that dies uploading")
        eventually(
            lambda: self.cluster.terms()[self.death.group][0] not in (-1, 0, leader),
            seconds=PATIENCE_SECONDS,
            what=f"a leader of write group {self.death.group} other than node {leader}",
        )
        eventually(
            lambda: not self.death.put & self.bucket.objects(),
            seconds=PATIENCE_SECONDS,
            what="a bucket without what a dead leader left there",
        )
        goes_on(self.load, TOPIC)
        self._upload_rest()
        self.cluster.start(leader)

    def _dead_leader(self) -> int:
        """The node that died; 0: whoever is asked does not lead just now."""
        leader = self.cluster.leader(TOPIC, 0)
        if leader not in self.cluster.running:
            return 0
        with uploads_of(self.cluster.nodes[leader]) as uploads:
            work = uploads.next()
            if len(work.files) < 2:
                return 0
            done = uploads.put(work, work.files[:1])
            assert not done.failure
            self.cluster.kill(leader)
            put = frozenset(one for name in done.names for one in file_objects(work.group, name))
            assert put <= self.bucket.objects(), "no other leads yet, to delete it"
        self.death = Uploaded(work.group, frozenset(one.name for one in work.files), put)
        return leader

    def _split_and_merge(self) -> None:
        for node_id in self.cluster.running:
            split_and_merge(self.cluster.nodes[node_id])

    def _upload_rest(self) -> None:
        """All that is merged, each node what it leads."""

        def uploaded() -> bool:
            failures = [upload_rest(self.cluster.nodes[node_id]) for node_id in self.cluster.running]
            return not any(failures)

        eventually(uploaded, seconds=PATIENCE_SECONDS, what="everything that is merged uploaded")

    def _settle(self) -> None:
        """Until each node leads a part of it, and has what it leads in the bucket alone."""
        cluster = self.cluster

        def settled() -> bool:
            if not all(cluster.led_by(node_id, TOPIC) for node_id in cluster.nodes):
                return False
            self._split_and_merge()
            self._upload_rest()
            return not any(
                unsplit_bytes(cluster.nodes[leader]) or group in local_files(cluster.nodes[leader])
                for group, (leader, _term) in cluster.terms().items()
            )

        eventually(settled, seconds=PATIENCE_SECONDS, what="what each node leads in the bucket alone")

    # --- what is seen of it ---------------------------------------------------------------------------------

    def _another_leads(self, group: int, dead: int) -> None:
        eventually(
            lambda: self.cluster.terms()[group][0] not in (-1, 0, dead),
            seconds=PATIENCE_SECONDS,
            what=f"a leader of write group {group} other than node {dead}",
        )

    def _all_know_that_it_counts(self, group: int, names: frozenset[str]) -> None:
        wanted = {(group, name) for name in names}
        nodes = [self.cluster.nodes[node_id] for node_id in self.cluster.running]
        eventually(
            lambda: all(wanted <= remote_rows(node).counted for node in nodes),
            seconds=PATIENCE_SECONDS,
            what="nodes that know what their former leader had recorded",
        )

    def _read(self) -> None:
        ends = {queue: len(records) for queue, records in self.load.expected().items()}
        for node_id, node in self.cluster.nodes.items():
            self.readings[node_id] = read_by_kafka_python(node.kafka, ends)
        self.from_the_bucket = {node_id: remote_bytes_read(node) for node_id, node in self.cluster.nodes.items()}

    def _is_tidy(self) -> bool:
        self.rows = {node_id: remote_rows(node) for node_id, node in self.cluster.nodes.items()}
        self.counted = self.bucket.counted(GROUPS)
        self.superfluous = self.bucket.superfluous(GROUPS, self.counted)
        return not self.superfluous and all(
            rows == RemoteRows(self.counted, set(), set()) for rows in self.rows.values()
        )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("tiers")
    with s3_server(BUCKET) as s3, pytest.MonkeyPatch.context() as patch:
        story = Story(directory, s3)
        patch.setenv(GRACE_VARIABLE, str(story.grace_is_over))
        try:
            story.tell()
            yield story
        finally:
            story.close()


def the_same_for(node_ids: Sequence[int], expected: dict[Queue, list[Record]]) -> dict[int, Reading]:
    return dict.fromkeys(node_ids, expected)


def test_clients_of_every_node_read_each_acknowledged_message_once_and_in_order(story: Story) -> None:
    assert story.readings == the_same_for(list(story.cluster.nodes), story.load.expected())


def test_every_node_serves_from_the_bucket(story: Story) -> None:
    assert min(story.from_the_bucket.values()) > 0
    values = sum(len(record.value or b"") for records in story.load.expected().values() for record in records)
    assert sum(story.from_the_bucket.values()) > values * len(story.cluster.nodes), "nothing of it lay anywhere else"


def test_all_nodes_and_the_bucket_know_the_same_files_and_no_others_are_there(story: Story) -> None:
    assert {node_id: rows.counted for node_id, rows in story.rows.items()} == dict.fromkeys(
        story.cluster.nodes, story.counted
    )
    assert {group for group, _name in story.counted} == set(GROUPS)
    assert story.superfluous == set()


def test_nothing_counts_that_the_dead_leader_was_about_to_upload(story: Story) -> None:
    assert len(story.death.intended) > 1
    assert not story.death.intended & {name for _group, name in story.counted}
