"""Real Spark merges what it split, is killed at it, and merges again, while a reader follows: nothing is lost, repeated
or moved, and what is there in the end are packed files and a queue segment in Kafka's own format. It uploads the files
that a topic asks for to the remote tier then.

The story is told once, for Spark has to start anew in it; the tests below examine what it left.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.load import Load, Queue, Record
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.readers import Reading, SlowReader, read_all
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.fakes.splitting.run_reader import batches_in
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually
from tests.storage.queue_store.merges import offset_entries, time_entries

from mainstem.pipeline.spark.java import find_java
from mainstem.storage.store_files.store_file import JOINED_SUFFIX, SEGMENT_SUFFIX, path_of, paths_of

pytestmark = pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark")

TOPICS = {"orders": 4, "clicks": 3}
QUEUES = [Queue(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]
BULK = Queue("bulk", 0)
BULK_MESSAGES = 160
BULK_BYTES = 225_000
"""Together more than a segment of the topic has, 32 MiB."""
BULK_CONFIG = {"segment.bytes": str(32 << 20), "remote.storage.enable": "true"}
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.write_groups=2",
    "storage.write_cache_bytes=0",
    "queue_store.read_cache_bytes=0",
    "storage.prune_seconds=0.3",
)


def bulk_value(number: int) -> bytes:
    return random.Random(number).randbytes(BULK_BYTES)


class Story:
    def __init__(self, directory: Path, spark: OneSpark) -> None:
        self.remote = directory / "remote"
        self.remote.mkdir()
        self.node = Serving(directory, *SETTINGS, f"remote_dir={self.remote}")
        self.node.program = HASTY_NODE  # a killed splitter keeps its lease until that ends
        self.spark = spark
        self.before: list[str] = []
        """Files that count, before anything is merged."""
        self.killed: list[str] = []
        """And after a merge was killed."""
        self.left: list[str] = []
        """Files of the killed merge."""
        self.after: list[str] = []
        self.shown: list[dict[str, Any]] = []
        """Files of the bulk queue, as the node's view has them."""
        self.levels: list[dict[str, Any]] = []
        self.usage: dict[str, Any] = {}
        self.verified: dict[str, Any] = {}
        self.exported: dict[str, Any] = {}
        self.repaired: dict[str, Any] = {}
        self.files_repaired: list[str] = []
        """Files that count by the manifest that was made anew."""
        self.verified_again: dict[str, Any] = {}
        self.exports = directory / "exports"
        self.load: Load
        self.reader: SlowReader
        self.again: Reading = {}
        self.restarted: Reading = {}

    def tell(self) -> None:
        self.node.start()
        admin = AdminClient({"bootstrap.servers": self.node.kafka, **KEEP_TRYING})
        new = [NewTopic(name, count, 1) for name, count in TOPICS.items()]
        new.append(NewTopic(BULK.topic, 1, 1, config=BULK_CONFIG))
        for future in admin.create_topics(new).values():
            future.result(PATIENCE_SECONDS)
        self._produce_bulk()
        self.load = Load(self.node.kafka, list(TOPICS), messages_per_second=2_000)
        self.load.start()
        eventually(lambda: self.load.sent >= 4_000, seconds=PATIENCE_SECONDS, what="some messages")
        self.load.finish()
        self.reader = SlowReader(self.node.kafka, QUEUES)
        self.reader.start()
        self._split_and_kill_a_merge()
        self.spark.run(self.node, "--once", "--tier-only")  # merges as well
        eventually(
            lambda: self.reader.count >= self.load.sent or self.reader.failures,
            seconds=PATIENCE_SECONDS,
            what="the reader",
        )
        self.after = self.files()
        self.shown = self.node.get(f"/v1/topics/{BULK.topic}")["partitions"][0]["files"]
        self.levels = self.node.get("/v1/store")["levels"]
        self.usage = mainstem_json(self.node, "store", "usage")
        self.verified = self._verified()
        mainstem(self.node, "topic", "alter", BULK.topic, "--set", "segment.bytes=262144")
        self.exported = mainstem_json(self.node, "store", "export", BULK.topic, "--to", str(self.exports))
        self.again = read_all(self.node.kafka, self.ends())
        assert self.node.stop() == 0, self.node.output
        self._lose_the_manifest()
        self.node.start()
        self.restarted = read_all(self.node.kafka, self.ends())

    def close(self) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        if hasattr(self, "reader"):
            self.reader.stop()
        self.node.close()

    def files(self) -> list[str]:
        """The names of the files that count."""
        with closing(sqlite3.connect(f"file:{self.node.write_dir}/manifest.sqlite?mode=ro", uri=True)) as manifest:
            return sorted({name for (name,) in manifest.execute("SELECT name FROM ranges")})

    def ends(self) -> dict[Queue, int]:
        return {queue: len(offsets) for queue, offsets in self.load.acknowledged.items()} | {BULK: BULK_MESSAGES}

    def expected(self) -> dict[Queue, list[Record]]:
        bulk = [Record(number, None, bulk_value(number)) for number in range(BULK_MESSAGES)]
        return {**self.load.expected(), BULK: bulk}

    @property
    def _disks(self) -> tuple[str, ...]:
        return "--write-dir", str(self.node.write_dir), "--store-dir", str(self.node.store_dir)

    def _verified(self) -> dict[str, Any]:
        found: dict[str, Any] = mainstem_json(self.node, "store", "verify", *self._disks)
        return found

    def _lose_the_manifest(self) -> None:
        """Delete it, and have it made anew from its copy on disk 2."""
        for path in Path(self.node.write_dir).glob("manifest.sqlite*"):
            path.unlink()
        self.repaired = mainstem_json(self.node, "store", "repair", "--manifest", "--yes", *self._disks)
        self.files_repaired = self.files()
        self.verified_again = self._verified()

    def _produce_bulk(self) -> None:
        producer = librdkafka.producer(self.node.kafka, **{"enable.idempotence": True})
        for number in range(BULK_MESSAGES):
            producer.produce(BULK.topic, bulk_value(number))
            producer.flush(PATIENCE_SECONDS)

    def _split_and_kill_a_merge(self) -> None:
        """As soon as its first file is begun, which at this pace is long before it is finished."""
        spark = self.spark
        spark.run(self.node, "--once", "--no-merge", "--bytes-per-trigger", str(6 << 20))
        self.before = self.files()
        spark.begin(self.node, "--once", "--merge-only", "--bytes-per-second", "1000000")
        eventually(lambda: self.merged_files() or not spark.runs, seconds=PATIENCE_SECONDS, what="a merge that writes")
        assert spark.runs, spark.log
        spark.kill()
        self.left = self.merged_files()
        self.killed = self.files()

    def merged_files(self) -> list[str]:
        store = self.node.store_dir
        return [str(path) for place in ("packed", "queues") for path in (store / place).rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, one_spark: OneSpark) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("merge")
    story = Story(directory, one_spark)
    try:
        story.tell()
        yield story
    finally:
        story.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_all_runs_are_merged(story: Story) -> None:
    assert len(story.before) > 2
    assert all(name.endswith(".run") for name in story.before)
    assert story.left, "the first merge had begun to write when it was killed"
    assert not any(name.endswith(".run") for name in story.after)
    assert any(name.endswith(".pack") for name in story.after)


def test_the_views_name_the_kinds_of_files(story: Story) -> None:
    assert "queue segment" in {file["kind"] for file in story.shown}
    shown = Counter[str]()
    for level in story.levels:
        shown[level["kind"]] += level["files"]
    assert shown == {"queue segment": 1, "packed file": sum(name.endswith(".pack") for name in story.after)}


def test_a_reader_sees_each_message_once_while_they_are_merged(story: Story) -> None:
    assert story.reader.failures == []
    assert story.reader.found == story.load.expected()


def test_everything_is_read_back_from_merged_files(story: Story) -> None:
    expected = story.expected()
    assert story.again == expected
    assert story.restarted == expected


def test_the_queue_that_fills_a_segment_has_it_in_kafkas_format(story: Story) -> None:
    (segment,) = [name for name in story.after if name.endswith(SEGMENT_SUFFIX)]
    assert segment.startswith("bulk/0/")
    log, _, index, timeindex = (story.node.store_dir / path for path in paths_of(segment))
    batches = batches_in(log.read_bytes())
    assert sum(map(len, batches)) > BULK_MESSAGES * BULK_BYTES
    entries = [(int.from_bytes(part[:4], "big"), int.from_bytes(part[4:], "big")) for part in pieces(index, 8)]
    assert entries == offset_entries(batches)
    times = [(int.from_bytes(part[:8], "big"), int.from_bytes(part[8:], "big")) for part in pieces(timeindex, 12)]
    assert times == time_entries(batches)
    assert all((story.node.store_dir / path_of(name)).exists() for name in story.after)


def test_a_check_of_the_whole_store_finds_nothing_beside_the_running_node(story: Story) -> None:
    assert (story.verified["ok"], story.verified["files"]) == (True, len(story.after))
    assert {file["kind"] for file in story.verified["unnamed"]} <= {"orphan", "temporary"}, "the killed merge's"


def test_the_manifest_is_made_anew_when_it_is_lost(story: Story) -> None:
    """The node started on it, and all was read once more."""
    assert (story.repaired["made"], story.repaired["absent"], story.repaired["faults"]) == (True, [], [])
    assert story.files_repaired == story.after
    assert (story.verified_again["ok"], story.verified_again["files"]) == (True, len(story.after))


def test_usage_tells_what_each_topic_has_on_which_level(story: Story) -> None:
    by_name = {topic["name"]: topic for topic in story.usage["topics"]}
    (level,) = by_name[BULK.topic]["levels"]
    (segment,) = [name for name in story.after if name.endswith(SEGMENT_SUFFIX)]
    size = (story.node.store_dir / path_of(segment)).stat().st_size
    assert level == {"level": 2, "kind": "queue segment", "files": 1, "bytes": size}
    packed = sum(name.endswith(".pack") for name in story.after)
    assert {topic for topic in TOPICS if by_name[topic]["stored_bytes"]} == set(TOPICS)
    assert max(it["files"] for topic in TOPICS for it in by_name[topic]["levels"]) <= packed
    batches = sum(level["batch_bytes"] for level in story.usage["levels"])
    assert sum(topic["stored_bytes"] for topic in story.usage["topics"]) == batches
    assert story.usage["unread_files"] == 0


def test_the_topic_that_asks_for_it_lies_in_the_remote_tier_and_no_other(story: Story) -> None:
    (segment,) = [name for name in story.after if name.endswith(SEGMENT_SUFFIX)]
    local = [story.node.store_dir / path for path in paths_of(segment)]
    objects = sorted(path for path in story.remote.glob("*/groups/*/files/**/*") if path.is_file())  # not the chain
    assert {path.relative_to(story.remote).parts[3:6] for path in objects} == {("files", "queues", "bulk")}
    (copy,) = objects
    assert copy.suffix == JOINED_SUFFIX
    log, extents = (path.read_bytes() for path in local[:2])
    joined = copy.read_bytes()
    assert joined[64 : 64 + len(log)] == log
    assert len(joined) == len(log) + len(extents)
    assert copy.parent.name != local[0].parent.name, "it has a name of its own"
    remote = story.node.write_dir / "remote-manifest.sqlite"
    with closing(sqlite3.connect(f"file:{remote}?mode=ro", uri=True)) as manifest:
        counted = [name for (name,) in manifest.execute("SELECT name FROM ranges")]
    assert counted == ["/".join(copy.relative_to(story.remote).parts[5:])]


def test_an_exported_queue_has_the_batches_of_its_segment(story: Story) -> None:
    (segment,) = [name for name in story.after if name.endswith(SEGMENT_SUFFIX)]
    (partition,) = story.exported["partitions"]
    directory = story.exports / f"{BULK.topic}-0"
    logs = sorted(directory.glob("*.log"))
    assert len(logs) == partition["segments"] > 100, "the topic's segment.bytes is 256 KiB"
    assert b"".join(path.read_bytes() for path in logs) == (story.node.store_dir / path_of(segment)).read_bytes()


def test_the_object_store_alone_has_the_batches_of_the_segment(story: Story, tmp_path: Path) -> None:
    def uploaded() -> bool:
        found = mainstem_json(story.node, "store", "adopt", str(story.remote), "--list")
        files = sum(group["files"] for cluster in found["clusters"] for group in cluster["groups"])
        return files == 1 and any(topic["name"] == BULK.topic for topic in found["clusters"][0]["topics"])

    eventually(uploaded, seconds=PATIENCE_SECONDS, what="the chain and the topics in the store")
    mainstem(story.node, "store", "adopt", str(story.remote), "--export", str(tmp_path), "--topic", BULK.topic)
    (segment,) = [name for name in story.after if name.endswith(SEGMENT_SUFFIX)]
    logs = sorted(tmp_path.glob(f"{BULK.topic}-0/*.log"))
    assert b"".join(path.read_bytes() for path in logs) == (story.node.store_dir / path_of(segment)).read_bytes()


def pieces(path: Path, size: int) -> list[bytes]:
    data = path.read_bytes()
    return [data[at : at + size] for at in range(0, len(data), size)]
