"""One node, one load, everything that can die dies: what was acknowledged is split exactly once and read back.

The story is told once, for Spark starts again and again in it, and keeps its evidence; the tests below examine it. In
it, in this order: the node is killed in the middle of a task and loses Spark's checkpoint; the splitter's driver is
killed, and a detached `--once` competes with the embedded splitter for the lease; the embedded splitter is frozen in
the middle of a task until `--once` has split the rest, and wakes up as a zombie. A load of idempotent, keyed messages
flows through all of it, and a reader follows from the beginning with a long rest, while segments are pruned under it.
(A JVM alone is killed in `test_compaction.py`.)
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.load import Load, Queue, Record
from tests.end_to_end.odd_nodes.hasty_node import HASTY_NODE
from tests.end_to_end.processes import Splitters, is_jvm
from tests.end_to_end.readers import Reading, SlowReader, read_all
from tests.end_to_end.shell import mainstem_json
from tests.end_to_end.splitters.one_spark import OneSpark
from tests.end_to_end.store import Recorded, recorded, records_in_runs, runs_being_written
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPICS = {"orders": 4, "clicks": 3, "audit": 1}
"""Name -> partitions."""
QUEUES = [Queue(topic, partition) for topic, count in TOPICS.items() for partition in range(count)]

SETTINGS = (
    "pipeline.start_bytes=1",
    "pipeline.start_age_seconds=0",
    "pipeline.trigger_seconds=0.5",
    "pipeline.bytes_per_trigger=1048576",
    "pipeline.nice=0",  # on a machine that is busy with other tests a start would take minutes
    "pipeline.bytes_per_second=3000000",  # a task takes a moment, so that it can be caught in the middle
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=2",
    "storage.write_cache_bytes=262144",
    "storage.checkpoint_seconds=1",
    "storage.prune_seconds=0.3",
    "nameserver.write_groups=3",
    "queue_store.read_chunk_bytes=65536",
)
NO_CACHES = (
    "pipeline.mode=off",
    "storage.write_cache_bytes=0",
    "queue_store.read_cache_bytes=0",
    "nameserver.write_groups=3",
)


class Story:
    """The events, and the evidence of them."""

    def __init__(self, directory: Path, spark: OneSpark) -> None:
        self.node = Serving(directory, *SETTINGS)
        self.node.program = HASTY_NODE  # a killed splitter keeps its lease until that ends
        self.splitters = Splitters(self.node)
        self.detached = spark
        self.tiers: Counter[str] = Counter()
        """Bytes served to the slow reader, by tier, over the lives of the node."""
        self.outlived: list[psutil.Process] = []
        """Processes of the node that had not ended by themselves after it was killed."""
        self.unanswered_runs: set[str] = set()
        """Runs that the zombie had finished or begun when it was frozen."""
        self.zombie_log = ""
        self.status: dict[str, Any] = {}
        self.orders: dict[str, Any] = {}
        self.again: Reading = {}
        self.again_tiers: dict[str, int] = {}
        self.uncached: Reading = {}
        self.uncached_tiers: dict[str, int] = {}
        self.load: Load
        self.reader: SlowReader

    def tell(self) -> None:
        self.node.start()
        self._create_topics()
        self.load = Load(self.node.kafka, list(TOPICS), messages_per_second=400)
        self.reader = SlowReader(self.node.kafka, QUEUES)
        self.load.start()
        self.reader.start()
        self._wait_for_progress()
        self._kill_the_node_and_lose_the_checkpoint()
        self._wait_for_progress()
        self.reader.rest()
        self._kill_the_driver_and_compete()
        self._wait_for_progress()
        self.reader.go_on()
        zombie = self._freeze_the_driver()
        self.load.finish()
        self._wait_for_the_reader()
        self._split_once()
        self._wake(zombie)
        self._wait_until_pruned()
        self._add_tiers()
        self.status = mainstem_json(self.node, "split", "status")
        self.orders = mainstem_json(self.node, "topic", "describe", "orders")
        self._read_again()
        self._read_without_caches()

    def close(self) -> None:
        if hasattr(self, "load"):
            self.load.stop()
        if hasattr(self, "reader"):
            self.reader.stop()
        self.splitters.family()
        self.node.close()
        self.splitters.end()

    # --- what happens -------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.node.kafka, **KEEP_TRYING})
        for future in admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values():
            future.result(PATIENCE_SECONDS)

    def _kill_the_node_and_lose_the_checkpoint(self) -> None:
        self._wait_for_a_task()
        family = self.splitters.family()
        assert any(map(is_jvm, family))
        self._add_tiers()
        self.node.kill()
        self.outlived = psutil.wait_procs(family, PATIENCE_SECONDS)[1]
        shutil.rmtree(self.node.store_dir / "pipeline" / "checkpoint")
        self.node.start()

    def _kill_the_driver_and_compete(self) -> None:
        self._wait_for_a_task()
        driver = self.splitters.driver()
        assert driver is not None
        driver.kill()
        self._split_once()

    def _freeze_the_driver(self) -> psutil.Process:
        """Freeze it after a task has begun whose runs it has not handed in yet."""

        def caught() -> psutil.Process | None:
            begun = self._wait_for_a_task()
            driver = self.splitters.driver()
            if driver is None:
                return None
            driver.suspend()
            if unanswered := begun - self._answered(begun):
                self.unanswered_runs = unanswered
                return driver
            driver.resume()
            return None

        found: psutil.Process = eventually(caught, seconds=PATIENCE_SECONDS, what="a splitter in the middle of a task")
        return found

    def _wake(self, zombie: psutil.Process) -> None:
        zombie.resume()
        eventually(lambda: not zombie.is_running(), seconds=PATIENCE_SECONDS, what="the end of the zombie")
        self.zombie_log = self.node.output

    def _wait_for_the_reader(self) -> None:
        reader, sent = self.reader, self.load.sent
        eventually(lambda: reader.count >= sent or reader.failures, seconds=PATIENCE_SECONDS, what="the slow reader")

    def _split_once(self) -> None:
        self.detached.run(self.node, "--once")

    def _wait_until_pruned(self) -> None:
        def pruned() -> bool:
            groups = self.node.get("/v1/split")["groups"].values()
            topics = self.node.get("/v1/topics")["topics"]
            return all(group["split"] == group["committed"] and not group["lag_bytes"] for group in groups) and not any(
                topic["unsplit_bytes"] for topic in topics if topic["name"] in TOPICS
            )

        eventually(pruned, seconds=PATIENCE_SECONDS, what="everything split and pruned")

    def _read_again(self) -> None:
        """All of it, by a node whose write cache holds nothing: the newest messages would be served from there."""
        assert self.node.stop() == 0, self.node.output
        self.node.settings = (*SETTINGS, "pipeline.mode=off")
        self.node.start()
        self.again = read_all(self.node.kafka, self.ends())
        self.again_tiers = dict(+self._served())

    def _read_without_caches(self) -> None:
        """All of it from disk 2, and some new messages from disk 1."""
        assert self.node.stop() == 0, self.node.output
        self.node.settings = NO_CACHES
        self.node.start()
        later = Load(self.node.kafka, ["later"], messages_per_second=1_000)
        later.start()
        eventually(lambda: later.sent >= 500, what="some messages")
        later.finish()
        ends = self.ends() | {queue: len(offsets) for queue, offsets in later.acknowledged.items()}
        self.uncached = read_all(self.node.kafka, ends)
        self.uncached_tiers = dict(+self._served())
        assert {queue: self.uncached.pop(queue) for queue in later.acknowledged} == later.expected()

    # --- what is seen -------------------------------------------------------------------------------------

    def ends(self) -> dict[Queue, int]:
        return {queue: len(offsets) for queue, offsets in self.load.acknowledged.items()}

    def _wait_for_progress(self) -> None:
        """Until more is split than now, and messages flow."""
        before = recorded(self.node).positions
        sent = self.load.acknowledged_count

        def further() -> bool:
            self.splitters.family()
            now = recorded(self.node).positions
            return all(now.get(group, 0) > before.get(group, 0) for group in range(3))

        eventually(further, seconds=PATIENCE_SECONDS, what="progress of the split")
        eventually(lambda: self.load.acknowledged_count > sent, seconds=PATIENCE_SECONDS, what="the flow of messages")

    def _wait_for_a_task(self) -> set[str]:
        """Until a split task writes runs; the names they will bear. Files that killed tasks left do not count."""
        left = runs_being_written(self.node)
        names: set[str] = eventually(
            lambda: runs_being_written(self.node) - left, seconds=PATIENCE_SECONDS, what="a split task"
        )
        return names

    def _answered(self, names: set[str]) -> set[str]:
        return names & set(recorded(self.node).runs)

    def _served(self) -> Counter[str]:
        tiers = ("write_cache", "journal", "read_cache", "queue_store")
        return Counter({tier: int(self.node.metric("mainstem_fetch_bytes_total", tier=tier)) for tier in tiers})

    def _add_tiers(self) -> None:
        self.tiers += self._served()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, one_spark: OneSpark) -> Iterator[Story]:
    story = Story(tmp_path_factory.mktemp("exactly-once"), one_spark)
    try:
        story.tell()
        yield story
    finally:
        story.close()


@pytest.fixture(scope="module")
def expected(story: Story) -> dict[Queue, list[Record]]:
    return story.load.expected()


def test_every_message_was_acknowledged_once_in_order(story: Story) -> None:
    story.load.check_order()
    assert set(story.load.acknowledged) == set(QUEUES)


def test_everything_is_read_back_from_the_queue_store_alone(story: Story, expected: dict[Queue, list[Record]]) -> None:
    assert story.again == expected
    assert set(story.again_tiers) <= {"queue_store", "read_cache"}
    assert story.again_tiers["queue_store"] > 0


def test_recorded_runs_hold_every_message_once(story: Story, expected: dict[Queue, list[Record]]) -> None:
    """F, without the node: the files on disk 2, in the order of the manifest."""
    found = [records for records in records_in_runs(story.node).values() if records[0].value]
    by_content = {(records[0].key, records[0].value): records for records in found}
    for queue, records in expected.items():
        assert by_content.pop((records[0].key, records[0].value)) == records, queue
    assert not by_content


def test_recorded_ranges_do_not_overlap(story: Story) -> None:
    final: Recorded = recorded(story.node)
    for group in range(3):
        ranges = [entry for entry in final.ranges if entry.group == group]
        assert all(entry.after < entry.upto for entry in ranges)
        assert all(first.upto <= second.after for first, second in itertools.pairwise(ranges))
        assert ranges[-1].upto <= final.positions[group]


def test_a_zombie_records_nothing(story: Story) -> None:
    assert story.unanswered_runs, "it was in the middle of a task"
    assert not story.unanswered_runs & set(recorded(story.node).runs)
    assert "the split lease is lost" in story.zombie_log


def test_a_killed_node_leaves_no_splitter_behind(story: Story) -> None:
    assert story.outlived == []


def test_a_slow_reader_sees_everything_once_from_every_tier(story: Story, expected: dict[Queue, list[Record]]) -> None:
    assert story.reader.failures == []
    assert story.reader.found == expected
    assert story.tiers["write_cache"] > 0
    assert story.tiers["journal"] > 0
    assert story.tiers["queue_store"] + story.tiers["read_cache"] > 0


def test_without_caches_the_disks_serve_the_same(story: Story, expected: dict[Queue, list[Record]]) -> None:
    assert story.uncached == expected
    assert set(story.uncached_tiers) == {"journal", "queue_store"}


def test_status_says_that_all_is_split(story: Story) -> None:
    groups = story.status["groups"]
    assert set(groups) == {"0", "1", "2"}
    for group in groups.values():
        assert group["pruned"] <= group["split"] == group["committed"]
        assert group["pruned"] > 0
        assert group["lag_bytes"] == 0
        assert group["lag_seconds"] == 0
        assert group["files"] > 0
    assert story.status["last_progress"]["batches"] > 0
    assert story.status["lease"] is None


def test_describe_shows_what_lies_on_disk_2(story: Story) -> None:
    for partition in story.orders["partitions"]:
        end = len(story.load.acknowledged[Queue("orders", partition["partition"])])
        assert (partition["log_start"], partition["high_watermark"]) == (0, end)
        assert partition["split_end"] == end
        assert partition["unsplit_bytes"] == 0
        assert partition["stored_bytes"] == sum(file["queue_bytes"] for file in partition["files"]) > 0
        assert [file["first_offset"] for file in partition["files"]] == [
            0,
            *(file["last_offset"] + 1 for file in partition["files"][:-1]),
        ]
