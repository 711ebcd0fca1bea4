"""A topic that is kept three times is kept once from now on, under the load of an idempotent producer, while a node is
killed; topics that come later have three copies. Then it is kept three times again: no node has anything alone, and
nothing was lost, repeated or reordered. Another one's partitions move to two nodes each, where no write group was."""

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

TOPIC = "cheaper"
NODES = [1, 2, 3]
PARTITIONS = 6
SETTINGS = (
    "pipeline.mode=off", "groups.rebalance_delay_ms=0", "nameserver.write_groups=2", "journal.segment_bytes=1MiB",
    "storage.write_cache_bytes=1MiB",
)  # fmt: skip


def test_a_topic_is_kept_once_from_now_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[1]
        mainstem(asked, "cluster", "write-groups", "5", "--replication-factor", "1")
        cluster.wait_until_well()
        with load_on(cluster, TOPIC, PARTITIONS, copies=3) as load:
            for node in cluster.nodes.values():
                split_and_merge(node)
            python = kafka_python.admin(cluster.bootstrap)
            try:
                first = PythonPartition(TOPIC, 0)
                assert python.alter_partition_reassignments({first: [2]}) == {first: None}
            finally:
                python.close()
            eventually(
                lambda: copies(asked, TOPIC)[0] == 1, seconds=PATIENCE_SECONDS, what="the first queue on one node"
            )
            told = mainstem_json(asked, "topic", "alter", TOPIC, "--replication-factor", "1")
            assert told["moving"] == PARTITIONS - 1
            cluster.kill(3)  # with the only next replicas of some queues, wherever their moves are
            cluster.start(3)
            cluster.wait_until_well()
            all_have_moved(asked)
            assert copies(asked, TOPIC) == [1] * PARTITIONS
            goes_on(load, TOPIC, range(PARTITIONS))
            cluster.create_topic("later", 50, copies=3)
            assert copies(asked, "later") == [3] * 50
            goes_on(load, TOPIC, range(PARTITIONS))
            told = mainstem_json(asked, "topic", "alter", TOPIC, "--replication-factor", "3")
            assert told["moving"] == PARTITIONS
            all_have_moved(asked)
        assert copies(asked, TOPIC) == [3] * PARTITIONS
        check(cluster, load)
        for node_id in NODES:  # the others have what it had alone meanwhile
            cluster.kill(node_id)
            check(cluster, load)
            cluster.start(node_id)
            cluster.wait_until_well()
    finally:
        cluster.close()


def test_partitions_move_to_two_nodes_of_a_clients_choice(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[1]
        with load_on(cluster, TOPIC, 2, copies=3) as load:
            python = kafka_python.admin(cluster.bootstrap)
            wanted = {PythonPartition(TOPIC, 0): [1, 2], PythonPartition(TOPIC, 1): [2, 1]}
            try:
                assert python.alter_partition_reassignments(wanted) == dict.fromkeys(wanted)
            finally:
                python.close()
            all_have_moved(asked)
            goes_on(load, TOPIC, range(2))

        def replicas() -> list[list[int]]:
            return [one["replicas"] for one in mainstem_json(asked, "topic", "describe", TOPIC)["partitions"]]

        assert replicas() == list(wanted.values()), "the first node of each is to lead"
        check(cluster, load)
    finally:
        cluster.close()
