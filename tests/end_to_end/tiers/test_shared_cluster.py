"""A cluster whose queue store lies in one bucket: leaders die at every step of a split and of a merge, while their
tasks go on; a replica is replaced by one with empty disks; and in the end all nodes are lost, and made anew. Kafka
clients get each acknowledged message once and in order all the same, from the bucket, and nothing lies there but what
counts, and the chains that say so.

Each story is told once, under a load, and keeps its evidence; the tests below examine it. The short one has a single
death in it, in the middle of a split.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on
from tests.end_to_end.load import GIVES_UP_MS, Load, Record
from tests.end_to_end.odd_nodes.tidy_node import GRACE_VARIABLE, TIDY_NODE
from tests.end_to_end.readers import Reading
from tests.end_to_end.shell import mainstem, replace_member
from tests.end_to_end.splitters.splits_by_hand import work_of
from tests.end_to_end.tiering import (
    RUN_BYTES,
    RemoteRows,
    StoreView,
    read_by_kafka_python,
    remote_bytes_read,
    remote_rows,
    unsplit_bytes,
)
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tools.s3_server import CREDENTIALS, S3Server, s3_server

from mainstem.pipeline.errors import MergeFailed, NamesRefused
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.rpc.messages.split import PASSED_OVER, WriteGroupRange
from mainstem.storage.object_stores.config import ObjectStoreConfig

pytest.importorskip("obstore")

BUCKET = "mainstem-shared"
TOPIC, OTHER = "kept", "kept-for-a-week"
"""Of two retention classes, so that each split of a write group writes two runs."""
GROUPS = range(3)
LOST, NEW = 3, 4
MESSAGES_PER_SECOND = 200
STEPS = ("announced", "begun", "written", "recorded", "merged", "merge recorded")
"""The last step of a split or of a merge when a leader dies."""
WRITTEN = {"announced": 0, "begun": 1}
"""How many runs are whole in the bucket then, as long as some are to come: their task goes on."""
SHORT_STEPS = ("begun",)
COUNTING = {"recorded", "merge recorded"}
FILE_SUFFIXES = (".run", ".pack", ".seg", ".extents")


def settings_with(s3: S3Server) -> tuple[str, ...]:
    return (
        "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
        "storage.write_cache_bytes=0", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
        "storage.retention_check_seconds=1", f"nameserver.write_groups={len(GROUPS)}", f"store_dir={url_of(s3)}",
        f"object_store.endpoint={s3.endpoint}", "object_store.retry_seconds=2", "object_store.probe_seconds_max=1",
        *(f"object_store.options.{key}={CREDENTIALS[key]}" for key in CREDENTIALS),
    )  # fmt: skip


def url_of(s3: S3Server) -> str:
    return f"s3://{s3.bucket}/store"


class Story:
    """The events, and the evidence of them."""

    def __init__(self, directory: Path, s3: S3Server, *, is_long: bool) -> None:
        self.s3 = s3
        self.is_long = is_long
        self.grace_is_over = directory / "grace is over"
        self.cluster = Cluster(directory, *settings_with(s3), program=TIDY_NODE)
        self.newcomer = newcomer(self.cluster, directory / f"node-{NEW}", s3)
        self.load: Load
        self.deaths: dict[str, frozenset[tuple[int, str]]] = {}
        """By the step at which the leader died: (write group, name) of the files that came of its work."""
        self.splits: dict[str, SplitSlice] = {}
        self.handed_in: dict[str, list[str]] = {}
        """The answers of the leaders of then to these splits."""
        self.readings: dict[int, Reading] = {}
        """By the node that the client was told of."""
        self.load_again: Load
        """The records acknowledged after all nodes had been lost."""
        self.readings_again: dict[int, Reading] = {}
        self.from_the_bucket: dict[int, float] = {}
        """Node → bytes of batches that it served from there meanwhile."""
        self.rows: dict[int, RemoteRows] = {}
        """Node → what it knows of the store in the end."""
        self.counted: set[tuple[int, str]] = set()
        """The files that count by the bucket."""
        self.superfluous: set[str] = set()
        self.on_disks: list[Path] = []
        """Files of the queue store that lie on a node's own disk."""

    def tell(self) -> None:
        cluster = self.cluster
        cluster.start()
        cluster.create_topic(TOPIC, PARTITIONS, retention_ms="-1")
        cluster.create_topic(OTHER, PARTITIONS, retention_ms="604800000")
        config = ObjectStoreConfig(endpoint=self.s3.endpoint, options=CREDENTIALS)
        self.bucket = StoreView(url_of(self.s3), config, cluster.get("/v1/cluster")["cluster_id"])
        self.load = Load(cluster.bootstrap, [TOPIC, OTHER], MESSAGES_PER_SECOND, GIVES_UP_MS)
        self.load.start()
        self._go_on()
        for step in STEPS if self.is_long else SHORT_STEPS:
            self._leader_dies(step)
        if self.is_long:
            self._replica_is_replaced()
        self._go_on()
        self.load.finish()
        self.load.check_order()
        cluster.wait_until_well()
        self._settle()
        self._read()
        self.grace_is_over.touch()
        eventually(self._is_tidy, seconds=PATIENCE_SECONDS, what="a bucket with nothing but what counts")
        self.on_disks = [path for node in cluster.nodes.values() for path in files_below(node.write_dir.parent)]
        if self.is_long:
            self.grace_is_over.unlink()  # else a split that takes long finds that its names were taken back
            self._all_nodes_are_lost()

    def close(self) -> None:
        """Nobody asks for the loads any more, and pytest holds on to the story: their producers would stay open."""
        for name in ("load", "load_again"):
            if hasattr(self, name):
                getattr(self, name).stop()
                delattr(self, name)
        self.cluster.close()
        self.newcomer.close()

    # --- what is done to it ---------------------------------------------------------------------------------

    def _go_on(self, load: Load | None = None) -> None:
        for topic in (TOPIC, OTHER):
            goes_on(load or self.load, topic)

    def _leader_dies(self, step: str) -> None:
        """When this step of a split or a merge is done, and none behind it; another one leads from then on."""
        self._go_on()
        dead = self._dead_in_a_merge if step.startswith("merge") else self._dead_in_a_split
        leader = eventually(lambda: dead(step), seconds=PATIENCE_SECONDS, what=f"a leader that dies: {step}")
        files = self.deaths[step]
        for group in {group for group, _name in files}:
            self._another_leads(group, leader)
        if step in COUNTING:
            self._all_know_that_they_count(files)
        if step in self.splits:
            self.handed_in[step] = self._handed_in_again(self.splits[step])
        self._go_on()
        self.cluster.start(leader)

    def _dead_in_a_split(self, step: str) -> int:
        """The leader that died, after its task had ended; 0: whoever is asked does not lead just now, or has nothing to
        split."""
        leader = self.cluster.leader(TOPIC, 0)
        if leader not in self.cluster.running:
            return 0

        def written(count: int) -> None:
            if count == WRITTEN.get(step) and leader in self.cluster.running:
                self.cluster.kill(leader)

        try:
            with work_of(self.cluster.nodes[leader]) as work:
                done = work.split_next(written)
                if done is None:
                    return 0
                if step == "recorded" and set(work.hand_in(done.ranges, done.files)) != {"committed"}:
                    return 0
                if leader in self.cluster.running:
                    assert step not in WRITTEN
                    self.cluster.kill(leader)
        except NamesRefused:
            return 0
        self.splits[step] = done
        self.deaths[step] = frozenset((file.group, file.name) for file in done.files)
        return leader

    def _dead_in_a_merge(self, step: str) -> int:
        """As `_dead_in_a_split`."""
        self._split_and_merge(merging=False)
        leader = self.cluster.leader(TOPIC, 0)
        if leader not in self.cluster.running:
            return 0
        try:
            with work_of(self.cluster.nodes[leader]) as work:
                done = work.merge_next()
                if done is None or (step == "merge recorded" and work.hand_in_merge(done) != "merged"):
                    return 0
                self.cluster.kill(leader)
        except (NamesRefused, MergeFailed):
            return 0
        self.deaths[step] = frozenset((done.work.group, file.name) for file in done.files)
        return leader

    def _handed_in_again(self, done: SplitSlice) -> list[str]:
        """The answers of the leaders of now to a split of one who is dead, per write group."""

        def outcome(entry: WriteGroupRange) -> str:
            leader = self.cluster.terms()[entry.group][0]
            if leader not in self.cluster.running:
                return ""
            with work_of(self.cluster.nodes[leader]) as work:
                (said,) = work.hand_in((entry,), tuple(file for file in done.files if file.group == entry.group))
            return "" if "another node leads" in said else said

        return [
            eventually(partial(outcome, entry), seconds=PATIENCE_SECONDS, what="a leader's word")
            for entry in done.ranges
        ]

    def _replica_is_replaced(self) -> None:
        """By one with empty disks, which gets the rows of the store from the leaders, and counts from then on."""
        cluster = self.cluster
        cluster.kill(LOST)
        del cluster.nodes[LOST]
        self._go_on()
        cluster.nodes[NEW] = self.newcomer
        cluster.start(NEW)
        replace_member(cluster.nodes[1], LOST, NEW, "--wait")
        cluster.kill(1)
        self._go_on()
        cluster.start(1)

    def _all_nodes_are_lost(self) -> None:
        """With their disks; others go on from the bucket, where everything was split."""
        cluster = self.cluster
        cluster.kill(*cluster.nodes)
        peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
        for node in cluster.nodes.values():
            shutil.rmtree(node.write_dir)
            node.settings += (f"nameserver.peers={json.dumps(peers)}",)  # those that are there: one was replaced
            settings = [word for setting in node.settings for word in ("--set", setting)]
            mainstem(node, "store", "adopt", url_of(self.s3), "--into", str(node.write_dir), *settings)
        cluster.start()
        again = self.load_again = Load(cluster.bootstrap, [TOPIC, OTHER], MESSAGES_PER_SECOND, GIVES_UP_MS)
        again.start()
        self._go_on(again)
        again.finish()
        cluster.wait_until_well()
        self._split_and_merge(merging=True)
        expected = again.expected()
        for node_id, node in cluster.nodes.items():
            found: Reading = {}
            for queue, records in self.load.expected().items():
                count = len(records) + len(expected[queue])
                read = librdkafka.consume(node.kafka, queue.topic, count, queue.partition)
                found[queue] = [Record(one.offset, one.key, one.value) for one in read]
            self.readings_again[node_id] = found

    def _split_and_merge(self, *, merging: bool) -> None:
        """The write groups that each node leads, as far as it does so meanwhile."""
        for node_id in sorted(self.cluster.running):
            with suppress(NamesRefused, MergeFailed), PlainSplitter(self.cluster.nodes[node_id].http, RUN_BYTES) as one:
                one.split(merging=False)
                if merging:
                    one.drain()

    def _settle(self) -> None:
        """Until each node leads a part of it, and has what it leads in the bucket alone."""
        cluster = self.cluster

        def settled() -> bool:
            if not all(cluster.led_by(node_id, TOPIC) for node_id in cluster.nodes):
                return False
            self._split_and_merge(merging=True)
            return not any(map(unsplit_bytes, cluster.nodes.values()))

        eventually(settled, seconds=PATIENCE_SECONDS, what="everything in the bucket alone")

    # --- what is seen of it ---------------------------------------------------------------------------------

    def _another_leads(self, group: int, dead: int) -> None:
        eventually(
            lambda: self.cluster.terms()[group][0] not in (-1, 0, dead),
            seconds=PATIENCE_SECONDS,
            what=f"a leader of write group {group} other than node {dead}",
        )

    def _all_know_that_they_count(self, wanted: frozenset[tuple[int, str]]) -> None:
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


def files_below(directory: Path) -> list[Path]:
    """Files of a queue store; beside each of its queue segments lie extents."""
    return [path for path in directory.rglob("*") if path.suffix in FILE_SUFFIXES]


def newcomer(cluster: Cluster, directory: Path, s3: S3Server) -> Serving:
    """A node that is told of the same `nameserver.peers` as those that founded the cluster."""
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    node = Serving(directory, f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *settings_with(s3))
    node.program = TIDY_NODE
    node.kafka, node.http, node.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    return node


LONG = pytest.param("long", marks=pytest.mark.long)
"""The story in which all nodes are lost, among others."""


@pytest.fixture(scope="module", params=["short", LONG])
def story(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("shared")
    with s3_server(BUCKET) as s3, pytest.MonkeyPatch.context() as patch:
        story = Story(directory, s3, is_long=request.param == "long")
        patch.setenv(GRACE_VARIABLE, str(story.grace_is_over))
        try:
            story.tell()
            yield story
        finally:
            story.close()


def test_clients_of_every_node_read_each_acknowledged_message_once_and_in_order(story: Story) -> None:
    assert story.readings == dict.fromkeys(story.cluster.nodes, story.load.expected())


def test_everything_that_is_split_lies_in_the_bucket_alone(story: Story) -> None:
    values = sum(len(record.value or b"") for records in story.load.expected().values() for record in records)
    assert min(story.from_the_bucket.values()) > 0
    assert sum(story.from_the_bucket.values()) > values * len(story.cluster.nodes), "nothing of it lay anywhere else"
    assert story.on_disks == []


def test_all_nodes_and_the_bucket_know_the_same_files_and_no_others_are_there(story: Story) -> None:
    assert {node_id: rows.counted for node_id, rows in story.rows.items()} == dict.fromkeys(
        story.cluster.nodes, story.counted
    )
    assert {group for group, _name in story.counted} == set(GROUPS)
    assert story.superfluous == set()


def test_files_count_that_their_leader_recorded_before_it_died_and_no_others_of_the_dead(story: Story) -> None:
    assert story.deaths.keys() == set(STEPS if story.is_long else SHORT_STEPS)
    for step, files in story.deaths.items():
        assert files, step
        if step not in COUNTING:
            assert not files & story.counted, step
    assert story.handed_in.keys() == story.splits.keys()
    for step, outcomes in story.handed_in.items():
        for outcome in outcomes:
            assert outcome.startswith("replayed" if step in COUNTING else PASSED_OVER), step


@pytest.mark.parametrize("story", [LONG], indirect=True)
def test_a_cluster_that_lost_all_nodes_has_what_was_split_and_goes_on(story: Story) -> None:
    before, after = story.load.expected(), story.load_again.expected()
    assert min(record.offset for records in after.values() for record in records) > 1 << 32
    everything = {queue: [*records, *after[queue]] for queue, records in before.items()}
    assert story.readings_again == dict.fromkeys(story.cluster.nodes, everything)
