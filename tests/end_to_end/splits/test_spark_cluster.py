"""`mainstem split run --master spark://…` against a node without a splitter of its own, and what retention then
frees on both disks.

Topics are of different retention classes, so that each has runs of its own. While the cluster starts, a splitter
that lives in this process takes the lease, splits a slice and falls silent: when it hands it in after its
lease is over, it is refused.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.processes import Commands
from tests.end_to_end.shell import command, environment, mainstem, mainstem_json
from tests.end_to_end.splitters.spark_cluster import SparkCluster, split_options
from tests.end_to_end.store import bytes_in, files_in, recorded
from tests.end_to_end.topics import VALUE_BYTES, Topics
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

from mainstem.pipeline.errors import EXIT_DONE
from mainstem.pipeline.link.node_link import NodeLink
from mainstem.pipeline.slices.split_slice import SplitSlice
from mainstem.pipeline.split.source import SlicePartition, split_partition
from mainstem.pipeline.split.split_plan import SplitSettings
from mainstem.rpc.messages.split import HeldLease, LeaseLost

SETTINGS = (
    "pipeline.mode=off",
    "journal.segment_bytes=1048576",
    "journal.segment_age_seconds=1",
    "journal.pool_segments=0",
    "journal.pool_segments_max=0",
    "storage.retention_check_seconds=0.5",
    "storage.prune_seconds=0.2",
    "storage.checkpoint_seconds=0.5",
)
TOPICS: dict[str, dict[str, str]] = {
    "kept": {},
    "aged": {"retention.ms": "3600000"},
    "sized": {"retention.ms": "-1", "retention.bytes": "1000000000"},
    "trimmed": {"retention.ms": "-1"},
    "doomed": {"retention.ms": "86400000"},
}
"""Name -> configs: each a retention class of its own."""
MESSAGES = 300
TOPIC_BYTES = MESSAGES * VALUE_BYTES


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Serving]:
    serving = Serving(tmp_path, *SETTINGS)
    try:
        yield serving.start()
    finally:
        serving.close()


class SilentSplitter:
    """A splitter that has split a slice and not handed it in."""

    def __init__(self, node: Serving) -> None:
        self._link = NodeLink(node.rpc, "silent splitter")
        settings = SplitSettings(
            rpc=node.rpc, runs_dir=str(node.store_dir / "runs"), bytes_per_trigger=1 << 30, slice_bytes=1 << 20
        )
        lease = self._link.acquire("silent splitter", wait_seconds=0, yields=False)
        self._lease = HeldLease(lease.lease_id, lease.epoch)
        groups = self._link.positions().groups
        planned = self._link.slices(
            {group.group: group.split for group in groups},
            {group.group: group.durable for group in groups},
            settings.slice_bytes,
        )
        self.done: SplitSlice = split_partition(SlicePartition(0, planned.slices[0], planned.host), settings)

    def hand_in(self) -> list[str]:
        """Under the lease of old."""
        return self._link.record_split(self._lease, self.done)

    def hand_in_under_new_lease(self) -> list[str]:
        """As if it had known nothing of what happened since."""
        lease = self._link.acquire("silent splitter", wait_seconds=30, yields=False)
        held = HeldLease(lease.lease_id, lease.epoch)
        try:
            return self._link.record_split(held, self.done)
        finally:
            self._link.release(held)

    def close(self) -> None:
        self._link.close()


def files_of(node: Serving, topic: str) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = node.get(f"/v1/topics/{topic}")["partitions"][0]["files"]
    return files


@pytest.mark.long
def test_a_spark_cluster_splits_and_retention_frees_both_disks(
    node: Serving, commands: Commands, tmp_path: Path
) -> None:
    topics = Topics(node)
    for topic, configs in TOPICS.items():
        topics.create(topic, configs)
        topics.fill(topic, MESSAGES)
    check_what_is_not_split(node)

    silent = SilentSplitter(node)
    try:
        cluster = SparkCluster(commands, tmp_path)
        cluster.start()
        split_on(cluster, node, commands)
        with pytest.raises(LeaseLost):
            silent.hand_in()
        assert set(silent.hand_in_under_new_lease()) == {"replayed"}
    finally:
        silent.close()
    assert not {file.name for file in silent.done.files} & set(recorded(node).runs)

    check_what_is_split(node)
    check_what_retention_frees(node, topics)


def check_what_is_not_split(node: Serving) -> None:
    view = mainstem_json(node, "topic", "describe", "kept")
    (partition,) = view["partitions"]
    assert partition["unsplit_bytes"] > TOPIC_BYTES
    assert (partition["stored_bytes"], partition["files"]) == (0, [])
    assert (node.get("/v1/split")["splitter"], node.get("/v1/split")["last_progress"]) == ("off", None)
    assert len(files_in(node.write_dir / "journal", ".wal")) > len(TOPICS)


def split_on(cluster: SparkCluster, node: Serving, commands: Commands) -> None:
    process = commands.start(
        "split",
        command(
            "split", "run", "--master", cluster.master, "--once", "--bytes-per-trigger", str(1 << 18), *split_options()
        ),
        {**environment(node), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
    )
    try:
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
    assert code == EXIT_DONE, commands.log("split")
    progress = node.get("/v1/split")["last_progress"]
    assert progress["spark"].startswith(cluster.master)


def check_what_is_split(node: Serving) -> None:
    eventually(
        lambda: not any(topic["unsplit_bytes"] for topic in node.get("/v1/topics")["topics"]),
        seconds=PATIENCE_SECONDS,
        what="an empty journal",
    )
    for group in mainstem_json(node, "split", "status")["groups"].values():
        assert group["split"] == group["committed"]
        assert group["lag_bytes"] == 0
    (partition,) = mainstem_json(node, "topic", "describe", "kept")["partitions"]
    assert partition["stored_bytes"] > TOPIC_BYTES
    assert partition["split_end"] == MESSAGES
    tree = mainstem(node, "topic", "describe", "kept", "--partition", "0")
    assert "JOURNAL" in tree
    assert all(file["name"] in tree for file in partition["files"])
    assert len(files_in(node.write_dir / "journal", ".wal")) <= 2


def check_what_retention_frees(node: Serving, topics: Topics) -> None:
    runs = node.store_dir / "runs"
    before = bytes_in(runs)
    names = {topic: {file["name"] for file in files_of(node, topic)} for topic in TOPICS}
    assert all(names.values())
    assert sum(map(len, names.values())) == len(set().union(*names.values())), "each has runs of its own"
    assert len(names["sized"]) > 1

    topics.alter("aged", "retention.ms", "1")
    topics.alter("sized", "retention.bytes", "1")  # any later run has that: how slices were cut does not matter
    assert topics.delete_records("trimmed", -1) == MESSAGES
    topics.delete("doomed")
    gone = names["aged"] | names["trimmed"] | names["doomed"]
    eventually(
        lambda: not any((runs / name).exists() for name in gone),
        seconds=PATIENCE_SECONDS,
        what="the end of runs with nothing live in them",
    )
    eventually(
        lambda: sum((runs / name).exists() for name in names["sized"]) < len(names["sized"]),
        seconds=PATIENCE_SECONDS,
        what="the end of the oldest runs of a topic that shrank",
    )
    assert bytes_in(runs) < before - 3 * TOPIC_BYTES
    assert topics.offsets("aged") == (MESSAGES, MESSAGES)
    assert topics.offsets("trimmed") == (MESSAGES, MESSAGES)
    log_start, _ = topics.offsets("sized")
    assert 0 < log_start < MESSAGES
    topics.check("sized", log_start, MESSAGES)
    topics.check("kept", 0, MESSAGES)
    assert all((runs / name).exists() for name in names["kept"])
