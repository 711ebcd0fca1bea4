"""Three nodes with a topic that is compacted and nothing else come from four write groups to eight, its queues move to
the new ones and one of them back, a node is drained into a fourth and removed, all under the load of an idempotent
producer: whoever reads from the beginning has all of it, before, meanwhile and behind that, though what queues had
before stays where it is for good."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from tests.clients.drivers import librdkafka
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import check, goes_on, load_on
from tests.end_to_end.load import Load, Queue, Record
from tests.end_to_end.readers import record_of
from tests.end_to_end.shell import mainstem, mainstem_json
from tests.end_to_end.tiering import split_and_merge
from tests.harness.free_port import HOST, free_port
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import Serving, eventually

TOPIC = "table"
PARTITIONS = range(4)
DRAINED, NEW = 3, 4
WRITE_GROUPS = 4
SETTINGS = (
    "pipeline.mode=off", "groups.rebalance_delay_ms=0", "nameserver.room_percent_min=0", "journal.segment_bytes=1MiB",
    "storage.write_cache_bytes=1MiB",
)  # fmt: skip


def restored(cluster: Cluster, load: Load) -> dict[Queue, dict[bytes | None, Record]]:
    """The last record of each key that a reader comes to who begins anew, and reads as far as was acknowledged."""
    left = {queue: max(list(offsets)) for queue, offsets in list(load.acknowledged.items())}
    found: dict[Queue, dict[bytes | None, Record]] = {queue: {} for queue in left}
    reader = librdkafka.consumer(cluster.bootstrap, "unused")
    try:
        reader.assign([TopicPartition(*queue, 0) for queue in left])
        while left:
            (message,) = librdkafka.take(reader, 1)
            queue, record = Queue(message.topic(), message.partition()), record_of(message)
            found[queue][record.key] = record
            if record.offset >= left.get(queue, record.offset + 1):
                del left[queue]
    finally:
        reader.close()
    return found


def is_later(now: dict[Queue, dict[bytes | None, Record]], then: dict[Queue, dict[bytes | None, Record]]) -> bool:
    """Whether a reader has each key as it was, or as it was written since."""
    return all(now[queue][key].offset >= record.offset for queue, keys in then.items() for key, record in keys.items())


def is_empty(cluster: Cluster) -> bool:
    """Whether the drained node is, as far as all journals are split: replicas come to a node that has later records of
    a queue once the journal has none of the earlier ones."""
    for node in cluster.nodes.values():
        split_and_merge(node)
    (drain,) = cluster.get("/v1/cluster", 1)["drains"]
    return bool(drain["empty"])


@pytest.mark.long  # half a minute, and more beside others
def test_a_table_moves_to_more_write_groups_and_its_nodes_come_and_go(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, f"nameserver.write_groups={WRITE_GROUPS}", *SETTINGS)
    peers = {str(node_id): node.rpc for node_id, node in cluster.nodes.items()}
    new = Serving(tmp_path / f"node-{NEW}", f"node_id={NEW}", f"nameserver.peers={json.dumps(peers)}", *SETTINGS)
    new.kafka, new.http, new.rpc = (f"{HOST}:{free_port()}" for _ in range(3))
    try:
        cluster.start().wait_until_well()
        asked = cluster.nodes[1]
        with load_on(cluster, TOPIC, len(PARTITIONS)) as load:
            mainstem(asked, "topic", "alter", TOPIC, "--config", "cleanup.policy=compact")
            before = restored(cluster, load)
            were = mainstem_json(asked, "cluster", "explain", f"{TOPIC}:0")["group"]
            for node in cluster.nodes.values():
                split_and_merge(node)
            mainstem(asked, "cluster", "write-groups", str(2 * WRITE_GROUPS))
            cluster.wait_until_well()
            for partition in PARTITIONS:
                to = str(WRITE_GROUPS + partition)
                mainstem(asked, "cluster", "move-queue", f"{TOPIC}:{partition}", "--to", to, "--wait")
            goes_on(load, TOPIC, PARTITIONS)
            meanwhile = restored(cluster, load)
            assert is_later(meanwhile, before)
            told = mainstem(asked, "cluster", "explain", f"{TOPIC}:0")
            assert f"and stays there: topic {TOPIC} is compacted without delete" in told
            for node in cluster.nodes.values():
                split_and_merge(node)
            mainstem(asked, "cluster", "move-queue", f"{TOPIC}:0", "--to", str(were), "--wait")
            cluster.nodes[NEW] = new
            cluster.start(NEW)
            mainstem(asked, "cluster", "drain", str(DRAINED))
            eventually(partial(is_empty, cluster), seconds=PATIENCE_SECONDS, what="a node without replicas")
            goes_on(load, TOPIC, PARTITIONS)
            cluster.stop(DRAINED)
            mainstem(asked, "cluster", "remove", str(DRAINED))
            cluster.nodes.pop(DRAINED).drop()
            goes_on(load, TOPIC, PARTITIONS)
            assert is_later(restored(cluster, load), meanwhile)
        for node_id in (1, 2):  # the new one has all that it leads now
            cluster.kill(node_id)
            check(cluster, load)
            cluster.start(node_id)
            cluster.wait_until_well()
    finally:
        new.drop()
        cluster.close()
