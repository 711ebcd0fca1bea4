"""A cluster comes to more write groups under the load of an idempotent producer, while a node is away, and after a
restart of all: nothing is lost, repeated or reordered, and leader epochs never go back.

Node 1 serves no clients, so that broker 4, which stores nothing, serves what node 1 leads.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually

BEFORE, AFTER = "before", "after"
PARTITIONS = 16
MANY = 48
"""So many that some of them hash to slots of each write group."""
AWAY = 3
ROLES = {1: "storage,nameserver", 4: "broker"}
SETTINGS = ("pipeline.mode=off", "groups.rebalance_delay_ms=0", "nameserver.write_groups=2")


def in_write_groups(cluster: Cluster, topic: str) -> set[int]:
    asked = cluster.nodes[2]
    return {one["write_group"] for one in asked.get(f"/v1/topics/{topic}")["partitions"]}


def epochs(cluster: Cluster, topic: str) -> dict[int, int]:
    """Partition → the leader epoch of its newest batch, as a consumer is told."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "epochs", "enable.auto.commit": False})
    try:
        found: dict[int, int] = {}
        for partition in range(8):
            ends = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=PATIENCE_SECONDS)
            consumer.assign([TopicPartition(topic, partition, ends[1] - 1)])
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.error() is None
            found[partition] = message.leader_epoch()
        return found
    finally:
        consumer.close()


def test_write_groups_are_added_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS, count=4, roles=ROLES)
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[2]
        with load_on(cluster, BEFORE) as load:
            at_first = epochs(cluster, BEFORE)
            assert "added" in mainstem(asked, "cluster", "write-groups", "4")
            told = mainstem_json(asked, "cluster", "write-groups")["write_groups"]
            assert [group["slots"] for group in told] == [1024] * 4
            cluster.wait_until_well()
            assert in_write_groups(cluster, BEFORE) == {0, 1}, "queues stay where they are"
            with load_on(cluster, AFTER, PARTITIONS) as new_load:
                assert in_write_groups(cluster, AFTER) == {0, 1, 2, 3}
                cluster.freeze(AWAY)  # nobody holds it for dead yet, so that new write groups are placed on it, too
                mainstem(asked, "cluster", "write-groups", "8")
                cluster.thaw(AWAY)
                cluster.kill(AWAY)
                eventually(
                    lambda: all(group["leader"] > 0 for group in cluster.get("/v1/cluster", 2)["write_groups"]),
                    seconds=PATIENCE_SECONDS,
                    what="leaders of write groups that two of their three nodes have begun",
                )
                goes_on(new_load, AFTER, range(PARTITIONS))
                cluster.start(AWAY)
                cluster.wait_until_well()
                goes_on(load, BEFORE)
            now = epochs(cluster, BEFORE)
            assert all(now[partition] >= epoch for partition, epoch in at_first.items())
        cluster.create_topic("later", MANY)
        assert in_write_groups(cluster, "later") == set(range(8))
        with load_on(cluster, "last", PARTITIONS) as last:
            cluster.kill(1, 2, 3)
            cluster.start(1, 2, 3)
            goes_on(last, "last", range(PARTITIONS))
        for done in (load, new_load, last):
            check(cluster, done)
    finally:
        cluster.close()
