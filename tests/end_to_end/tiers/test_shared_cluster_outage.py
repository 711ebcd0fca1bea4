"""The bucket of a cluster is out for a while: what is published is acknowledged and read all the same, the split goes
on when it is back, and nothing is lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from bench.store.plain_splitter import PlainSplitter
from kafka import TopicPartition
from tests.clients.drivers import kafka_python
from tests.end_to_end.cluster import Cluster
from tests.end_to_end.cluster_load import PARTITIONS, goes_on
from tests.end_to_end.load import Load, Queue, Record
from tests.end_to_end.readers import Reading
from tests.end_to_end.tiering import (
    RUN_BYTES,
    read_by_kafka_python,
    remote_bytes_read,
    remote_rows,
    unsplit_bytes,
)
from tests.end_to_end.tiers.test_shared_cluster import settings_with
from tests.harness.patience import PATIENCE_SECONDS
from tests.harness.serving import eventually
from tools.s3_server import s3_server

from mainstem.errors import MainstemError
from mainstem.storage.object_stores.errors import ObjectStoreOutage

pytest.importorskip("obstore")

TOPIC = "kept"
MESSAGES_PER_SECOND = 200


def split(cluster: Cluster, node_id: int) -> None:
    with PlainSplitter(cluster.nodes[node_id].http, RUN_BYTES) as splitter:
        splitter.split(merging=False)


def counted(cluster: Cluster) -> set[tuple[int, str]]:
    """The files that count in the bucket, as the nodes know it."""
    return set().union(*(remote_rows(node).counted for node in cluster.nodes.values()))


def read_newest(bootstrap: str) -> Reading:
    """Messages of each partition that were published since this was called."""
    reader = kafka_python.consumer(bootstrap)
    queues = {TopicPartition(TOPIC, partition): Queue(TOPIC, partition) for partition in range(PARTITIONS)}
    found: Reading = {queue: [] for queue in queues.values()}

    def all_came() -> bool:
        for where, records in reader.poll(timeout_ms=200).items():
            found[queues[where]] += [Record(record.offset, record.key, record.value) for record in records]
        return all(found.values())

    try:
        reader.assign(list(queues))
        reader.seek_to_end()
        for where in queues:
            reader.position(where)
        eventually(all_came, seconds=PATIENCE_SECONDS, what="a new message in every partition")
    finally:
        reader.close()
    return found


def test_an_outage_of_the_bucket_holds_up_nothing_but_the_split(tmp_path: Path) -> None:
    with s3_server("mainstem-outage") as s3:
        cluster = Cluster(tmp_path, *settings_with(s3))
        try:
            cluster.start()
            cluster.create_topic(TOPIC, PARTITIONS, retention_ms="-1")
            load = Load(cluster.bootstrap, [TOPIC], MESSAGES_PER_SECOND)
            load.start()
            try:
                goes_on(load, TOPIC)
                leader = cluster.leader(TOPIC, 0)
                split(cluster, leader)
                before = eventually(lambda: counted(cluster), what="runs in the bucket")
                s3.go_away()
                goes_on(load, TOPIC)
                newest = {node_id: read_newest(node.kafka) for node_id, node in cluster.nodes.items()}
                with pytest.raises(ObjectStoreOutage):
                    split(cluster, leader)
                assert counted(cluster) == before, "nothing counts of which the bucket has not all"
                goes_on(load, TOPIC)
                s3.come_back()
                goes_on(load, TOPIC)
                load.finish()
            finally:
                load.stop()
            load.check_order()

            def all_is_split() -> bool:
                for node_id in cluster.nodes:
                    with suppress(MainstemError):  # for some moments the nodes leave a store alone that was out
                        split(cluster, node_id)
                return not any(map(unsplit_bytes, cluster.nodes.values()))

            eventually(all_is_split, seconds=PATIENCE_SECONDS, what="everything in the bucket alone")
            expected = load.expected()
            ends = {queue: len(records) for queue, records in expected.items()}
            for node_id, node in cluster.nodes.items():
                assert read_by_kafka_python(node.kafka, ends) == expected
                for queue, records in newest[node_id].items():
                    first = records[0].offset
                    assert records == expected[queue][first : first + len(records)]
            assert sum(map(remote_bytes_read, cluster.nodes.values())) > 0
            assert before < counted(cluster)
        finally:
            cluster.close()
