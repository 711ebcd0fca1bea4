"""Queues move between write groups with three replicas under the load of an idempotent producer, while nodes are killed
and others take over: nothing is lost, repeated or reordered, and leader epochs never go back."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.shell import all_have_moved, mainstem, mainstem_json
from tests.end_to_end.tiering import split_and_merge
from tests.harness.serving import Serving

TOPIC = "moving"
WRITE_GROUPS = 4
PARTITIONS = range(8)
KILLED = 3
SETTINGS = (
    "pipeline.mode=off", "groups.rebalance_delay_ms=0", f"nameserver.write_groups={WRITE_GROUPS}",
    "journal.segment_bytes=1MiB", "storage.write_cache_bytes=1MiB",
)  # fmt: skip


def group_of(node: Serving, partition: int) -> int:
    group: int = mainstem_json(node, "cluster", "explain", f"{TOPIC}:{partition}")["group"]
    return group


def begin(node: Serving, partition: int, *, to: int | None = None) -> None:
    """Have a queue move to this write group, or the next one."""
    if to is None:
        to = (group_of(node, partition) + 1) % WRITE_GROUPS
    mainstem(node, "cluster", "move-queue", f"{TOPIC}:{partition}", "--to", str(to))


def epochs(bootstrap: str, ends: dict[int, int]) -> dict[int, list[int]]:
    """Partition → the leader epochs of its records, in their order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "epochs", "enable.auto.commit": False})
    found: dict[int, list[int]] = {partition: [] for partition in ends}
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
        for message in librdkafka.take(consumer, sum(ends.values())):
            epoch = message.leader_epoch()
            assert epoch is not None
            found[message.partition()].append(epoch)
    finally:
        consumer.close()
    return found


def test_queues_move_between_replicated_write_groups_under_load(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, *SETTINGS)
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[1]
        with load_on(cluster, TOPIC) as load:
            were = {partition: group_of(asked, partition) for partition in PARTITIONS}
            for partition in PARTITIONS:
                to = (were[partition] + 1) % WRITE_GROUPS
                told = mainstem(asked, "cluster", "move-queue", f"{TOPIC}:{partition}", "--to", str(to), "--wait")
                assert f"is in write group {to}" in told
            goes_on(load, TOPIC)
            for node in cluster.nodes.values():
                split_and_merge(node)
            for partition in PARTITIONS:  # a node is killed half-way, wherever that is, with what it leads
                begin(asked, partition)
                if partition == PARTITIONS[len(PARTITIONS) // 2]:
                    cluster.kill(KILLED)
            all_have_moved(asked)
            goes_on(load, TOPIC)
            cluster.start(KILLED)
            cluster.wait_until_well()
            cluster.kill(1, 2, 3)
            cluster.start()
            cluster.wait_until_well()
            goes_on(load, TOPIC)
            for node in cluster.nodes.values():
                split_and_merge(node)
            for partition in PARTITIONS[::2]:  # to where each was at first, and has records
                begin(asked, partition, to=were[partition])
                if partition == PARTITIONS[len(PARTITIONS) // 2]:
                    cluster.kill(KILLED)
            all_have_moved(asked)
            goes_on(load, TOPIC)
            cluster.start(KILLED)
            cluster.wait_until_well()
        assert {partition: group_of(asked, partition) for partition in PARTITIONS} == {
            partition: group if partition % 2 == 0 else (group + 2) % WRITE_GROUPS for partition, group in were.items()
        }
        for node in cluster.nodes.values():
            split_and_merge(node)
        check(cluster, load)
        ends = {queue.partition: len(records) for queue, records in load.expected().items()}
        assert all(found == sorted(found) for found in epochs(cluster.bootstrap, ends).values())
        cluster.kill(KILLED - 1)  # the node that was away has all that it leads now
        check(cluster, load)
    finally:
        cluster.close()
