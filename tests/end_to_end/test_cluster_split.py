"""Every node of a cluster splits its own copy: then all queues are in the store of each, once, and the journals are
pruned, whoever led when.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.processes import Commands
from tests.end_to_end.shell import command, environment
from tests.end_to_end.store import records_in_runs
from tests.serving import Serving, eventually

from mainstem.pipeline.exit_codes import EXIT_DONE

SECONDS_MAX = 120.0
SETTINGS = (
    "pipeline.mode=off", "journal.segment_bytes=1048576", "journal.segment_age_seconds=1",
    "storage.write_cache_bytes=262144", "storage.checkpoint_seconds=1", "storage.prune_seconds=0.3",
    "nameserver.write_groups=3",
)  # fmt: skip


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), *SETTINGS)
    try:
        cluster.start()
        cluster.wait_until_well()
        yield cluster
    finally:
        cluster.close()


@pytest.mark.skipif(
    not os.environ.get("MAINSTEM_LONG_TESTS"),
    reason="starts Spark three times: two minutes of a suite that is to stay under fifteen; MAINSTEM_LONG_TESTS=1",
)
def test_each_node_splits_its_own_copy_and_prunes_its_journal(cluster: Cluster, commands: Commands) -> None:
    with load_on(cluster, "split") as load:
        leader = cluster.leader("split", 0)
        cluster.kill(leader)
        goes_on(load, "split")
        cluster.start(leader)
    sent = Counter(record.value for records in load.expected().values() for record in records)
    split_once(commands, cluster)
    for node in cluster.nodes.values():
        eventually(partial(is_pruned, node), seconds=SECONDS_MAX, what="a split and pruned journal")
        stored = Counter(record.value for records in records_in_runs(node).values() for record in records)
        assert stored == sent
    check(cluster, load)


def split_once(commands: Commands, cluster: Cluster) -> None:
    """On all nodes at a time: most of it is Spark's start."""
    started = {
        node_id: commands.start(f"split-{node_id}", command("split", "run", "--once"), environment(node))
        for node_id, node in cluster.nodes.items()
    }
    for node_id, process in started.items():
        try:
            code = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            code = None
        assert code == EXIT_DONE, commands.log(f"split-{node_id}")


def is_pruned(node: Serving) -> bool:
    groups = node.get("/v1/split")["groups"].values()
    topics = node.get("/v1/topics")["topics"]
    return all(
        group["split"] == group["committed"] and not group["lag_bytes"] for group in groups
    ) and not any(topic["unsplit_bytes"] for topic in topics)
