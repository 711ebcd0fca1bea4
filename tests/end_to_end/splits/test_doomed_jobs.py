"""Merges and compactions that end at any step, by the death of who does them or of the node: nothing is lost, nothing
is half done, and the next one does it all.

Which steps there are is learned from a job that nobody kills (`doomed_job.py`), and that first merges and then
compacts; the first and the last of each name are places to die at. All begin with the same two directories, which hold
what a splitter has split.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.clients.drivers import librdkafka
from tests.clients.drivers.librdkafka import KEEP_TRYING
from tests.end_to_end.load import Queue, Record
from tests.end_to_end.processes import SOURCE
from tests.end_to_end.readers import Reading, record_of
from tests.end_to_end.shell import mainstem_json
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import ROOT, Serving, eventually

from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.split.source import SlicePartition, split_partition
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.messages.split import HeldLease

STATE, PLAIN = "state", "plain"
CONFIGS: dict[str, dict[str, str]] = {STATE: {"cleanup.policy": "compact"}, PLAIN: {}}
PARTITIONS = 2
QUEUES = [Queue(topic, partition) for topic in CONFIGS for partition in range(PARTITIONS)]
KEYS = 50
RECORDS = 400
SLICES = 3
SETTINGS = (
    "pipeline.mode=off",
    "nameserver.write_groups=2",
    "storage.write_cache_bytes=0",
    "queue_store.read_cache_bytes=0",
    "storage.prune_seconds=0.2",
    "storage.checkpoint_seconds=0.5",
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=0.3",
    "journal.pool_segments=0",
)
DRIVER, NODE = "driver", "node"


class Template:
    """The directories of a stopped node, all of whose data is split."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told: Reading = {queue: [] for queue in QUEUES}
        self._node = self.serving(directory)
        """One for all: each keeps its ports until the tests end."""

    def serving(self, directory: Path) -> Serving:
        return Serving(directory, *SETTINGS)

    def make(self) -> None:
        node = self._node
        try:
            node.start()
            admin = AdminClient({"bootstrap.servers": node.kafka, **KEEP_TRYING})
            new = [NewTopic(topic, PARTITIONS, 1, config=config) for topic, config in CONFIGS.items()]
            for future in admin.create_topics(new).values():
                future.result(PATIENCE_SECONDS)
            choice = random.Random(3)
            for _ in range(SLICES):
                self._produce(node, choice)
                self.split(node)
            self.leave_the_journal(node)
            assert node.stop() == 0, node.output
        finally:
            node.close()

    def _produce(self, node: Serving, choice: random.Random) -> None:
        producer = librdkafka.producer(node.kafka, **{"enable.idempotence": True, "batch.num.messages": 20})
        for queue, told in self.told.items():
            for _ in range(RECORDS // SLICES):
                key = b"key-%d" % choice.randrange(KEYS)
                value = None if choice.random() < 0.1 else choice.randbytes(choice.randrange(200))
                told.append(Record(len(told), key, value))
                producer.produce(queue.topic, value, key, queue.partition)
        assert producer.flush(PATIENCE_SECONDS) == 0

    def node(self, directory: Path) -> Serving:
        """One that starts with a copy of them."""
        shutil.copytree(self.directory, directory)
        self._node.write_dir, self._node.store_dir = directory / "write", directory / "store"
        return self._node

    def split(self, node: Serving) -> None:
        """Split all there is."""
        split(node)

    def leave_the_journal(self, node: Serving) -> None:
        """Return when nothing that is split is left in it."""
        ends = {name: group["split"] for name, group in node.get("/v1/split")["groups"].items()}
        eventually(lambda: is_pruned(node, ends), seconds=PATIENCE_SECONDS, what="a journal without what is split")

    def start(self, node: Serving) -> None:
        """Start a node with a copy for the first time."""
        node.start()


def split(node: Serving) -> None:
    """Split all there is, in this process."""
    link = NodeLink(node.rpc, "splitter")
    settings = SplitSettings(
        rpc=node.rpc, runs_dir=str(node.store_dir / "runs"), bytes_per_trigger=1 << 30, slice_bytes=1 << 20
    )
    lease = link.acquire("splitter", wait_seconds=30, yields=False)
    held = HeldLease(lease.lease_id, lease.epoch)
    groups = link.positions().groups
    planned = link.slices(
        {group.group: group.split for group in groups}, {group.group: group.durable for group in groups}, 1 << 20
    )
    for one in planned.slices:
        assert set(link.record_split(held, split_partition(SlicePartition(0, one, planned.host), settings))) == {
            "committed"
        }
    link.release(held)
    link.close()


def is_pruned(node: Serving, ends: dict[str, int]) -> bool:
    """Whether nothing up to these blocks is left in the journal, of which all is read as it came."""
    groups = node.get("/v1/split")["groups"]
    return all(groups[name]["pruned"] >= block for name, block in ends.items())


class Doomed:
    """A node, and the jobs that are made on it."""

    def __init__(self, node: Serving) -> None:
        self.node = node
        self._steps = node.write_dir.parent / "steps"

    def run(self, step: str = "", *, kill_node: bool = False) -> int:
        """A job to its end; the exit code."""
        self._steps.unlink(missing_ok=True)
        done = subprocess.run(
            [
                sys.executable, "-m", "tests.end_to_end.odd_nodes.doomed_job", str(self._steps), self.node.http, step,
                str(self.node.pid if kill_node else 0),
            ],
            env={"PYTHONPATH": f"{SOURCE}:{ROOT}", "PATH": ""},
            capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0 or step, done.stderr
        return done.returncode

    def steps(self) -> list[str]:
        return self._steps.read_text().splitlines()[1:]

    def free_the_lease(self) -> None:
        """That of a job that is dead, as its time would."""
        _lease, lease_id, epoch = self._steps.read_text().splitlines()[0].split()
        link = NodeLink(self.node.rpc, "undertaker")
        link.release(HeldLease(lease_id, int(epoch)))
        link.close()

    def read(self) -> Reading:
        reader = librdkafka.consumer(self.node.kafka, "unused")
        found: Reading = {queue: [] for queue in QUEUES}
        ends = {queue: librdkafka.watermarks(reader, *queue)[1] for queue in QUEUES}
        try:
            reader.assign([TopicPartition(*queue, 0) for queue in QUEUES])

            def is_done() -> bool:
                for message in reader.consume(500, 0.1):
                    assert message.error() is None, message.error()
                    found[Queue(message.topic(), message.partition())].append(record_of(message))
                return all(found[queue] and found[queue][-1].offset + 1 == end for queue, end in ends.items())

            eventually(is_done, seconds=PATIENCE_SECONDS, what="the last record of every queue")
        finally:
            reader.close()
        return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    directory = tmp_path_factory.mktemp("split")
    made = Template(directory)
    try:
        made.make()
        yield made
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def latest(told: list[Record]) -> list[Record]:
    newest = {record.key: record for record in told}
    return [record for record in told if newest[record.key] is record]


def places_to_die(steps: list[str]) -> list[str]:
    """The first and the last step of each name, but for the ends of what leaves nothing that the next step does not
    find as well."""
    names = [step.partition("#")[0] for step in steps]
    counts = Counter(name for name in names if not name.endswith(" is done") or "commit" in name or "finish" in name)
    return [f"{name}#{number}" for name, count in counts.items() for number in dict.fromkeys((1, count))]


def die_at(template: Template, directory: Path, victim: str, step: str) -> None:
    node = template.node(directory)
    doomed = Doomed(node)
    finished = {queue: latest(told) if queue.topic == STATE else told for queue, told in template.told.items()}
    try:
        template.start(node)
        code = doomed.run(step, kill_node=victim == NODE)
        if victim == NODE:
            node.kill()
            node.start()
        else:
            assert code == -9
            doomed.free_the_lease()
        found = doomed.read()
        for queue, told in template.told.items():
            assert found[queue] in (told, finished[queue]), f"{queue} after {step}"
        assert doomed.run() == 0
        assert doomed.read() == finished
        levels = [level["level"] for level in node.get("/v1/store")["levels"] if level["files"]]
        assert 0 not in levels, "all runs are merged"
        assert node.stop() == 0, node.output
        directories = ("--write-dir", str(node.write_dir), "--store-dir", str(node.store_dir))
        assert mainstem_json(node, "store", "verify", *directories)["findings"] == []
    finally:
        node.close()
        shutil.rmtree(directory, ignore_errors=True)


def steps_of(template: Template, directory: Path) -> list[str]:
    """Of a job that nobody kills."""
    node = template.node(directory)
    doomed = Doomed(node)
    try:
        template.start(node)
        assert doomed.run() == 0
        return doomed.steps()
    finally:
        node.close()
        shutil.rmtree(directory, ignore_errors=True)


def test_jobs_take_the_steps_that_are_known(template: Template, tmp_path: Path) -> None:
    steps = steps_of(template, tmp_path / "whole")
    names = {step.partition("#")[0] for step in steps}
    calls = {f"{call}{end}" for call in ("merge.work", "merge.live", "merge.commit") for end in ("", " is done")}
    calls |= {f"{call}{end}" for call in ("compact.work", "compact.commit") for end in ("", " is done")}
    assert calls <= names
    assert {"write", "finish", "name pack", "name pack is done"} <= names


@pytest.mark.parametrize("victim", [DRIVER, NODE])
def test_who_dies_as_a_compaction_is_recorded_leaves_it_whole(template: Template, tmp_path: Path, victim: str) -> None:
    die_at(template, tmp_path / "node", victim, "compact.commit has begun#1")


@pytest.mark.long
@pytest.mark.parametrize("victim", [DRIVER, NODE])
def test_who_dies_at_any_step_leaves_nothing_half_done(template: Template, tmp_path: Path, victim: str) -> None:
    for number, step in enumerate(places_to_die(steps_of(template, tmp_path / "whole"))):
        die_at(template, tmp_path / str(number), victim, step)
