"""Real Spark compacts what it split and merged, its JVM is killed at it, and it compacts again: of each key the latest
record is there, at its offset; what is not to be compacted is as it was. The log of the consumer groups is compacted as
well, and says the same to the coordinators that start over from it.

The story is told once, for Spark starts in it; the tests below examine what it left.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_INVALID, AcknowledgeType, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.clients.drivers.sharing import Sharing
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.processes import Commands, descendants, is_jvm
from tests.end_to_end.readers import Reading, record_of
from tests.end_to_end.shell import command, environment, mainstem
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.errors import EXIT_DONE, EXIT_FAILED
from mainstem.pipeline.spark.java import find_java

pytestmark = pytest.mark.skipif(bool(find_java().missing), reason="there is no Java for Spark")

STATE, BRIEF, PLAIN = "state", "brief", "plain"
CONFIGS: dict[str, dict[str, str]] = {
    STATE: {"cleanup.policy": "compact"},
    BRIEF: {"cleanup.policy": "compact", "delete.retention.ms": "0"},
    PLAIN: {},
}
PARTITIONS = 2
QUEUES = [Queue(topic, partition) for topic in CONFIGS for partition in range(PARTITIONS)]
IN_TRANSACTIONS, ALL_KEPT = "in-transactions", "all-kept"
"""The latter is not compacted."""
TRANSACTIONS = 10
"""Of each chapter, with a record of the same key in either topic; every third is aborted."""
COMMITTED = [b"%d" % number for number in range(TRANSACTIONS) if number % 3] * 2
"""The values of two chapters' committed transactions."""
AUDITORS = "auditors"
"""A share group that reads committed messages alone."""
KEYS = 500
BATCH_RECORDS = 50
OFFSETS = "__consumer_offsets"
GROUPS = ("often", "seldom", "gone")
"""They commit, and the last is deleted then."""
COMMITS = {"often": 300, "seldom": 4, "gone": 30}
OFFSETS_PARTITIONS = 2
RECORDS = 2_000
"""Of each queue and chapter."""
CODECS = {STATE: "lz4", BRIEF: "none", PLAIN: "none"}
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.write_groups=2",
    f"groups.offsets_topic_partitions={OFFSETS_PARTITIONS}",
    "storage.write_cache_bytes=0",
    "queue_store.read_cache_bytes=0",
    "storage.prune_seconds=0.3",
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=0.5",
    "storage.checkpoint_seconds=0.5",
    "shares.auto_offset_reset=earliest",
)


class Groups(NamedTuple):
    """The part that is there of the consumer groups."""

    committed: dict[str, list[int]]
    """Of each group, the offsets committed for the queues of STATE."""
    log: dict[int, list[Record]]
    """The records that a consumer finds in each partition of their log, read from its beginning to its end."""
    stored_bytes: int
    """Of their log, on disk 2."""


class Story:
    def __init__(self, directory: Path, spark: OneSpark) -> None:
        self.node = Serving(directory, *SETTINGS)
        self.commands = Commands(directory)
        self.spark = spark
        self.random = random.Random(11)
        self.produced: Reading = {queue: [] for queue in QUEUES}
        self.split: Reading = {}
        self.first: Reading = {}
        """After the first compaction…"""
        self.tail: Reading = {}
        """…when more is produced behind it…"""
        self.killed: Reading = {}
        """…when a compaction was killed…"""
        self.files_before: list[str] = []
        self.files_killed: list[str] = []
        self.error_killed = ""
        self.second: Reading = {}
        """…after the next, and after a start."""
        self.restarted: Reading = {}
        self.ends: list[tuple[int, int]] = []
        """Of each queue, where the last reader came to stand, and its high watermark."""
        self.groups: dict[str, Groups] = {}
        self.kept: dict[str, int] = {}
        """Records of the first chapter that each topic's queues must keep, by the model."""
        self.status: dict[str, Any] = {}
        self.committed: list[Record] = []
        """The messages that came in transactions, as a reader of committed ones finds them in the end."""
        self.shared: list[bytes | None] = []
        """The values that members of a share group get of those that are all kept."""

    def tell(self) -> None:
        self.node.start()
        admin = AdminClient({"bootstrap.servers": self.node.kafka, **KEEP_TRYING})
        new = [NewTopic(topic, PARTITIONS, 1, config=config) for topic, config in CONFIGS.items()]
        new += [NewTopic(IN_TRANSACTIONS, 1, 1, config=CONFIGS[BRIEF]), NewTopic(ALL_KEPT, 1, 1)]
        for future in admin.create_topics(new).values():
            future.result(PATIENCE_SECONDS)
        self.produce()
        self.commit(admin)
        self.run_split()
        self.split = self.read()
        self.groups["split"] = self.read_groups()
        self.spark.run(self.node, "--once", "--compact-only")
        self.first = self.read()
        self.groups["compacted"] = self.read_groups()
        self.produce()
        self.run_split()
        self.tail = self.read()
        self.spark.run(self.node, "--once", "--merge-only")
        self.files_before = self.files()
        self.kill_a_compaction()
        self.killed = self.read()
        self.spark.run(self.node, "--once", "--compact-only")
        self.second = self.read()
        self.status = self.node.get("/v1/store")
        assert self.node.stop() == 0, self.node.output
        directories = ("--write-dir", str(self.node.write_dir), "--store-dir", str(self.node.store_dir))
        self.run("verify", "store", "verify", *directories)
        self.node.start()
        self.restarted = self.read()
        self.groups["restarted"] = self.read_groups()
        self.committed = self.read_committed()
        self.shared = self.share()

    def close(self) -> None:
        self.commands.close()
        self.node.close()

    def produce(self) -> None:
        """Updates and deletions of few keys; keys of the plain topic may be missing."""
        for topic in CONFIGS:
            producer = librdkafka.producer(
                self.node.kafka, **{"enable.idempotence": True, "compression.type": CODECS[topic], "linger.ms": 5,
                   "batch.num.messages": BATCH_RECORDS}
            )  # fmt: skip
            for partition in range(PARTITIONS):
                told = self.produced[Queue(topic, partition)]
                for _ in range(RECORDS):
                    key = b"key-%d" % self.random.randrange(KEYS)
                    value = None if self.random.random() < 0.1 else self.random.randbytes(self.random.randrange(300))
                    told.append(Record(len(told), key, value))
                    producer.produce(topic, value, key, partition)
                    producer.poll(0)
            assert producer.flush(PATIENCE_SECONDS) == 0
        producer = librdkafka.producer(self.node.kafka, **{"transactional.id": "teller"})
        producer.init_transactions(PATIENCE_SECONDS)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for topic in (IN_TRANSACTIONS, ALL_KEPT):
                producer.produce(topic, b"%d" % number, b"key")
            end = producer.commit_transaction if number % 3 else producer.abort_transaction
            assert producer.flush(PATIENCE_SECONDS) == 0
            end(PATIENCE_SECONDS)

    def commit(self, admin: AdminClient) -> None:
        """Groups commit how far they are, again and again; then one of them is deleted."""
        for group in GROUPS:
            reader = librdkafka.consumer(self.node.kafka, group)
            for number in range(1, COMMITS[group] + 1):
                offsets = [TopicPartition(STATE, partition, number + partition) for partition in range(PARTITIONS)]
                reader.commit(offsets=offsets, asynchronous=False)
            reader.close()
        admin.delete_consumer_groups([GROUPS[-1]])[GROUPS[-1]].result(PATIENCE_SECONDS)

    def read_groups(self) -> Groups:
        committed = {}
        for group in GROUPS:
            reader = librdkafka.consumer(self.node.kafka, group)
            partitions = librdkafka.partitions(STATE, range(PARTITIONS))
            committed[group] = [one.offset for one in reader.committed(partitions, PATIENCE_SECONDS)]
            reader.close()
        log: dict[int, list[Record]] = {}
        reader = librdkafka.consumer(self.node.kafka, "unused")
        for partition in range(OFFSETS_PARTITIONS):
            found = log[partition] = []
            end = librdkafka.watermarks(reader, OFFSETS, partition)[1]
            reader.assign([TopicPartition(OFFSETS, partition, 0)])
            while end and (not found or found[-1].offset + 1 < end):
                found += [record_of(message) for message in librdkafka.take(reader, 1)]
        reader.close()
        usage = self.node.get(f"/v1/store/usage/{OFFSETS}")
        return Groups(committed, log, sum(topic["stored_bytes"] for topic in usage["topics"]))

    def read_committed(self) -> list[Record]:
        reader = librdkafka.consumer(self.node.kafka, "unused", **{"isolation.level": "read_committed"})
        found: list[Record] = []
        end = librdkafka.watermarks(reader, IN_TRANSACTIONS, 0)[1]
        reader.assign([TopicPartition(IN_TRANSACTIONS, 0, 0)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while reader.position([TopicPartition(IN_TRANSACTIONS, 0)])[0].offset < end:
            assert time.monotonic() < deadline, "a reader of committed messages does not come to the end"
            found += [record_of(message) for message in reader.consume(100, 0.2) if message.error() is None]
        reader.close()
        return found

    def share(self) -> list[bytes | None]:
        """Both chapters are in merged files then."""
        mainstem(self.node, "config", "alter", "--group", AUDITORS, "--set", "share.isolation.level=read_committed")
        values: list[bytes | None] = []

        def keep(message: Message) -> AcknowledgeType:
            values.append(message.value())
            return AcknowledgeType.ACCEPT

        with Sharing(self.node.kafka, AUDITORS, ALL_KEPT) as member:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(values) < len(COMMITTED):
                assert time.monotonic() < deadline, f"a share group got {values}"
                member.take(keep)
            member.take(keep)  # nothing of an aborted transaction comes behind them
        return values

    def read(self) -> Reading:
        """Every queue from its beginning until it has come to its end."""
        reader = librdkafka.consumer(self.node.kafka, "unused")
        found: Reading = {queue: [] for queue in QUEUES}
        try:
            reader.assign([TopicPartition(*queue, 0) for queue in QUEUES])

            deadline = time.monotonic() + PATIENCE_SECONDS
            while not all(found[queue][-1:] == told[-1:] for queue, told in self.produced.items()):
                assert time.monotonic() < deadline, "the last record of every queue did not come"
                for message in reader.consume(500, 0.2):
                    assert message.error() is None, message.error()
                    found[Queue(message.topic(), message.partition())].append(record_of(message))
            places = reader.position([TopicPartition(*queue) for queue in QUEUES])
            reader.unassign()  # else each question below waits behind a fetch that waits for more
            self.ends = [
                (place.offset, librdkafka.watermarks(reader, place.topic, place.partition)[1]) for place in places
            ]
        finally:
            reader.close()
        return found

    def files(self) -> list[str]:
        """The names of the files that count."""
        with closing(sqlite3.connect(f"file:{self.node.write_dir}/manifest.sqlite?mode=ro", uri=True)) as manifest:
            return sorted({name for (name,) in manifest.execute("SELECT name FROM ranges")})

    def run_split(self) -> None:
        """And wait until nothing of it is left in the journal, of which all is read as it came."""
        committed = {name: group["committed"] for name, group in self.node.get("/v1/split")["groups"].items()}

        def is_pruned() -> bool:
            groups = self.node.get("/v1/split")["groups"]
            return all(groups[name]["pruned"] >= block for name, block in committed.items())

        self.spark.run(self.node, "--once")
        eventually(is_pruned, seconds=PATIENCE_SECONDS, what="a journal without what is split")

    def run(self, name: str, *arguments: str) -> None:
        process = self.commands.start(name, command(*arguments), environment(self.node))
        try:
            code = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
        assert code == EXIT_DONE, self.commands.log(name)

    def kill_a_compaction(self) -> None:
        """As soon as its first file is begun, which at this pace is long before it is finished; in a process of its
        own, as users start it."""
        there = set(self.paths())
        asked = command("store", "compact", "--once", "--bytes-per-second", "100000")
        process = self.commands.start("killed compaction", asked, environment(self.node))
        eventually(
            lambda: set(self.paths()) - there or process.poll() is not None,
            seconds=PATIENCE_SECONDS,
            what="a compaction that writes",
        )
        assert process.poll() is None, self.commands.log("killed compaction")
        (jvm,) = filter(is_jvm, descendants(process.pid))
        jvm.kill()
        assert process.wait(PATIENCE_SECONDS) == EXIT_FAILED, self.commands.log("killed compaction")
        self.files_killed = self.files()
        self.error_killed = self.node.get("/v1/split")["last_error"]

    def paths(self) -> list[str]:
        store = self.node.store_dir
        return [str(path) for path in (store / "packed").glob("*")]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, one_spark: OneSpark) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("compaction")
    story = Story(directory, one_spark)
    try:
        story.tell()
        yield story
    finally:
        story.close()
        shutil.rmtree(directory, ignore_errors=True)


def latest(told: list[Record]) -> list[Record]:
    newest = {record.key: record for record in told}
    return [record for record in told if newest[record.key] is record]


def check(found: Reading, produced: Reading, compacted: int | None = None) -> None:
    """`compacted`: records of each queue that were there to compact; None: all."""
    for queue, told in produced.items():
        end = len(told) if compacted is None else compacted
        expected = told if queue.topic == PLAIN else [*latest(told[:end]), *told[end:]]
        if queue.topic == BRIEF:
            dropped = {record.offset for record in expected[:-1] if record.value is None and record.offset < end - 1}
            left = [record for record in found[queue] if record.offset in dropped]
            assert len(dropped) > 2 * BATCH_RECORDS / 10
            assert all(end - BATCH_RECORDS <= record.offset for record in left), "the last batch keeps its tombstones"
            assert [one for one in found[queue] if one not in left] == [
                one for one in expected if one.offset not in dropped
            ]
        else:
            assert found[queue] == expected


def test_a_split_keeps_all_records(story: Story) -> None:
    assert story.split == {queue: told[:RECORDS] for queue, told in story.produced.items()}


def test_of_each_key_the_latest_record_is_there_after_a_compaction(story: Story) -> None:
    check(story.first, {queue: told[:RECORDS] for queue, told in story.produced.items()})


def test_what_came_later_is_read_behind_it(story: Story) -> None:
    check(story.tail, story.produced, RECORDS)


def test_a_compaction_that_is_killed_leaves_all_as_it_was(story: Story) -> None:
    assert story.files_killed == story.files_before
    assert story.killed == story.tail


def test_status_tells_what_the_splitter_died_of(story: Story) -> None:
    assert "JVM" in story.error_killed


def test_the_next_compaction_compacts_all_of_it(story: Story) -> None:
    check(story.second, story.produced)
    assert story.restarted == story.second


def test_a_table_that_is_restored_from_a_compacted_topic_is_that_of_all_records(story: Story) -> None:
    """As a stream processor does with its changelog: from the beginning until its position is the end of the log."""
    for queue, told in story.produced.items():
        if queue.topic != PLAIN:
            table = {record.key: record.value for record in story.restarted[queue] if record.value is not None}
            for record in story.restarted[queue]:
                if record.value is None:
                    table.pop(record.key, None)
            assert table == {one.key: one.value for one in latest(told) if one.value is not None}
    assert story.ends == [(2 * RECORDS, 2 * RECORDS)] * len(QUEUES)


def test_committed_offsets_are_those_of_before_and_their_log_takes_less_room(story: Story) -> None:
    expected = {
        group: [
            COMMITS[group] + partition if group != GROUPS[-1] else OFFSET_INVALID for partition in range(PARTITIONS)
        ]
        for group in GROUPS
    }
    assert {name: groups.committed for name, groups in story.groups.items()} == dict.fromkeys(story.groups, expected)
    before, after = story.groups["split"], story.groups["compacted"]
    assert sum(map(len, before.log.values())) > PARTITIONS * sum(COMMITS.values())
    assert after.log == {partition: latest(told) for partition, told in before.log.items()}
    assert story.groups["restarted"].log == after.log
    assert after.stored_bytes < before.stored_bytes / 2


def test_of_transactions_the_latest_committed_record_is_there(story: Story) -> None:
    last_committed = 2 * 2 * TRANSACTIONS - 4  # the last transaction was aborted, and each has its marker
    assert story.committed == [Record(last_committed, b"key", b"%d" % (TRANSACTIONS - 2))]


def test_a_share_group_of_committed_readers_gets_what_was_committed_from_files(story: Story) -> None:
    assert story.shared == COMMITTED


def test_files_of_other_topics_are_as_they_were(story: Story) -> None:
    for reading in (story.first, story.second, story.restarted):
        for partition in range(PARTITIONS):
            queue = Queue(PLAIN, partition)
            assert reading[queue] == story.produced[queue][: len(reading[queue])]
