"""A topic that is kept once is kept three times from now on, under the load of an idempotent producer: its queues move
to write groups that have replicas on other nodes as well, while a node is killed. Then no node has anything alone, and
nothing is lost, repeated or reordered."""

from __future__ import annotations

from pathlib import Path

from kafka import TopicPartition as PythonPartition
from tests.clients.drivers import kafka_python
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import all_have_moved, copies, mainstem, mainstem_json
from tests.end_to_end.tiering import split_and_merge
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

TOPIC = "dearer"
NODES = [1, 2, 3]
PARTITIONS = 6
SETTINGS = (
    "pipeline.mode=off", "groups.rebalance_delay_ms=0", "nameserver.write_groups=2", "journal.segment_bytes=1MiB",
    "storage.write_cache_bytes=1MiB",
)  # fmt: skip


def test_a_topic_is_kept_three_times_from_now_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[1]
        mainstem(asked, "cluster", "write-groups", "5", "--replication-factor", "1")
        cluster.wait_until_well()
        with load_on(cluster, TOPIC, PARTITIONS, copies=1) as load:
            for node in cluster.nodes.values():
                split_and_merge(node)
            goes_on(load, TOPIC, range(PARTITIONS))
            python = kafka_python.admin(cluster.bootstrap)
            try:
                first = PythonPartition(TOPIC, 0)
                assert python.alter_partition_reassignments({first: NODES}) == {first: None}
            finally:
                python.close()
            eventually(
                lambda: copies(asked, TOPIC)[0] == 3, seconds=PATIENCE_SECONDS, what="the first queue on three nodes"
            )
            told = mainstem_json(asked, "topic", "alter", TOPIC, "--replication-factor", "3")
            assert told["moving"] == PARTITIONS - 1
            cluster.kill(3)  # with the only replicas of some queues, wherever their moves are
            cluster.start(3)
            cluster.wait_until_well()
            all_have_moved(asked)
            goes_on(load, TOPIC, range(PARTITIONS))
        assert copies(asked, TOPIC) == [3] * PARTITIONS
        check(cluster, load)
        for node in cluster.nodes.values():
            split_and_merge(node)
        for node_id in NODES:  # the others have what it had alone
            cluster.kill(node_id)
            check(cluster, load)
            cluster.start(node_id)
            cluster.wait_until_well()
    finally:
        cluster.close()
