"""A cluster with a remote tier in one bucket: leaders die at every step of an upload, and before what they let go is
deleted; the bucket is away for a while; a replica is replaced by one with empty disks. Kafka clients get each
acknowledged message once and in order all the same, from the bucket, and in the end nothing lies there but what counts,
and the chains that say so.

Each story is told once, under a load, and keeps its evidence; the tests below examine it. The short one has a single
death in it, in the middle of an upload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.message import Message
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on
from tests.end_to_end.load import GIVES_UP_MS, Load, Queue, Record
from tests.end_to_end.odd_nodes.tidy_node import GRACE_VARIABLE, TIDY_NODE
from tests.end_to_end.readers import Reading, SlowReader
from tests.end_to_end.shell import mainstem, replace_member
from tests.end_to_end.tiering import (
    RemoteRows,
    StoreView,
    considered,
    files_uploaded,
    local_files,
    read_by_kafka_python,
    remote_bytes_read,
    remote_rows,
    split_and_merge,
    tier_bytes,
    unsplit_bytes,
    upload_rest,
    uploads_of,
)
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from mainstem.storage.object_stores.config import ObjectStoreConfig
from mainstem.storage.store_files.object_names import file_objects

pytest.importorskip("obstore")

BUCKET = "mainstem-tiers"
TOPIC, DELETED = "kept", "deleted"
QUEUES = [Queue(TOPIC, partition) for partition in range(PARTITIONS)]
GROUPS = range(3)
LOST, NEW = 3, 4
MESSAGES_PER_SECOND = 200
STEPS = ("intended", "uploading", "uploaded", "recorded")
"""The last step of an upload when its leader dies."""


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
    """The steps that a leader had done of an upload when it died."""

    group: int
    intended: frozenset[str]
    """Names of files."""
    put: frozenset[str]
    """Names of objects in the bucket."""


class Story:
    """The events, and the evidence of them."""

    def __init__(self, directory: Path, s3: S3Server, *, is_long: bool) -> None:
        self.s3 = s3
        self.is_long = is_long
        self.directory = directory
        self.grace_is_over = directory / "grace is over"
        self.cluster = Cluster(directory, *settings_with(s3), program=TIDY_NODE)
        self.newcomer = newcomer(self.cluster, directory / f"node-{NEW}", s3)
        self.load: Load
        self.deaths: dict[str, Uploaded] = {}
        """By the step at which the leader died."""
        self.readings: dict[int, Reading] = {}
        """By the node that the client was told of."""
        self.from_the_bucket: dict[int, float] = {}
        """Node → bytes of batches that it served from there meanwhile."""
        self.rows: dict[int, RemoteRows] = {}
        """Node → what it knows of the tier in the end."""
        self.counted: set[tuple[int, str]] = set()
        """The files that count by the bucket."""
        self.superfluous: set[str] = set()

    def tell(self) -> None:
        cluster = self.cluster
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS, remote_storage_enable="true", local_retention_ms="1", retention_ms="-1")
        view = cluster.get("/v1/cluster")
        assert view["feature_level"] == view["feature_level_newest"], "a new cluster may have a remote tier"
        config = ObjectStoreConfig(endpoint=self.s3.endpoint, options=CREDENTIALS)
        self.bucket = StoreView(url_of(self.s3), config, view["cluster_id"])
        if self.is_long:
            self._has_a_file_in_the_bucket(DELETED)
        self.load = Load(cluster.bootstrap, [TOPIC], MESSAGES_PER_SECOND, GIVES_UP_MS)
        self.load.start()
        goes_on(self.load, TOPIC)
        for step in STEPS if self.is_long else ("uploading",):
            self._leader_dies(step)
        if self.is_long:
            self._leader_dies_before_it_deletes()
            self._bucket_is_away()
            self._replica_is_replaced()
        goes_on(self.load, TOPIC)
        self.load.finish()
        self.load.check_order()
        cluster.wait_until_well()
        if self.is_long:
            self._spark_uploads()
        self._settle()
        self._read()
        self.grace_is_over.touch()
        eventually(self._is_tidy, seconds=PATIENCE_SECONDS, what="a bucket with nothing but what counts")

    def close(self) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        self.cluster.close()
        self.newcomer.close()

    # --- what is done to it ---------------------------------------------------------------------------------

    def _leader_dies(self, step: str) -> None:
        """When this step of an upload is done, and none behind it; another one leads from then on."""
        for _ in range(2):  # two files of the same write group
            goes_on(self.load, TOPIC)
            self._split_and_merge()
        what = f"a leader that dies when an upload is {step}"
        leader = eventually(lambda: self._dead_at(step), seconds=PATIENCE_SECONDS, what=what)
        death = self.deaths[step]
        self._another_leads(death.group, leader)
        if step == "recorded":
            self._all_know_that_it_counts(death.group, death.intended)
        else:
            what = f"a bucket without what a leader left that died when an upload was {step}"
            eventually(lambda: not death.put & self.bucket.objects(), seconds=PATIENCE_SECONDS, what=what)
        goes_on(self.load, TOPIC)
        self._upload_rest()
        self.cluster.start(leader)

    def _dead_at(self, step: str) -> int:
        """The leader that died; 0: whoever is asked does not lead just now."""
        leader = self.cluster.leader(TOPIC, 0)
        if leader not in self.cluster.running:
            return 0
        with uploads_of(self.cluster.nodes[leader]) as uploads:
            work = uploads.next()
            if len(work.files) < 2:
                return 0
            done = uploads.put(work, {"intended": (), "uploading": work.files[:1]}.get(step, work.files))
            assert not done.failure
            if step == "recorded":
                assert uploads.hand_in(work, done) == "recorded"
            self.cluster.kill(leader)
            put = frozenset(one for name in done.names for one in file_objects(work.group, name))
            assert put <= self.bucket.objects(), "no other leads yet, to delete it"
        self.deaths[step] = Uploaded(work.group, frozenset(one.name for one in work.files), put)
        return leader

    def _has_a_file_in_the_bucket(self, topic: str) -> None:
        """That holds nothing else: there are no other messages yet."""
        cluster = self.cluster
        cluster.create_topic(topic, 1, remote_storage_enable="true", local_retention_ms="1")
        librdkafka.produce(cluster.bootstrap, topic, [Message(b"%d" % number * 1000) for number in range(100)])
        self._split_and_merge()
        self._upload_rest()
        eventually(
            lambda: all(tier_bytes(node, topic)[1] for node in cluster.nodes.values()),
            seconds=PATIENCE_SECONDS,
            what=f"{topic} in the bucket",
        )

    def _leader_dies_before_it_deletes(self) -> None:
        """A file of the tier is wholly dead, as its topic is deleted; the log says so, and its objects are there."""
        cluster = self.cluster
        (partition,) = cluster.get(f"/v1/topics/{DELETED}")["partitions"]
        group = partition["write_group"]
        replica = cluster.nodes[min(cluster.running)]
        before = remote_rows(replica).leaving
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **KEEP_TRYING})
        admin.delete_topics([DELETED])[DELETED].result(PATIENCE_SECONDS)

        def left() -> set[tuple[int, str]]:
            return {one for one in remote_rows(replica).leaving - before if one[0] == group}

        leaving = eventually(left, seconds=PATIENCE_SECONDS, what="a file that counts no more")
        leader, _term = cluster.terms()[group]
        cluster.kill(leader)
        put = frozenset(one for file in leaving for one in file_objects(*file))
        self.deaths["gone"] = Uploaded(group, frozenset(name for _group, name in leaving), put)
        assert put <= self.bucket.objects(), "readers may still be at it"
        self._another_leads(group, leader)
        cluster.start(leader)

    def _bucket_is_away(self) -> None:
        """Readers of what lies there alone wait, and nobody else does."""
        cluster = self.cluster
        self._split_and_merge()
        self._upload_rest()

        def copies_are_gone() -> bool:
            return not any(
                upto <= considered(node)[group]
                for node in cluster.nodes.values()
                for group, uptos in local_files(node).items()
                for upto in uptos
            )

        eventually(copies_are_gone, seconds=PATIENCE_SECONDS, what="merged files in the bucket alone")
        reader = SlowReader(cluster.bootstrap, QUEUES)
        try:
            self.s3.go_away()
            reader.start()
            goes_on(self.load, TOPIC)
            self._split_and_merge()
            failures = [upload_rest(node) for node in cluster.nodes.values()]
            assert any(failures), "nothing was uploaded while there was no bucket"
            read = Queue(TOPIC, 0), self.load.count(Queue(TOPIC, 0))
            found = librdkafka.consume(cluster.bootstrap, read[0].topic, 1, offset=read[1] - 1)
            assert [message.offset for message in found] == [read[1] - 1], "what is new lies on the nodes' disks"
            unanswered = partial(self._requests, "unavailable")
            eventually(unanswered, seconds=PATIENCE_SECONDS, what="requests that nobody answered")
            sent = self.load.acknowledged_count
            assert reader.count < sent, "some of it lies in the bucket alone"
            self.s3.come_back()
            eventually(
                lambda: reader.count >= sent or reader.failures, seconds=PATIENCE_SECONDS, what="a reader that goes on"
            )
            assert reader.failures == []
        finally:
            reader.stop()
        for queue, records in reader.found.items():
            assert [record.offset for record in records] == list(range(len(records))), queue

    def _replica_is_replaced(self) -> None:
        """By one with empty disks, which gets the rows of the tier from the leaders, and counts from then on."""
        cluster = self.cluster
        cluster.kill(LOST)
        del cluster.nodes[LOST]
        goes_on(self.load, TOPIC)
        cluster.nodes[NEW] = self.newcomer
        cluster.start(NEW)
        replace_member(cluster.nodes[1], LOST, NEW, "--wait")
        cluster.kill(1)
        goes_on(self.load, TOPIC)
        cluster.start(1)

    def _spark_uploads(self) -> None:
        """The files merged by then, in tasks on executors, each node what it leads."""
        nodes = self.cluster.nodes.values()
        self._split_and_merge()
        before = sum(map(files_uploaded, nodes))
        for node in nodes:
            mainstem(node, "store", "tier", "--once")
        assert sum(map(files_uploaded, nodes)) > before

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

    def _requests(self, outcome: str) -> float:
        name = "mainstem_object_store_requests_total"
        return sum(node.metric(name, outcome=outcome) for node in self.cluster.nodes.values())

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


def newcomer(cluster: Cluster, directory: Path, s3: S3Server) -> Serving:
    """A node that is told of the same `nameserver.peers` as those that founded the cluster."""
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    node = Serving(directory, f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *settings_with(s3))
    node.program = TIDY_NODE
    node.kafka, node.http, node.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    return node


@pytest.fixture(scope="module", params=["short", pytest.param("long", marks=pytest.mark.long)])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("tiers")
    with s3_server(BUCKET) as s3, pytest.MonkeyPatch.context() as patch:
        story = Story(directory, s3, is_long=request.param == "long")
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


def test_files_count_whose_leader_died_behind_the_record_and_no_others_of_the_dead(story: Story) -> None:
    names = {name for _group, name in story.counted}
    counts = {step: bool(death.intended & names) for step, death in story.deaths.items()}
    assert counts == {step: step == "recorded" for step in counts}
    assert counts.keys() == ({*STEPS, "gone"} if story.is_long else {"uploading"})
